package catalog

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// This file holds the merges of ranges (docs/replication.md#rule-merge). The right
// range ends by an entry of its log, the left one takes over its slots by an entry
// of its own, and the records follow: until the merge is recorded as complete, the
// slots belong to the right range. Both have one primary, which alone can order
// both entries.

const (
	codePrepareMerge  commandCode = 63
	codeCancelMerge   commandCode = 64
	codeCompleteMerge commandCode = 65
)

// PrepareMerge asks the primary of a range to take over the slots of the range
// after it. Version and RightVersion are those of both records. A repetition
// changes nothing. Two ranges, if one is about to change in another way, or whose
// replicas, in-sync sets or primaries differ, or lack a member, are a Conflict.
type PrepareMerge struct {
	Range                 rhumb.RangeID
	Version, RightVersion uint64
}

// CancelMerge ends a merge that has not begun. Only the primary of the right range
// can know that no entry ends it: it proposes the command in its epoch, when
// everything of earlier epochs is committed and without such an entry, and appends
// none for the same version of the record. Range is the right range. A repetition
// changes nothing.
type CancelMerge struct {
	Range   rhumb.RangeID
	Epoch   rhumb.Epoch
	Version uint64
}

// CompleteMerge records that a range has taken over the slots of the one after it,
// whose record goes. The primary of the left range proposes it in its epoch, when
// it has united its copies. Merge is the mark of the merge (rhumb.Range.TakesOver).
// A repetition changes nothing.
type CompleteMerge struct {
	Range rhumb.RangeID
	Epoch rhumb.Epoch
	Merge uint64
}

func (PrepareMerge) wireCode() commandCode  { return codePrepareMerge }
func (CancelMerge) wireCode() commandCode   { return codeCancelMerge }
func (CompleteMerge) wireCode() commandCode { return codeCompleteMerge }

func (PrepareMerge) needs() rhumb.Feature  { return rhumb.FeatureMerge }
func (CancelMerge) needs() rhumb.Feature   { return rhumb.FeatureMerge }
func (CompleteMerge) needs() rhumb.Feature { return rhumb.FeatureMerge }

func (c PrepareMerge) fillWire(w *wireCommand) {
	w.Range, w.RangeVersion, w.Merge = toWireRangeID(c.Range), c.Version, c.RightVersion
}

func (c CancelMerge) fillWire(w *wireCommand) {
	w.Range, w.Epoch, w.RangeVersion = toWireRangeID(c.Range), c.Epoch, c.Version
}

func (c CompleteMerge) fillWire(w *wireCommand) {
	w.Range, w.Epoch, w.Merge = toWireRangeID(c.Range), c.Epoch, c.Merge
}

// mergeDecoders is the part of commandDecoders for the commands of this file.
var mergeDecoders = map[commandCode]func(w *wireCommand) Command{
	codePrepareMerge:  func(w *wireCommand) Command { return PrepareMerge{w.Range.toRangeID(), w.RangeVersion, w.Merge} },
	codeCancelMerge:   func(w *wireCommand) Command { return CancelMerge{w.Range.toRangeID(), w.Epoch, w.RangeVersion} },
	codeCompleteMerge: func(w *wireCommand) Command { return CompleteMerge{w.Range.toRangeID(), w.Epoch, w.Merge} },
}

// RightOf returns the range that begins where a range ends, if there is one.
func (s *State) RightOf(r *rhumb.Range) (*rhumb.Range, bool) {
	return s.Range(rhumb.RangeID{Region: r.ID.Region, Slot: r.LastSlot() + 1})
}

// LeftOf returns the range that ends where a range begins, if there is one.
func (s *State) LeftOf(r *rhumb.Range) (*rhumb.Range, bool) {
	if r.ID.Slot == 0 {
		return nil, false
	}
	o, ok := s.ranges.floor(rangeKey(rhumb.RangeID{Region: r.ID.Region, Slot: r.ID.Slot - 1}))
	if !ok || o.ID.Region != r.ID.Region || o.LastSlot()+1 != r.ID.Slot {
		return nil, false
	}
	return o, true
}

// MergePartner returns the range that a range is about to be united with, if there
// is one.
func (s *State) MergePartner(r *rhumb.Range) (*rhumb.Range, bool) {
	switch {
	case r.TakesOver != 0:
		o, ok := s.RightOf(r)
		return o, ok && o.Ends == r.TakesOver
	case r.Ends != 0:
		o, ok := s.LeftOf(r)
		return o, ok && o.TakesOver == r.Ends
	}
	return nil, false
}

// IsMerged reports whether a range was merged into another one.
func (s *State) IsMerged(id rhumb.RangeID) bool {
	r, ok := s.RangeOf(id)
	return ok && slices.Contains(r.Merged, id.Slot)
}

// FreeSlot returns the slot at which a range may be split that is nearest to a
// wanted one, among those from there on; ok is false if there is none
// (rhumb.Range.Merged).
func FreeSlot(r *rhumb.Range, at rhumb.Slot) (free rhumb.Slot, ok bool) {
	for at <= r.LastSlot() && slices.Contains(r.Merged, at) {
		at++
	}
	return at, at > r.ID.Slot && at <= r.LastSlot()
}

// isReshaping reports whether a range is being split or merged.
func (s *State) isReshaping(r *rhumb.Range) bool { return r.IsMerging() || s.isSplitting(r) }

// WhyNotJoin returns the range before a range, and why the two must not be one range, wherever their copies and primaries are; or "". It
// does not ask whether they are being merged.
func (s *State) WhyNotJoin(right *rhumb.Range) (left *rhumb.Range, why string) {
	left, ok := s.LeftOf(right)
	if !ok {
		return nil, "no range ends where it begins"
	}
	return left, s.whyNotJoin(left, right)
}

// whyNotJoin is WhyNotJoin for a range and the one after it.
func (s *State) whyNotJoin(left, right *rhumb.Range) string {
	b, ok := s.BlockOf(left.ID)
	c, known := s.Class(left.Class)
	switch {
	case !ok || !known || b.Node != rhumb.NoNode || c.Settings.Buckets == 0 || !b.Contains(right.LastSlot()) || left.Class != right.Class:
		return "they do not hold slots of the same hash space"
	case c.Dropping:
		return "the ranges are being dropped"
	// The log of a reserved range continues that of the one before it, so neither may end.
	case s.isSplitting(left) || s.isSplitting(right):
		return "one of them is being split"
	case len(left.Merged)+len(right.Merged) >= rhumb.MergedMax:
		return fmt.Sprintf("%d ranges were merged into them, which is the most", len(left.Merged)+len(right.Merged))
	}
	return ""
}

// whyNotMerge returns why two neighbours must not be merged now, or "".
func (s *State) whyNotMerge(left, right *rhumb.Range) string {
	if why := s.whyNotJoin(left, right); why != "" {
		return why
	}
	switch {
	case left.IsMerging() || right.IsMerging():
		return "one of them is being merged already"
	// The target of a handover would be primary of one range only, in an epoch that the
	// other one does not know.
	case left.Prepared != nil || right.Prepared != nil:
		return "a handover of one of them is prepared"
	case len(left.Leaving)+len(right.Leaving) > 0:
		return "copies of one of them are about to leave"
	// A damaged copy can not be united, and would have to copy the united range.
	case len(left.Quarantined)+len(right.Quarantined) > 0:
		return "a copy of one of them is quarantined"
	// A union moves no data, so each node needs both copies.
	case !slices.Equal(left.Replicas, right.Replicas):
		return "they have different replicas; move one of them first (`rhumb range move`)"
	// One node orders both entries. A handover makes no pause, unlike an election.
	case left.Primary != right.Primary:
		return "they have different primaries; hand one of them over first (`rhumb range handover`)"
	// A replica that lags would have to copy the united range.
	case !slices.Equal(left.InSync, left.Replicas) || !slices.Equal(right.InSync, right.Replicas):
		return "not every replica of both is in sync"
	}
	return ""
}

// WhyNotMerge returns why a range can not be merged with the one after it, or "".
func (s *State) WhyNotMerge(left *rhumb.Range) string {
	right, ok := s.RightOf(left)
	if !ok {
		return "no range begins where it ends"
	}
	return s.whyNotMerge(left, right)
}

// applyTo marks both ranges. In order: a repetition is the result; both must exist,
// in the versions of the command; nothing may keep them from being merged.
func (c PrepareMerge) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.PrepareMerge"
	left, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	}
	right, ok := t.RightOf(left)
	switch {
	case left.TakesOver != 0:
		return Result{Range: left}
	case !ok:
		return refuseRange(op, rhumb.NotFound, left, "no range begins at slot %d, where range %s ends", left.LastSlot()+1, left.ID)
	case left.Version != c.Version || right.Version != c.RightVersion:
		return refuseRange(op, rhumb.Conflict, left, "the ranges have changed: expected the versions %d and %d, found %d and %d; read them again", c.Version, c.RightVersion, left.Version, right.Version)
	}
	if why := t.whyNotMerge(left, right); why != "" {
		return refuseRange(op, rhumb.Conflict, left, "ranges %s and %s cannot be merged now: %s", left.ID, right.ID, why)
	}
	l, r := left.Clone(), right.Clone()
	l.Version, r.Version = left.Version+1, right.Version+1
	// A version is never used twice for one slot, so the mark names this merge and
	// no earlier or later one.
	l.TakesOver, r.Ends = l.Version, l.Version
	t.putRange(l)
	t.putRange(r)
	return Result{Range: l}
}

// applyTo removes the marks. In order: a range that is gone was merged; one without
// the mark is the result; epoch and version must be those that the proposer saw.
func (c CancelMerge) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CancelMerge"
	right, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "range %s does not exist; it may be merged already", c.Range)
	case right.Ends == 0:
		return Result{Range: right}
	case right.Epoch != c.Epoch || right.Version != c.Version:
		return refuseRange(op, rhumb.Conflict, right, "the range has changed: expected epoch %d version %d, found epoch %d version %d; read it again", c.Epoch, c.Version, right.Epoch, right.Version)
	}
	if left, ok := t.MergePartner(right); ok {
		l := left.Clone()
		l.TakesOver = 0
		l.Version++
		t.putRange(l)
	}
	r := right.Clone()
	r.Ends = 0
	r.Version++
	t.putRange(r)
	return Result{Range: r}
}

// applyTo adds the slots of the right range to the left one. In order: a range
// that takes over nothing is the result; epoch and mark must be those that the
// proposer saw.
func (c CompleteMerge) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CompleteMerge"
	left, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	case left.TakesOver == 0:
		return Result{Range: left}
	case left.Epoch != c.Epoch || left.TakesOver != c.Merge:
		return refuseRange(op, rhumb.Conflict, left, "the range is in epoch %d and takes part in merge %d, not in epoch %d and merge %d", left.Epoch, left.TakesOver, c.Epoch, c.Merge)
	}
	right, ok := t.MergePartner(left)
	if !ok {
		return refuseRange(op, rhumb.Conflict, left, "the range that was taken over is gone; its class is being dropped")
	}
	next := left.Clone()
	next.Last, next.TakesOver = right.LastSlot(), 0
	// All slots of the right range are above those of the left one.
	next.Merged = slices.Concat(left.Merged, []rhumb.Slot{right.ID.Slot}, right.Merged)
	// A range that is split off later begins above everything that a node may have
	// promised for the range that goes.
	next.Allocated = max(left.Allocated, right.Allocated)
	next.Version = max(left.Version, right.Version) + 1
	// The last loss that an operator accepted.
	if next.Recovery == nil {
		next.Recovery = right.Clone().Recovery
	}
	t.ranges.delete(t.owner, rangeKey(right.ID))
	t.changes.Ranges = append(t.changes.Ranges, right.ID)
	t.putRange(next)
	return Result{Range: next}
}

// alignMerge gives the partner of a range that is being merged the same primary, in
// a new epoch of its own: only a node that is primary of both can carry the merge
// out.
func (t *tx) alignMerge(r *rhumb.Range) {
	o, ok := t.MergePartner(r)
	if !ok || o.Primary == r.Primary || !o.IsInSync(r.Primary) || o.IsQuarantined(r.Primary) || !t.IsLive(r.Primary) {
		return
	}
	// Members that leave with this election leave both sets.
	less := slices.DeleteFunc(slices.Clone(o.InSync), func(n rhumb.NodeID) bool { return !r.IsInSync(n) })
	if !t.mayShrink(o, less) {
		less = o.InSync
	}
	t.electPrimary(o, r.Primary, less)
}
