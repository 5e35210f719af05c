package replica

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// A merge makes one range of two neighbours by an entry in each log
// (docs/replication.md#rule-merge). The first ends the right range: its primary
// orders nothing after it and answers no reads. The second, in the log of the left
// range, takes over the slots. When a replica learns that the second is committed,
// its driver unites the copies of both ranges in storage.
//
// A replica knows one range. The driver knows both, and informs each of what the other
// one has done (EndRange, TakeOver).

// End is the place of the entry that ended a range.
type End struct {
	Epoch rhumb.Epoch
	Seq   rhumb.Seq
}

// Taken is a committed entry of the log that takes over the slots of another range.
type Taken struct {
	// Seq is the position of the entry.
	Seq  rhumb.Seq
	Take entry.Take
}

// merge is the part of a replica's state that belongs to merges.
type merge struct {
	// ended is the place of the entry of the log that ends the range, committed or
	// not; zero if there is none.
	ended End
	// takes are the entries above the commit position that take over slots, in
	// their order.
	takes []Taken
	// last is the last slot of the copy. The record may not show it yet.
	last rhumb.Slot
	// end is set if this primary is to end its range, and take is what it is to
	// take over, above a timestamp.
	end   bool
	take  entry.Take
	above rhumb.Timestamp
	// unable is for how long this primary has been unable to end its range for the
	// merge marked, which is the value of Ends in the record, and givenUp the version
	// of the record for which it has given up. propose times the proposals to metadata.
	unable  stall
	marked  uint64
	givenUp uint64
	propose retry
}

// stepDown forgets what belongs to the epoch of a primary.
func (m *merge) stepDown() {
	m.end, m.take, m.above = false, entry.Take{}, 0
	m.unable, m.givenUp, m.propose = stall{}, 0, retry{}
}

// SetLastSlot sets the last slot of the copy.
func (r *Replica) SetLastSlot(last rhumb.Slot) {
	r.merge.last = max(r.cfg.Range.Slot, last)
	r.dirty = true
}

// holdsHome reports whether the copy has the slot of a home, whatever the record
// says.
func (r *Replica) holdsHome(home rhumb.RangeID) bool {
	return home.Region == r.cfg.Range.Region && r.cfg.Range.Slot <= home.Slot && home.Slot <= r.merge.last
}

// HasEnded reports whether the log has an entry that ends the range, committed or
// not.
func (r *Replica) HasEnded() bool { return r.merge.ended.Seq != 0 }

// actsFully reports whether this primary has committed the start of its epoch, and
// metadata knows the epoch.
func (r *Replica) actsFully() bool { return r.role == primary && r.commit >= r.start && r.isAdopted() }

// MembersReady reports whether all members of the in-sync set are connected and
// fit, so that the next entry is committed soon.
func (r *Replica) MembersReady() bool {
	for _, p := range r.peers {
		if p.inSync && (!p.connected || !p.isFit()) {
			return false
		}
	}
	return !r.change.isActive() && r.desc.Prepared == nil
}

// wantsEnd reports whether the record waits for this primary to end its range.
func (r *Replica) wantsEnd() bool {
	return r.role == primary && r.desc.Ends != 0 && !r.HasEnded() && len(r.splits) == 0
}

// MayEnd reports whether this primary could end its range now.
func (r *Replica) MayEnd() bool {
	return r.wantsEnd() && r.actsFully() && r.MembersReady() && r.merge.givenUp < r.desc.Version
}

// MayTake reports whether this primary could take over the slots of the range after
// its own.
func (r *Replica) MayTake() bool {
	return r.actsFully() && r.desc.TakesOver != 0 && len(r.merge.takes) == 0 && len(r.out.Taken) == 0 &&
		len(r.splits) == 0 && r.merge.last == r.desc.LastSlot() && !r.HasEnded()
}

// EndRange makes the primary end its range with the next Ready. The driver calls it
// only if this node is also the acting primary of the range that takes over, which
// could do so now.
func (r *Replica) EndRange() {
	if r.MayEnd() {
		r.merge.end, r.dirty = true, true
	}
}

// Ended returns what another range has to name in order to take over the slots of
// this one, and a timestamp above which it does so, if this primary knows the end
// of its range; ok is false unless it acts in its epoch and has committed the end.
//
// Acting in the present epoch means that no primary of an earlier epoch answers
// reads any more.
func (r *Replica) Ended() (take entry.Take, above rhumb.Timestamp, ok bool) {
	e := r.merge.ended
	if e.Seq == 0 || r.role != primary {
		return entry.Take{}, 0, false
	}
	take = entry.Take{Slot: r.cfg.Range.Slot, Last: r.merge.last, Epoch: e.Epoch, Seq: e.Seq}
	return take, max(r.orders.hlc, r.closed, r.log.last().HLC), r.actsFully() && r.commit >= e.Seq
}

// TakeOver makes the primary take over the slots of a range that has ended, with
// the next Ready and above a timestamp.
func (r *Replica) TakeOver(take entry.Take, above rhumb.Timestamp) {
	if r.MayTake() {
		r.merge.take, r.merge.above, r.dirty = take, above, true
	}
}

// appendMerge appends the entry that the driver asked for. Ready calls it when all
// earlier proposals are sealed.
func (r *Replica) appendMerge() {
	m := &r.merge
	switch {
	case m.end && r.MayEnd():
		r.appendOwn(&entry.Entry{Requests: []entry.Request{{HLC: r.nextHLC(r.orders.clock), Noop: true, End: true}}})
	case !m.take.IsZero() && r.MayTake():
		r.appendOwn(&entry.Entry{Requests: []entry.Request{{HLC: r.nextHLC(max(r.orders.clock, m.above+1)), Noop: true, Take: m.take}}})
	}
	m.end, m.take = false, entry.Take{}
}

// noteMerge remembers an entry of the log that belongs to a merge.
func (r *Replica) noteMerge(e *entry.Entry) {
	if e.Ends() {
		r.merge.ended = End{e.Epoch, e.Seq}
	}
	if t := e.Take(); !t.IsZero() {
		r.merge.takes = append(r.merge.takes, Taken{Seq: e.Seq, Take: t})
	}
}

// undoMerges forgets entries that are undone.
func (r *Replica) undoMerges(above rhumb.Seq) {
	m := &r.merge
	if m.ended.Seq > above {
		m.ended = End{}
	}
	for n := len(m.takes); n > 0 && m.takes[n-1].Seq > above; n-- {
		m.takes = m.takes[:n-1]
	}
}

// commitTakes hands out the takeovers up to the commit position. The log is trimmed
// below the entry: a replica that needs earlier entries copies the united range as
// a whole, since the log of the other range is gone here.
func (r *Replica) commitTakes() {
	m, n := &r.merge, 0
	for n < len(m.takes) && m.takes[n].Seq <= r.commit {
		n++
	}
	if n == 0 {
		return
	}
	t := m.takes[n-1].Seq - 1
	r.out.Taken = append(r.out.Taken, m.takes[:n]...)
	m.takes = slices.Clone(m.takes[n:])
	if t > r.log.trim {
		r.setTrim(t)
	}
	// The members unite their copies as soon as they know of the commit.
	for _, p := range r.peers {
		p.commitDue = p.commitDue || p.canSend()
	}
}

// isMerging reports whether this primary has to look after a merge from time to
// time.
func (r *Replica) isMerging() bool {
	return r.desc.IsMerging() || r.HasEnded()
}

// tickMerge proposes to metadata what this primary knows about a merge: that it
// cannot begin, or that it is done.
func (r *Replica) tickMerge(step time.Duration) {
	if !r.actsFully() {
		return
	}
	m := &r.merge
	// A merge that is marked again, after one was given up, has the whole time again. No tick may have come between the two.
	if !r.wantsEnd() || m.marked != r.desc.Ends {
		m.unable, m.marked = stall{}, r.desc.Ends
	}
	switch {
	case r.wantsEnd():
		r.tickUnable(step)
	case r.desc.TakesOver != 0 && m.last > r.desc.LastSlot():
		r.proposeMerge(MetaProposal{Kind: CompleteMerge, Range: r.cfg.Range, Epoch: r.promised, Version: r.desc.TakesOver})
	}
}

// tickUnable cancels a merge that has been impossible for a while. Only a primary
// knows that nobody has ended the range: all entries of earlier epochs are
// committed here, none of them is an end, and from here on this epoch appends none
// for this version of the record.
func (r *Replica) tickUnable(step time.Duration) {
	m := &r.merge
	if m.givenUp < r.desc.Version {
		// The driver ends the range as soon as both ranges can; until then nothing
		// is lost by waiting.
		if m.unable.add(step, false); m.unable.lasted < r.cfg.SplitWait {
			return
		}
		m.givenUp, m.propose = r.desc.Version, retry{}
	}
	r.proposeMerge(MetaProposal{Kind: CancelMerge, Range: r.cfg.Range, Epoch: r.promised, Version: r.desc.Version})
}

// proposeMerge sends a proposal, and again after a while: it may be lost.
func (r *Replica) proposeMerge(p MetaProposal) {
	if t := &r.merge.propose; t.armed && !t.due(r.now, r.cfg.ChangeRetry) {
		return
	}
	r.merge.propose.arm()
	r.out.Meta = append(r.out.Meta, p)
	r.dirty = true
}

// Retire answers everything that waits, because the range does not exist any more:
// its slots belong to another one.
func (r *Replica) Retire() []Answer {
	for {
		w, ok := r.waiters.pop(^rhumb.Seq(0))
		if !ok {
			break
		}
		r.answerWaiter(&w, rhumb.Outcome{}, r.newError(rhumb.Unknown, fmt.Sprintf("range %s was merged before the outcome was known; retry with the same request ID", r.cfg.Range)))
	}
	out := r.out.Answers
	r.out, r.dirty = Ready{}, false
	return out
}
