package replica

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// This file has what differs in a range whose table defers syncs (docs/replication.md#deferred). A member acknowledges entries when
// its operating system has them. So a power loss may take the end of a log that was acknowledged, which in any other range only
// damage can do.

// deferral is the state that a range with deferred syncs keeps.
type deferral struct {
	// settled is a position that every copy had acknowledged at least two windows ago, and next one that all had at the time since.
	settled, next rhumb.Seq
	since         time.Duration
}

// defers reports whether entries are acknowledged before they are synced.
func (r *Replica) defers() bool { return r.cfg.Deferred != 0 }

// mayDefer reports whether the writes of this Ready may be reported as persisted before they are synced. Only plain writes may. A
// promise, an undo and a quarantine bind this node after a power loss too; an entry that divides, ends or takes over a range
// has consequences in the metadata and in another log, which a power loss here does not take back. An earlier Ready of these
// kinds that is not durable keeps later ones from being reported before it.
func (r *Replica) mayDefer() bool {
	if !r.defers() || r.out.Promised != 0 || r.out.UndoAbove != nil || r.out.Quarantine != "" {
		return false
	}
	for i := range r.batches {
		if !r.batches[i].deferred {
			return false
		}
	}
	for _, e := range r.out.Append {
		if !isPlain(e) {
			return false
		}
	}
	return true
}

// isPlain reports whether an entry does nothing but write records.
func isPlain(e *entry.Entry) bool {
	return len(e.Requests) > 0 && e.Split() == 0 && !e.Ends() && e.Take().IsZero()
}

// awaitsAll reports whether an elected replica waits for the members that have not answered, because everybody who has may have
// lost the same end of the log in the same power loss, and one of the others may have it. A dead member leaves the in-sync set, so
// this rarely lasts; DeferredWait bounds it.
func (r *Replica) awaitsAll() bool {
	return r.defers() && !r.oneAnswerSuffices() && (r.prep.began == 0 || r.now-r.prep.began < r.cfg.DeferredWait)
}

// giveUpDeferred quarantines this copy because its primary has another entry in the place of a committed one. In a range with
// deferred syncs that says nothing about damage: all who answered the election had lost the end of their logs in a power loss, and
// the range continued without it. This copy is the one that differs, so it is replaced by healing.
func (r *Replica) giveUpDeferred(m *Message, pos entry.Position) {
	lost := r.log.last().Seq - pos.Seq + 1
	r.out.GivenUp = uint64(lost)
	r.quarantine(fmt.Sprintf("the range went on in epoch %d without the last %d entries of this log, which the other copies had lost in a power loss before they were synced; the copy is replaced", m.Epoch, lost))
}

// settledBy returns the position up to which a log may be trimmed, of one that every copy has acknowledged: a copy that loses power
// needs the entries of the last window once more.
func (r *Replica) settledBy(have rhumb.Seq) rhumb.Seq {
	if !r.defers() {
		return have
	}
	d := &r.deferral
	if r.now-d.since >= 2*r.cfg.Deferred {
		d.settled, d.next, d.since = d.next, have, r.now
	}
	return min(have, d.settled)
}
