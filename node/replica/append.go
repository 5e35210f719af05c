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
	case Append:
		if err := checkChain(&m); err != nil {
			return err
		}
		if r.refuseAhead(&m) {
			return nil
		}
		r.stepAppend(&m)
		if r.role == quarantined {
			r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Quarantined: true})
		}
		return nil
	case Ack:
		return r.stepAck(&m)
	case Nack:
		r.stepNack(&m)
		return nil
	}
	return rhumb.Ef(op, rhumb.Incompatible, "message kind %d is not known", m.Kind)
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
	switch {
	case r.role == quarantined:
		return
	case m.Epoch < r.promised:
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq})
		return
	case m.Epoch > r.promised:
		r.promise(m.Epoch, m.From)
	case r.promisedTo == rhumb.NoNode:
		r.promisedTo = m.From
	}
	if m.From != r.promisedTo {
		r.quarantine(fmt.Sprintf("invariant I1: epoch %d has primaries %s and %s", m.Epoch, r.promisedTo, m.From))
		return
	}
	if hint, ok := r.missing(m); ok {
		if r.role != quarantined {
			r.send(hint)
		}
		return
	}
	for i, e := range m.Entries {
		if r.holds(e) {
			continue
		}
		if !r.makeRoom(m, e) {
			return
		}
		r.accept(m.Entries[i:])
		break
	}
	if r.role == quarantined {
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

// missing reports whether the place before m's entries is not in the log, and gives the Nack for it. It quarantines
// the replica when that place contradicts what is committed.
func (r *Replica) missing(m *Message) (hint Message, ok bool) {
	last := r.log.last()
	hint = Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq}
	if m.Prev.Seq > last.Seq {
		hint.HintEpoch, hint.HintEnd = last.Epoch, last.Seq
		return hint, true
	}
	here, known := r.log.at(m.Prev.Seq)
	switch {
	case !known || here.Hash == m.Prev.Hash:
		// Below the marks everything is committed, and the same in the log of every later primary. The hash covers the
		// epoch, which a primary whose lineage does not reach back so far gives as 0.
		return hint, false
	case m.Prev.Seq <= r.commit:
		r.quarantine(fmt.Sprintf("invariant I5: %s says %s where %s is committed", m.From, m.Prev, here.Position))
		return hint, true
	case here.Epoch == m.Prev.Epoch:
		r.quarantine(fmt.Sprintf("invariant I2: %s says %s where the log has %s", m.From, m.Prev, here.Position))
		return hint, true
	}
	hint.HintEpoch, hint.HintEnd = r.log.endOf(min(here.Epoch, m.Prev.Epoch))
	if hint.HintEnd >= m.Prev.Seq {
		hint.HintEnd = m.Prev.Seq - 1
		hint.HintEpoch = r.log.epochAt(hint.HintEnd)
	}
	if hint.HintEnd < r.commit {
		hint.HintEnd = r.commit
		hint.HintEpoch = r.log.epochAt(r.commit)
	}
	return hint, true
}

// holds reports whether the log has the entry. Below the marks everything is committed, and the same everywhere.
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
	m.Range, m.From, m.Commit = r.cfg.Range, r.cfg.Self, r.commit
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
