package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Step processes a message from a peer. It returns an error, and changes nothing, if the message is
// malformed or not for this replica.
func (r *Replica) Step(m Message) error {
	const op rhumb.Op = "replica.Step"
	if m.Range != r.cfg.Range || m.To != r.cfg.Self || m.From == r.cfg.Self || m.From == rhumb.NoNode {
		return rhumb.Ef(op, rhumb.InvalidArgument, "message %s of range %s from %s to %s is not for %s of range %s",
			m.Kind, m.Range, m.From, m.To, r.cfg.Self, r.cfg.Range)
	}
	switch m.Kind {
	// Entries are checked before any state changes. Everything below may assume that they follow each
	// other and do not belong to an epoch later than the message's.
	case Append, Suffix:
		if err := checkChain(&m); err != nil {
			return err
		}
	case Handover:
		if err := r.checkHandover(&m); err != nil {
			return err
		}
	}
	switch m.Kind {
	case Append:
		// refuseAhead cuts off the entries that this node's clock does not accept. Entries before those
		// are processed as usual.
		if r.refuseAhead(&m) || r.refuseUnknown(&m) {
			return nil
		}
		r.stepAppend(&m)
	case Ack:
		return r.stepAck(&m)
	case Nack:
		r.stepNack(&m)
	case Prepare:
		r.stepPrepare(&m)
	case Promise:
		r.stepPromise(&m)
	case Fetch:
		r.stepFetch(&m)
	case Suffix:
		r.stepSuffix(&m)
	case Handover:
		r.stepHandover(&m)
	case LogTrimmed:
		r.stepBehind(&m)
	case Copying:
		r.stepCopying(&m)
	default:
		return rhumb.Ef(op, rhumb.Incompatible, "message kind %d is not known", m.Kind)
	}
	// A quarantined replica answers every request of a primary, so that the primary drops it from the
	// in-sync set instead of waiting for it.
	if r.role == quarantined && m.Kind.fromPrimary() {
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Quarantined: true})
	}
	return nil
}

// checkChain rejects a message whose entries do not follow each other.
func checkChain(m *Message) error {
	const op rhumb.Op = "replica.Step"
	prev := m.Prev
	for _, e := range m.Entries {
		if e.Seq != prev.Seq+1 || e.Prev != prev.Hash || e.Epoch < prev.Epoch || e.Epoch > m.Epoch {
			return rhumb.Ef(op, rhumb.Corrupt, "message of epoch %d from %s: entry %s does not follow %s; the bytes are damaged", m.Epoch, m.From, e.Position(), prev)
		}
		prev = e.Position()
	}
	return nil
}

// stepAppend is rule A. Its steps, in this order:
//
//  1. Refuse a deposed primary, or promise a later epoch (followEpoch).
//  2. Compare the message with the committed entries here, before anything is undone.
//  3. If the logs part before the first entry, answer with a hint where to look.
//  4. Replace conflicting entries and append the new ones.
//  5. Raise commit and trim, and owe an Ack. emitAck sends it once everything is durable.
func (r *Replica) stepAppend(m *Message) {
	// A replica that is still listed as quarantined takes no entries before metadata readmits it: with
	// entries in its log it would pass for an older copy of the damaged disk.
	if !r.followEpoch(m) || r.role != following || r.notice.kind == Readmit || r.refusesAppend(m) {
		return
	}
	r.noteTaker(m)
	if hint, apart := r.findDivergence(m.Prev); apart {
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, HintEpoch: hint.Epoch, HintEnd: hint.Seq})
		return
	}
	if !r.mergeEntries(m) {
		return
	}
	// The Ack covers this Append, never the end of the log: entries above may be of an earlier epoch,
	// and the primary would count them as its own.
	match := m.Prev.Seq + rhumb.Seq(len(m.Entries))
	// The primary's commit position says nothing about entries here that it has not sent.
	if c := min(m.Commit, match); c > r.commit {
		r.setCommit(c)
	}
	// Only below commit: the trimmed part must not be needed for undo or log matching.
	if t := min(m.Trim, max(r.commit, 1)-1); t > r.log.trim {
		r.setTrim(t)
	}
	r.ackDue, r.ackTo = true, m.From
	r.ackUpTo = max(r.ackUpTo, match)
	r.dirty = true
}

// refusesAppend reports whether an Append contradicts entries that this log holds as committed, and
// if so answers it. Committed entries are the same in the log of every later primary, so the
// primary's log has lost them, and the primary stops (docs/replication.md#rule-refuse). If the
// members quarantined themselves instead, one damaged disk would take the healthy majority with it.
//
// Two entries with the same epoch and position are a different case (I2): the bytes of one of them
// are wrong. This replica quarantines itself then, so that such a disk stops itself instead of one
// primary after the other.
func (r *Replica) refusesAppend(m *Message) bool {
	if r.contradictsLog(m.Prev) {
		return r.refuseAppend(m, m.Prev)
	}
	for _, e := range m.Entries {
		if e.Seq > r.log.last().Seq {
			break
		}
		if r.contradictsLog(e.Position()) {
			return r.refuseAppend(m, e.Position())
		}
	}
	return r.role == quarantined
}

// contradictsLog reports whether the log holds another entry at pos that is committed or of the
// same epoch. Where the log has forgotten the hashes, it compares epochs.
func (r *Replica) contradictsLog(pos entry.Position) bool {
	here, known := r.log.at(pos.Seq)
	switch {
	case pos.Seq > r.log.last().Seq || pos.Seq == 0 || known && here.Hash == pos.Hash:
		return false
	case known:
		// An uncommitted entry of another epoch does not contradict the log: rule T undoes it.
		return pos.Seq <= r.commit || here.Epoch == pos.Epoch
	}
	// A primary whose lineage does not reach back that far sends epoch 0, which contradicts nothing.
	// If the lineage here is the shorter one, the epoch at pos is at most the first that it knows.
	epoch := r.log.epochAt(pos.Seq)
	if epoch == 0 && len(r.log.lineage) > 0 {
		return pos.Epoch > r.log.lineage[0].Epoch
	}
	return pos.Epoch != 0 && epoch != 0 && epoch != pos.Epoch
}

// refuseAppend answers an Append that contradictsLog at pos: by quarantining this replica if two
// entries of one epoch differ, otherwise by a Nack that makes the primary stop. If the table defers syncs, it is this replica that
// stops (giveUpDeferred). It returns true.
func (r *Replica) refuseAppend(m *Message, pos entry.Position) bool {
	if here, known := r.log.at(pos.Seq); known && (here.Epoch == pos.Epoch || pos.Seq > r.commit) {
		r.quarantine(fmt.Sprintf("invariant I2: %s sent entry %s, but this log holds %s at that position", m.From, pos, here.Position))
		return true
	}
	if r.defers() {
		r.giveUpDeferred(m, pos)
		return true
	}
	r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: pos.Seq, Contradicts: true})
	return true
}

// findDivergence reports whether a log that holds prev diverges from this log at or before prev,
// and up to which position the two may agree. The hint skips whole epochs by the lineage, so a long
// divergent suffix costs one round trip per epoch and not one per entry.
func (r *Replica) findDivergence(prev entry.Position) (hint entry.Position, apart bool) {
	last := r.log.last()
	// Entries are missing here. The end of this log is the best guess.
	if prev.Seq > last.Seq {
		return last.Position, true
	}
	here, known := r.log.at(prev.Seq)
	if known && here.Hash == prev.Hash || !known && !r.contradictsLog(prev) {
		return entry.Position{}, false
	}
	epoch := here.Epoch
	if !known {
		epoch = r.log.epochAt(prev.Seq)
	}
	// The logs can agree at most to the end of the greatest epoch that both may have.
	hint.Epoch, hint.Seq = r.log.endOf(min(epoch, prev.Epoch))
	if hint.Seq >= prev.Seq {
		// The same epoch, but a different entry at prev: step back by one, so that the search always
		// ends.
		hint.Seq = prev.Seq - 1
		hint.Epoch = r.log.epochAt(hint.Seq)
	}
	return hint, true
}

// mergeEntries appends the entries of m that the log lacks, and undoes the entries in their place.
// It returns false if it quarantined the replica.
func (r *Replica) mergeEntries(m *Message) bool {
	for i, e := range m.Entries {
		if r.holdsEntry(e) {
			// A repeated or overlapping message. Undoing and appending the same entries again would discard
			// acknowledged ones for a moment.
			continue
		}
		if !r.makeRoom(m, e) {
			return false
		}
		r.appendEntries(m.Entries[i:])
		break
	}
	return r.role != quarantined
}

// holdsEntry reports whether the log has the entry. Where the log has forgotten the hashes,
// everything is committed, and refusesAppend has compared the epochs.
func (r *Replica) holdsEntry(e *entry.Entry) bool {
	if e.Seq > r.log.last().Seq {
		return false
	}
	here, known := r.log.at(e.Seq)
	return !known || here.Position == e.Position()
}

// makeRoom undoes the entries in the place of e (rule T). If they must not be undone, it
// quarantines the replica and returns false. All three cases are contradictions that a correct
// primary cannot cause.
func (r *Replica) makeRoom(m *Message, e *entry.Entry) bool {
	here, occupied := r.log.at(e.Seq)
	switch {
	case !occupied:
		return true
	case e.Seq <= r.commit:
		r.quarantine(fmt.Sprintf("invariant I5: %s sent entry %s, but %s is committed at that position", m.From, e.Position(), here.Position))
		return false
	case here.Epoch == e.Epoch:
		r.quarantine(fmt.Sprintf("invariant I2: %s sent entry %s, but this log holds %s at that position", m.From, e.Position(), here.Position))
		return false
	case here.Epoch >= m.Epoch:
		r.quarantine(fmt.Sprintf("rule T: %s of epoch %d sent entry %s, but this log holds %s of the same or a later epoch at that position", m.From, m.Epoch, e.Position(), here.Position))
		return false
	}
	r.undoAbove(e.Seq - 1)
	return true
}

// undoAbove removes all entries above seq.
func (r *Replica) undoAbove(seq rhumb.Seq) {
	if seq < r.commit {
		panic(fmt.Sprintf("replica: invariant I5: undo above %d, commit is %d", seq, r.commit))
	}
	if r.role == following {
		r.failOrders() // answers that were kept in a handover
	}
	// Entries that no Ready has handed out vanish without a trace. The slice is cut with its capacity,
	// because its backing array may be shared with a message.
	keep := 0
	for keep < len(r.out.Append) && r.out.Append[keep].Seq <= seq {
		keep++
	}
	r.out.Append = r.out.Append[:keep:keep]
	// Storage has some of them, so the next Ready must delete them before it appends others.
	if seq < r.handedOut {
		r.undone, r.undoTo = true, seq
		r.handedOut = seq
	}
	// A sync that is under way makes only the undone entries durable, not those that will take their
	// place. So neither durable nor the batches may count above seq any more.
	r.durable = min(r.durable, seq)
	for i := range r.batches {
		r.batches[i].last = min(r.batches[i].last, seq)
	}
	// An Ack that waits must not cover replaced entries either.
	r.ackUpTo = min(r.ackUpTo, seq)
	r.log.undoAbove(seq)
	r.undoSplits(seq)
}

// appendEntries appends entries that follow the end of the log. An entry whose timestamps do not
// grow quarantines the replica, because readers rely on the order (I7).
func (r *Replica) appendEntries(entries []*entry.Entry) {
	for _, e := range entries {
		if !r.timestampsGrow(e) {
			r.quarantine(fmt.Sprintf("invariant I7: the timestamps of entry %s do not grow from %d, the last in this log", e.Position(), r.log.last().HLC))
			return
		}
		r.log.append(e, entrySize(e))
		r.noteSplit(e)
	}
	// The usual case: one message per Ready. Its entries are shared and immutable, so the slice is
	// taken over without a copy; the capped capacity makes a later append copy it.
	if r.out.Append == nil {
		r.out.Append = entries[:len(entries):len(entries)]
		return
	}
	r.out.Append = append(r.out.Append, entries...)
}

// timestampsGrow reports whether the timestamps of e are above those of the log and grow strictly
// (I7).
func (r *Replica) timestampsGrow(e *entry.Entry) bool {
	last := r.log.last().HLC
	if len(e.Requests) == 0 {
		return e.Start > last
	}
	for i := range e.Requests {
		if e.Requests[i].HLC <= last {
			return false
		}
		last = e.Requests[i].HLC
	}
	return true
}

// emitAck hands out the Ack that is due: now if everything is durable already, after the sync of
// this Ready if it has one. If only the sync of an earlier Ready is missing, the Ack stays due
// until Persisted makes the replica dirty again.
func (r *Replica) emitAck() {
	if !r.ackDue {
		return
	}
	ack := r.stampMessage(Message{Kind: Ack, To: r.ackTo, Epoch: r.promised, Match: r.ackUpTo})
	switch {
	// An Ack asserts that the entries, the undo before them and the promise are all durable
	// (docs/replication.md#durable).
	case r.ackUpTo <= r.durable && r.promisedDurable == r.promised:
		r.out.Messages = append(r.out.Messages, ack)
	case r.out.MustSync:
		r.out.AfterSync = append(r.out.AfterSync, ack)
	default:
		return
	}
	r.ackDue, r.ackUpTo = false, 0
}

// send queues a message from this replica.
func (r *Replica) send(m Message) {
	r.out.Messages = append(r.out.Messages, r.stampMessage(m))
	r.dirty = true
}

// stampMessage sets the fields that all messages carry.
func (r *Replica) stampMessage(m Message) Message {
	m.Range, m.From, m.Life, m.Commit = r.cfg.Range, r.cfg.Self, r.cfg.Life, r.commit
	// A Nack carries the promised epoch, so that a deposed primary learns of it and steps down.
	if m.Kind == Nack {
		m.Promised = r.promised
	}
	return m
}

// setTrim records that the log up to seq may be removed.
func (r *Replica) setTrim(seq rhumb.Seq) {
	if seq >= r.commit || seq <= r.log.trim {
		panic(fmt.Sprintf("replica: trim goes from %d to %d, commit is %d", r.log.trim, seq, r.commit))
	}
	r.log.trimTo(seq)
	r.out.Trim = seq
	r.dirty = true
}
