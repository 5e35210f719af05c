package replica

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// A split divides a range by an entry of its log (docs/replication.md#rule-split). The primary appends the entry once the
// record of the new range is reserved, and orders nothing more for the slots that the range loses. When a replica
// learns that the entry is committed, its driver divides the copy in storage and starts the replica of the new range, whose
// log continues after the same entry. So every replica divides its copy at the same place of the log, whatever it misses.

// Birth is a new range that a committed entry of the log splits off.
type Birth struct {
	// At is the first slot of the new range.
	At rhumb.Slot
	// Seq is the position of the entry, after which the log of the new range continues.
	Seq rhumb.Seq
}

// Reserve sets the record that is reserved for the upper slots of its range; nil if there is none, or if the
// range is born.
func (r *Replica) Reserve(d *rhumb.Range) {
	if d == nil {
		r.reserved = nil
		return
	}
	if r.reserved != nil && r.reserved.ID == d.ID && d.Version <= r.reserved.Version {
		return
	}
	// The entry is committed, and the driver divides the copy in this pass. A second entry would divide the copy again.
	if slices.ContainsFunc(r.out.Born, func(b Birth) bool { return b.At == d.ID.Slot }) {
		return
	}
	r.reserved = d.Clone()
	r.unsplit = stall{}
	r.dirty = true
}

// Splitting returns the first slot that the range is about to lose; ok is false if no split is under way. Proposals for
// the slots from there on must wait.
func (r *Replica) Splitting() (at rhumb.Slot, ok bool) {
	// Births that no Ready has handed out count: until then the driver takes the slots for those of this range.
	for _, births := range [][]Birth{r.splits, r.out.Born} {
		for _, s := range births {
			if !ok || s.At < at {
				at, ok = s.At, true
			}
		}
	}
	return at, ok
}

// HasSplit reports whether the log has an entry, not known to be committed, that divides the range at a slot.
func (r *Replica) HasSplit(at rhumb.Slot) bool {
	return slices.ContainsFunc(r.splits, func(b Birth) bool { return b.At == at })
}

// isDivided reports whether the log in memory has an entry that divides the range, or had one in this life. Whether the entry is committed does
// not matter: a peer that has a copy of the new range already would divide its empty copy when it learns of the commit (seed 575 of sim).
func (r *Replica) isDivided() bool { return r.divided || len(r.splits) > 0 }

// wantsSplit reports whether a record waits for this primary to divide its range.
func (r *Replica) wantsSplit() bool {
	return r.role == primary && r.reserved != nil && r.reserved.Birth != 0 && len(r.splits) == 0
}

// maySplit reports whether the primary may divide its range now. The new range takes over the in-sync set and the primary of
// the reserved record, so both must suit this primary, and nothing may be about to change them.
func (r *Replica) maySplit() bool {
	d := r.reserved
	switch {
	// The record may be gone already. The proposal to remove it names this version, so a newer one makes it void.
	case r.wantsSplit() && r.givenUp >= r.reserved.Version:
		return false
	case !r.wantsSplit() || r.commit < r.start || !r.isAdopted() || r.change.isActive() || r.desc.Prepared != nil:
		return false
	// The log of the new range continues this one, and its epochs must grow along it.
	case d.Epoch <= r.promised || d.Primary != r.cfg.Self:
		return false
	case d.ID.Slot <= r.cfg.Range.Slot || d.ID.Slot > r.desc.LastSlot():
		return false
	// Both ranges must count on the same members, and then they shrink together until the entry is committed (joins wait,
	// and the catalog shrinks both sets in one command). So each member of the new range has the entry, and divides its copy. If
	// this range had a member more, it could commit the entry without one of the new range, whose own set is too small to let
	// that one go. The log is trimmed below the entry, so the node would get a copy that is divided already, and the new
	// range would never begin.
	case !slices.Equal(r.inSync, d.InSync):
		return false
	}
	for _, n := range d.InSync {
		if p := r.peer(n); n != r.cfg.Self && (p == nil || !p.inSync || !p.connected || !p.isFit()) {
			return false
		}
	}
	return true
}

// tickSplit cancels a split that has been impossible for a while: a node that died for good may be a member of the new range, or this
// node is none, because it joined the range later. Until then no copy could leave the range and no handover be prepared.
//
// Only a primary knows that nobody divides the range: all entries of earlier epochs are committed here, none of them does
// (commitSplits forgets the record otherwise), and from here on this epoch appends none for this version of the record. The command
// names the epoch and the version, so a primary of a later epoch, or a newer record, makes it void.
func (r *Replica) tickSplit(step time.Duration) {
	if !r.wantsSplit() || r.commit < r.start || !r.isAdopted() {
		r.unsplit = stall{}
		return
	}
	// A version for which this primary has given up stays so: the proposal may be applied at any time.
	if r.givenUp < r.reserved.Version {
		if r.unsplit.add(step, r.maySplit()); r.unsplit.lasted < r.cfg.SplitWait {
			return
		}
		r.givenUp = r.reserved.Version
		r.cancel = retry{}
	}
	// The proposal may be lost. Until the record changes, it is repeated.
	if r.cancel.armed && !r.cancel.due(r.now, r.cfg.ChangeRetry) {
		return
	}
	r.cancel.arm()
	r.out.Meta = append(r.out.Meta, MetaProposal{Kind: CancelSplit, Range: r.reserved.ID, Epoch: r.promised, Version: r.reserved.Version})
	r.dirty = true
}

// appendSplit appends the entry that divides the range. Ready calls it when all earlier proposals are sealed.
func (r *Replica) appendSplit() {
	r.appendOwn(&entry.Entry{Requests: []entry.Request{{HLC: r.nextHLC(r.orders.clock), Noop: true, Split: r.reserved.ID.Slot}}})
}

// noteSplit remembers an entry of the log that divides the range, until it is committed or undone.
func (r *Replica) noteSplit(e *entry.Entry) {
	if at := e.Split(); at != 0 {
		r.splits = append(r.splits, Birth{At: at, Seq: e.Seq})
	}
	r.noteMerge(e)
}

// undoSplits forgets entries that are undone.
func (r *Replica) undoSplits(above rhumb.Seq) {
	for n := len(r.splits); n > 0 && r.splits[n-1].Seq > above; n-- {
		r.splits = r.splits[:n-1]
	}
	r.undoMerges(above)
}

// commitSplits hands out the ranges that are born with the commit position. The log is trimmed below the entry: the versions
// that earlier entries list may be those of the new range, which collects them on its own.
func (r *Replica) commitSplits() {
	n := 0
	for n < len(r.splits) && r.splits[n].Seq <= r.commit {
		n++
	}
	if n == 0 {
		return
	}
	born := r.splits[n-1]
	r.out.Born = append(r.out.Born, r.splits[:n]...)
	r.splits = append([]Birth(nil), r.splits[n:]...)
	r.reserved = nil
	if t := born.Seq - 1; t > r.log.trim {
		r.setTrim(t)
	}
	r.divided = true
	// The members divide their copies as soon as they know of the commit, and the new range waits for them.
	for _, p := range r.peers {
		p.commitDue = p.commitDue || p.canSend()
	}
}

// completeSplit asks metadata to record a new range as the owner of its slots, once its first primary, or any later one, has begun. Until then
// requests for them go to the primary of the old range. Tick repeats it.
func (r *Replica) completeSplit() {
	if !r.wantsCompletion() || r.complete.armed && !r.complete.due(r.now, r.cfg.ChangeRetry) {
		return
	}
	r.complete.arm()
	r.out.Meta = append(r.out.Meta, MetaProposal{Kind: Complete, Range: r.cfg.Range, Epoch: r.promised, Version: r.desc.Version})
	r.dirty = true
}

// wantsCompletion reports whether the record does not know yet that this range is born.
func (r *Replica) wantsCompletion() bool {
	return r.role == primary && r.desc.Birth != 0 && r.commit >= r.start && r.isAdopted()
}

// refusesSlots returns an error if a proposal has keys that the range is about to lose. The driver holds such proposals
// back, so this is a second guard.
func (r *Replica) refusesSlots(p *Proposal) *rhumb.Error {
	at, ok := r.Splitting()
	if !ok {
		return nil
	}
	for i := range p.Slots {
		if p.Slots[i] >= at {
			return r.newError(rhumb.Unavailable, fmt.Sprintf("slot %d is being split off; retry", p.Slots[i]))
		}
	}
	return nil
}
