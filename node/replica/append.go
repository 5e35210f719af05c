package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Step takes a message from a peer. It returns an error, and changes nothing, when the message is malformed or not for
// this replica.
func (r *Replica) Step(m Message) error {
	const op rhumb.Op = "replica.Step"
	if m.Range != r.cfg.Range || m.To != r.cfg.Self || m.From == r.cfg.Self || m.From == rhumb.NoNode {
		return rhumb.Ef(op, rhumb.InvalidArgument, "a %s of range %s from %s to %s is not for %s of range %s",
			m.Kind, m.Range, m.From, m.To, r.cfg.Self, r.cfg.Range)
	}
	switch m.Kind {
	case Append, Suffix:
		if err := checkChain(&m); err != nil {
			return err
		}
	}
	switch m.Kind {
	case Append:
		if r.refuseAhead(&m) {
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
	default:
		return rhumb.Ef(op, rhumb.Incompatible, "message kind %d is not known", m.Kind)
	}
	if r.role == quarantined && m.Kind.fromPrimary() {
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Quarantined: true})
	}
	return nil
}

// checkChain refuses an Append whose entries do not follow each other.
func checkChain(m *Message) error {
	const op rhumb.Op = "replica.Step"
	prev := m.Prev
	for _, e := range m.Entries {
		if e.Seq != prev.Seq+1 || e.Prev != prev.Hash || e.Epoch < prev.Epoch || e.Epoch > m.Epoch {
			return rhumb.Ef(op, rhumb.Corrupt, "append of epoch %d from %s: entry %s does not follow %s", m.Epoch, m.From, e.Position(), prev)
		}
		prev = e.Position()
	}
	return nil
}

// stepAppend is rule A.
func (r *Replica) stepAppend(m *Message) {
	if !r.follow(m) || r.role != following || r.notice.kind == Readmit || r.refusesAppend(m) {
		return // with entries in its log, a replica that is not readmitted yet would pass for an older copy
	}
	if hint, apart := r.parting(m.Prev); apart {
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, HintEpoch: hint.Epoch, HintEnd: hint.Seq})
		return
	}
	if !r.take(m) {
		return
	}
	match := m.Prev.Seq + rhumb.Seq(len(m.Entries))
	if c := min(m.Commit, match); c > r.commit {
		r.setCommit(c)
	}
	if t := min(m.Trim, max(r.commit, 1)-1); t > r.log.trim {
		r.setTrim(t)
	}
	r.ackDue, r.ackTo = true, m.From
	r.ackUpTo = max(r.ackUpTo, match)
	r.dirty = true
}

// refusesAppend reports whether an Append contradicts what this log holds as committed, and answers it. Committed entries are
// the same in the log of every later primary, so it is the primary's log that lost them: the primary stops. Had the
// members quarantined themselves instead, one damaged disk would take the healthy majority with it.
//
// Two entries of one epoch at one place are another matter (I2): somebody's bytes are wrong. This replica quarantines
// itself, so that one such disk stops itself and not one primary after the other.
func (r *Replica) refusesAppend(m *Message) bool {
	if r.contradicts(m.Prev) {
		return r.refuseAppend(m, m.Prev)
	}
	for _, e := range m.Entries {
		if e.Seq > r.log.last().Seq {
			break
		}
		if r.contradicts(e.Position()) {
			return r.refuseAppend(m, e.Position())
		}
	}
	return r.role == quarantined
}

// contradicts reports whether the log holds another entry at pos, and that entry is committed or of the same epoch.
// Where the log remembers no hashes any more it compares epochs.
func (r *Replica) contradicts(pos entry.Position) bool {
	here, known := r.log.at(pos.Seq)
	switch {
	case pos.Seq > r.log.last().Seq || pos.Seq == 0 || known && here.Hash == pos.Hash:
		return false
	case known:
		return pos.Seq <= r.commit || here.Epoch == pos.Epoch
	}
	// A primary whose lineage does not reach back so far sends epoch 0. Where this lineage does not, the epoch is at most
	// the first that it knows.
	epoch := r.log.epochAt(pos.Seq)
	if epoch == 0 && len(r.log.lineage) > 0 {
		return pos.Epoch > r.log.lineage[0].Epoch
	}
	return pos.Epoch != 0 && epoch != 0 && epoch != pos.Epoch
}

func (r *Replica) refuseAppend(m *Message, pos entry.Position) bool {
	if here, known := r.log.at(pos.Seq); known && (here.Epoch == pos.Epoch || pos.Seq > r.commit) {
		r.quarantine(fmt.Sprintf("invariant I2: %s sent %s where the log has %s", m.From, pos, here.Position))
		return true
	}
	r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: pos.Seq, Contradicts: true})
	return true
}

// parting reports whether a log that holds prev parts from this log at or before prev, and up to where the two may agree.
func (r *Replica) parting(prev entry.Position) (hint entry.Position, apart bool) {
	last := r.log.last()
	if prev.Seq > last.Seq {
		return last.Position, true
	}
	here, known := r.log.at(prev.Seq)
	if known && here.Hash == prev.Hash || !known && !r.contradicts(prev) {
		return entry.Position{}, false
	}
	epoch := here.Epoch
	if !known {
		epoch = r.log.epochAt(prev.Seq)
	}
	hint.Epoch, hint.Seq = r.log.endOf(min(epoch, prev.Epoch))
	if hint.Seq >= prev.Seq {
		hint.Seq = prev.Seq - 1
		hint.Epoch = r.log.epochAt(hint.Seq)
	}
	return hint, true
}

// take appends what the log lacks of m's entries, and undoes what stands in their place. It reports false when it
// quarantined the replica.
func (r *Replica) take(m *Message) bool {
	for i, e := range m.Entries {
		if r.holds(e) {
			continue
		}
		if !r.makeRoom(m, e) {
			return false
		}
		r.accept(m.Entries[i:])
		break
	}
	return r.role != quarantined
}

// holds reports whether the log has the entry. Where the log remembers no hashes any more, everything is committed, and
// refusesAppend has compared the epochs.
func (r *Replica) holds(e *entry.Entry) bool {
	if e.Seq > r.log.last().Seq {
		return false
	}
	here, known := r.log.at(e.Seq)
	return !known || here.Position == e.Position()
}

// makeRoom undoes what stands where e belongs (rule T). It reports false, and quarantines the replica, when that must
// not happen.
func (r *Replica) makeRoom(m *Message, e *entry.Entry) bool {
	here, occupied := r.log.at(e.Seq)
	switch {
	case !occupied:
		return true
	case e.Seq <= r.commit:
		r.quarantine(fmt.Sprintf("invariant I5: %s sent %s where %s is committed", m.From, e.Position(), here.Position))
		return false
	case here.Epoch == e.Epoch:
		r.quarantine(fmt.Sprintf("invariant I2: %s sent %s where the log has %s", m.From, e.Position(), here.Position))
		return false
	case here.Epoch >= m.Epoch:
		r.quarantine(fmt.Sprintf("rule T: %s of epoch %d sent %s where the log has %s", m.From, m.Epoch, e.Position(), here.Position))
		return false
	}
	r.undo(e.Seq - 1)
	return true
}

// undo removes all entries above seq.
func (r *Replica) undo(seq rhumb.Seq) {
	if seq < r.commit {
		panic(fmt.Sprintf("replica: invariant I5: undo above %d, commit is %d", seq, r.commit))
	}
	keep := 0
	for keep < len(r.out.Append) && r.out.Append[keep].Seq <= seq {
		keep++
	}
	r.out.Append = r.out.Append[:keep:keep]
	if seq < r.handed {
		r.undone, r.undoTo = true, seq
		r.handed = seq
	}
	r.durable = min(r.durable, seq)
	for i := range r.batches { // what they made durable above seq is undone
		r.batches[i].last = min(r.batches[i].last, seq)
	}
	r.ackUpTo = min(r.ackUpTo, seq)
	r.log.undo(seq)
}

// accept appends entries that follow the end of the log. An entry whose timestamps do not grow quarantines the replica.
func (r *Replica) accept(entries []*entry.Entry) {
	for _, e := range entries {
		if !r.growing(e) {
			r.quarantine(fmt.Sprintf("invariant I7: entry %s does not have timestamps that grow from %d", e.Position(), r.log.last().HLC))
			return
		}
		r.log.append(e, entrySize(e))
	}
	if r.out.Append == nil {
		r.out.Append = entries[:len(entries):len(entries)]
		return
	}
	r.out.Append = append(r.out.Append, entries...)
}

// growing reports whether the timestamps of e are above those of the log and grow strictly (I7).
func (r *Replica) growing(e *entry.Entry) bool {
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

// acknowledge hands out the Ack that is due: at once when everything is durable already, else after the sync of this
// Ready; when only an earlier Ready's sync is awaited, Persisted will bring it.
func (r *Replica) acknowledge() {
	if !r.ackDue {
		return
	}
	ack := r.stamp(Message{Kind: Ack, To: r.ackTo, Epoch: r.promised, Match: r.ackUpTo})
	switch {
	case r.ackUpTo <= r.durable && r.promisedDurable == r.promised:
		r.out.Messages = append(r.out.Messages, ack)
	case r.out.MustSync:
		r.out.AfterSync = append(r.out.AfterSync, ack)
	default:
		return
	}
	r.ackDue, r.ackUpTo = false, 0
}

// send queues a message of this replica.
func (r *Replica) send(m Message) {
	r.out.Messages = append(r.out.Messages, r.stamp(m))
	r.dirty = true
}

// stamp fills in what all messages carry.
func (r *Replica) stamp(m Message) Message {
	m.Range, m.From, m.Life, m.Commit = r.cfg.Range, r.cfg.Self, r.cfg.Life, r.commit
	if m.Kind == Nack {
		m.Promised = r.promised
	}
	return m
}

// setTrim notes that the log may go up to seq.
func (r *Replica) setTrim(seq rhumb.Seq) {
	if seq >= r.commit || seq <= r.log.trim {
		panic(fmt.Sprintf("replica: trim goes from %d to %d, commit is %d", r.log.trim, seq, r.commit))
	}
	r.log.trimTo(seq)
	r.out.Trim = seq
	r.dirty = true
}
