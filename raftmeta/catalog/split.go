package catalog

import (
	"slices"

	"github.com/rhumbdb/rhumb"
)

// This file holds the splits of ranges (docs/replication.md#rule-split). The record of the new range is reserved
// before the primary divides the range, so that fencing, elections and leases treat the new range like any other
// from its first moment. Until the split is recorded as complete, the slots belong to the old range (RangeOf).

const (
	codePrepareSplit  commandCode = 60
	codeCompleteSplit commandCode = 61
	codeCancelSplit   commandCode = 62
)

// PrepareSplit reserves the record of a new range for the slots of a range from At on. The primary then divides the
// range by an entry of its log. A repetition changes nothing. A range that is being split already, whose primary is to
// change or whose copies are to move, is a Conflict. Kept marks a split that an operator asked for (rhumb.Range.Kept).
type PrepareSplit struct {
	Range   rhumb.RangeID
	Version uint64
	At      rhumb.Slot
	Kept    bool
}

// CompleteSplit records that the new range is born, so that its slots are its own. Its primary proposes it in its epoch;
// it can only have begun the epoch with a copy that was born, so the entry of the split is committed. A repetition changes
// nothing.
type CompleteSplit struct {
	Range rhumb.RangeID
	Epoch rhumb.Epoch
}

// CancelSplit removes the record of a range that is reserved and can not be born: a copy that it counts on is gone. Only the
// primary of the range that was to be split can know that no entry divides the range: it proposes the command in its epoch,
// when everything of earlier epochs is committed and without such an entry, and appends none for the same version of
// the record. Range is the reserved range, Version the one of its record, and Epoch the one of the range that holds its slots. A
// repetition changes nothing.
type CancelSplit struct {
	Range   rhumb.RangeID
	Epoch   rhumb.Epoch
	Version uint64
}

func (PrepareSplit) wireCode() commandCode  { return codePrepareSplit }
func (CompleteSplit) wireCode() commandCode { return codeCompleteSplit }
func (CancelSplit) wireCode() commandCode   { return codeCancelSplit }

func (CompleteSplit) needs() rhumb.Feature { return rhumb.FeatureSplit }
func (CancelSplit) needs() rhumb.Feature   { return rhumb.FeatureSplit }

// needs returns the feature of Kept. Builds before it would not record it, and their states would differ.
func (c PrepareSplit) needs() rhumb.Feature {
	if c.Kept {
		return rhumb.FeatureMerge
	}
	return rhumb.FeatureSplit
}

func (c PrepareSplit) fillWire(w *wireCommand) {
	w.Range, w.RangeVersion, w.SplitAt, w.Kept = toWireRangeID(c.Range), c.Version, c.At, c.Kept
}

func (c CompleteSplit) fillWire(w *wireCommand) {
	w.Range, w.Epoch = toWireRangeID(c.Range), c.Epoch
}

func (c CancelSplit) fillWire(w *wireCommand) {
	w.Range, w.Epoch, w.RangeVersion = toWireRangeID(c.Range), c.Epoch, c.Version
}

// splitDecoders is the part of commandDecoders for the commands of this file.
var splitDecoders = map[commandCode]func(w *wireCommand) Command{
	codePrepareSplit: func(w *wireCommand) Command {
		return PrepareSplit{w.Range.toRangeID(), w.RangeVersion, w.SplitAt, w.Kept}
	},
	codeCompleteSplit: func(w *wireCommand) Command { return CompleteSplit{w.Range.toRangeID(), w.Epoch} },
	codeCancelSplit:   func(w *wireCommand) Command { return CancelSplit{w.Range.toRangeID(), w.Epoch, w.RangeVersion} },
}

// ReservedIn returns the range that is reserved for a split of r, if there is one. There is at most one, and it ends where
// r ends.
func (s *State) ReservedIn(r *rhumb.Range) (*rhumb.Range, bool) {
	child, ok := s.ranges.floor(rangeKey(rhumb.RangeID{Region: r.ID.Region, Slot: r.LastSlot()}))
	return child, ok && child.Birth != 0 && child.ID.Slot > r.ID.Slot && r.Holds(child.ID)
}

// CanDivide reports whether a node could divide a range as its primary: the range that is reserved for the split, if there is
// one, counts it as a member with an intact copy. A copy that joined after the reservation does not.
func (s *State) CanDivide(r *rhumb.Range, id rhumb.NodeID) bool {
	// Any live member may divide a range that nothing is reserved in: there is nothing to divide yet.
	child, splits := s.ReservedIn(r)
	if splits {
		return child.IsInSync(id) && !child.IsQuarantined(id)
	}
	// Only a member of both ranges of a merge can be primary of both.
	other, merges := s.MergePartner(r)
	return !merges || other.IsInSync(id) && !other.IsQuarantined(id)
}

// isSplitting reports whether a range is reserved for a split, or divided by one that is not complete.
func (s *State) isSplitting(r *rhumb.Range) bool {
	_, reserves := s.ReservedIn(r)
	return r.Birth != 0 || reserves
}

// applyTo reserves the new range. In order: a repetition is the result; the slot must lie inside of the range; the version
// must be that of the record; nothing else may be about to change the range.
func (c PrepareSplit) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.PrepareSplit"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	}
	class, _ := t.Class(r.Class)
	child, reserved := t.ReservedIn(r)
	switch {
	case reserved && child.ID.Slot == c.At:
		return Result{Range: child}
	case c.At <= r.ID.Slot || c.At > r.LastSlot():
		return refuseRange(op, rhumb.InvalidArgument, r, "a split at slot %d does not divide the range, which has the slots %d to %d", c.At, r.ID.Slot, r.LastSlot())
	case r.Version != c.Version:
		return refuseChanged(op, r, c.Version)
	case reserved || r.Birth != 0:
		return refuseRange(op, rhumb.Conflict, r, "the range is being split already; retry when that is done")
	case r.IsMerging():
		return refuseRange(op, rhumb.Conflict, r, "the range is being merged; retry when that is done")
	case slices.Contains(r.Merged, c.At):
		return refuseRange(op, rhumb.InvalidArgument, r, "a range that began at slot %d was merged into the range, and no range begins there again; choose another slot", c.At)
	// The handover would begin an epoch that the new range does not know of.
	case r.Prepared != nil:
		return refuseRange(op, rhumb.Conflict, r, "a handover to %s is prepared; retry when it is done", r.Prepared.Target)
	// A copy must not be dropped before its node has divided it.
	case len(r.Leaving) > 0:
		return refuseRange(op, rhumb.Conflict, r, "the copies on %s are about to leave; retry when they are gone", rhumb.NodeList(r.Leaving))
	case class.Dropping:
		return refuseRange(op, rhumb.Conflict, r, "the range is being dropped")
	}
	// The log of the new range continues that of the old one, so its first epoch is above all that the log can hold. It is
	// allocated once and nobody has served the new range before, so its primary need not ask anybody.
	epoch := r.Allocated + 1
	next := r.Clone()
	// A split of these slots may have been cancelled before. Nodes that did not see it go take the greater version for the newer.
	next.ID.Slot, next.Version, next.Recovery, next.Removed = c.At, r.Version+1, nil, nil
	next.Epoch, next.Allocated, next.Birth = epoch, epoch, epoch
	next.Merged = dropSlots(r.Merged, func(s rhumb.Slot) bool { return s < c.At })
	next.Kept = c.Kept
	if next.Last == c.At {
		next.Last = 0 // a range of one slot has no last slot
	}
	t.putRange(next)
	return Result{Range: next}
}

// dropSlots returns the slots without those that drop names, and nil for none.
func dropSlots(slots []rhumb.Slot, drop func(rhumb.Slot) bool) []rhumb.Slot {
	if left := slices.DeleteFunc(slices.Clone(slots), drop); len(left) > 0 {
		return left
	}
	return nil
}

// applyTo records that the slots belong to the new range. In order: a repetition is the result; the proposer must be in the present
// epoch; the old range must exist.
func (c CompleteSplit) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CompleteSplit"
	child, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	case child.Birth == 0:
		return Result{Range: child}
	case child.Epoch != c.Epoch:
		return refuseRange(op, rhumb.Conflict, child, "the range is in epoch %d and not in epoch %d", child.Epoch, c.Epoch)
	}
	parent, ok := t.RangeOf(child.ID)
	if !ok {
		return refuseRange(op, rhumb.Conflict, child, "the range that was split is gone; its class is being dropped")
	}
	old := parent.Clone()
	old.Last = 0
	if last := child.ID.Slot - 1; last > old.ID.Slot {
		old.Last = last
	}
	old.Merged = dropSlots(parent.Merged, func(s rhumb.Slot) bool { return s >= child.ID.Slot })
	old.Version++
	born := child.Clone()
	born.Birth = 0
	born.Version++
	t.putRange(old)
	t.putRange(born)
	return Result{Range: born}
}

// applyTo removes a reserved range. In order: a range that is not there is gone already; it must not be born; its record and the epoch
// of the range that holds its slots must be those that the proposer saw.
func (c CancelSplit) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CancelSplit"
	child, ok := t.Range(c.Range)
	switch {
	case !ok:
		return Result{}
	case child.Birth == 0:
		return refuseRange(op, rhumb.Conflict, child, "the range was split; there is nothing to cancel")
	case child.Version != c.Version:
		return refuseChanged(op, child, c.Version)
	}
	parent, ok := t.RangeOf(child.ID)
	if !ok || parent.Epoch != c.Epoch {
		return refuseRange(op, rhumb.Conflict, child, "the range that is to be split is not in epoch %d any more", c.Epoch)
	}
	// The slots never left the parent, so its record needs no other change.
	old := parent.Clone()
	// A later split of the same slots begins above everything that a node may have promised for this one, and with a greater version.
	old.Allocated = max(old.Allocated, child.Allocated)
	old.Version = max(old.Version, child.Version) + 1
	t.ranges.delete(t.owner, rangeKey(child.ID))
	t.changes.Ranges = append(t.changes.Ranges, child.ID)
	t.putRange(old)
	return Result{Range: old}
}

// alignReserved moves a reserved range into an epoch above the new one of the range that is to be split, and gives it the
// same primary. So a primary can divide its range whenever it was elected, and requests find both parts on one node. If the
// new range is born already, this is an ordinary election.
func (t *tx) alignReserved(r *rhumb.Range) {
	child, ok := t.ReservedIn(r)
	if !ok || child.Epoch > r.Epoch && child.Primary == r.Primary {
		return
	}
	if !t.CanDivide(r, r.Primary) {
		// The primary does not divide the range in an epoch that is not below. Its next election tries again.
		return
	}
	up := child.Clone()
	up.Allocated = max(up.Allocated, r.Allocated)
	// Members that leave with this election leave both sets, as in shrinkReserved.
	less := slices.DeleteFunc(slices.Clone(up.InSync), func(n rhumb.NodeID) bool { return !r.IsInSync(n) })
	if !t.mayShrink(child, less) {
		less = up.InSync
	}
	t.electPrimary(up, r.Primary, less)
}

// shrinkReserved takes the members that left an in-sync set out of that of the reserved range, which has no primary of its
// own yet that could. A set in the metadata may always be smaller than that of a primary (docs/replication.md#record).
func (t *tx) shrinkReserved(r *rhumb.Range) {
	child, ok := t.ReservedIn(r)
	if !ok {
		return
	}
	less := slices.DeleteFunc(slices.Clone(child.InSync), func(n rhumb.NodeID) bool { return !r.IsInSync(n) })
	if len(less) == len(child.InSync) || !slices.Contains(less, child.Primary) || !t.mayShrink(child, less) {
		return
	}
	next := child.Clone()
	next.InSync = less
	next.Version++
	t.putRange(next)
}

// setReservedReplicas sets the replicas of a reserved range to those of the range that is to be split: each node that has a copy of it
// divides that copy.
func (t *tx) setReservedReplicas(r *rhumb.Range) {
	child, ok := t.ReservedIn(r)
	if !ok || slices.Equal(child.Replicas, r.Replicas) {
		return
	}
	next := child.Clone()
	next.Replicas = slices.Clone(r.Replicas)
	next.Version++
	t.putRange(next)
}
