package catalog

import (
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// newMergeWorld returns a catalog with a range that was split at a slot.
func newMergeWorld(t *testing.T) (w *splitWorld, right rhumb.RangeID) {
	t.Helper()
	w = newSplitWorld(t)
	right = w.apply(PrepareSplit{w.id, w.rng(w.id).Version, w.id.Slot + 100, false}, 0).ID
	w.apply(CompleteSplit{right, w.rng(right).Epoch}, 0)
	return w, right
}

// prepare marks the ranges for a merge.
func (w *splitWorld) prepare(right rhumb.RangeID, want rhumb.Kind) *rhumb.Range {
	w.t.Helper()
	return w.apply(PrepareMerge{w.id, w.rng(w.id).Version, w.rng(right).Version}, want)
}

// TestMerge guards the records of a merge from its beginning to its end.
func TestMerge(t *testing.T) {
	w, right := newMergeWorld(t)
	old := w.rng(right)
	w.apply(PrepareMerge{w.id, w.rng(w.id).Version + 1, old.Version}, rhumb.Conflict)
	w.apply(PrepareMerge{w.id, w.rng(w.id).Version, old.Version + 1}, rhumb.Conflict)
	w.apply(PrepareMerge{right, old.Version, 1}, rhumb.NotFound)
	l := w.prepare(right, 0)
	if r := w.rng(right); l.TakesOver == 0 || r.Ends != l.TakesOver || r.TakesOver != 0 || l.Ends != 0 {
		t.Fatalf("marked %+v and %+v", l, r)
	}
	// A repetition changes nothing, and whatever moves copies, slots or primaries in another way waits.
	if again := w.prepare(right, 0); again.Version != l.Version {
		t.Fatalf("marked twice: %+v", again)
	}
	for _, id := range []rhumb.RangeID{w.id, right} {
		r := w.rng(id)
		w.apply(PrepareSplit{id, r.Version, id.Slot + 9, false}, rhumb.Conflict)
		w.apply(PrepareHandover{id, r.Version, 2}, rhumb.Conflict)
		w.apply(SetLeaving{id, r.Version, []rhumb.NodeID{3}}, rhumb.Conflict)
		w.apply(SetReplicas{Range: id, Version: r.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4}}, rhumb.Conflict)
	}
	// The slots stay where they are until the merge is complete.
	if got, _ := w.s.RangeOf(right); got.ID != right {
		t.Fatalf("slot %s is in %s", right, got.ID)
	}
	w.apply(CompleteMerge{w.id, l.Epoch + 1, l.TakesOver}, rhumb.Conflict)
	w.apply(CompleteMerge{w.id, l.Epoch, l.TakesOver + 1}, rhumb.Conflict)
	w.apply(CompleteMerge{w.id, l.Epoch, l.TakesOver}, 0)
	whole := w.rng(w.id)
	if _, ok := w.s.Range(right); ok || whole.LastSlot() != old.LastSlot() || whole.TakesOver != 0 || !slices.Equal(whole.Merged, []rhumb.Slot{right.Slot}) {
		t.Fatalf("after the merge %+v", whole)
	}
	if whole.Version <= old.Version || whole.Allocated < old.Allocated {
		t.Fatalf("%+v does not come after %+v", whole, old)
	}
	w.apply(CompleteMerge{w.id, l.Epoch, l.TakesOver}, 0)
	w.apply(CancelMerge{right, old.Epoch, old.Version}, rhumb.NotFound)
	if !w.s.IsMerged(right) || w.s.IsMerged(w.id) {
		t.Fatalf("merged: %v, %v", w.s.IsMerged(right), w.s.IsMerged(w.id))
	}
	// No range begins there again; elsewhere it may, and each part keeps the slots inside of it.
	w.apply(PrepareSplit{w.id, whole.Version, right.Slot, false}, rhumb.InvalidArgument)
	if free, ok := FreeSlot(whole, right.Slot); !ok || free != right.Slot+1 {
		t.Fatalf("free slot %d, %v", free, ok)
	}
	part := w.apply(PrepareSplit{w.id, whole.Version, right.Slot - 1, false}, 0).ID
	w.apply(CompleteSplit{part, w.rng(part).Epoch}, 0)
	if a, b := w.rng(w.id), w.rng(part); len(a.Merged) != 0 || !slices.Equal(b.Merged, []rhumb.Slot{right.Slot}) {
		t.Fatalf("parts %+v and %+v", a, b)
	}
}

// TestMergeFollowsElections guards that both ranges get one primary, whoever fails, and that a member of both is preferred.
func TestMergeFollowsElections(t *testing.T) {
	w, right := newMergeWorld(t)
	w.prepare(right, 0)
	w.apply(Elect{Range: right, Version: w.rng(right).Version, Node: 2}, 0)
	if l, r := w.rng(w.id), w.rng(right); l.Primary != 2 || r.Primary != 2 {
		t.Fatalf("the primaries are %s and %s", l.Primary, r.Primary)
	}
	w.apply(FenceNode{Node: 2, Boot: 1}, 0)
	l, r := w.rng(w.id), w.rng(right)
	if l.Primary != r.Primary || l.Primary == 2 || l.IsInSync(2) || r.IsInSync(2) {
		t.Fatalf("after the failure of n2: %+v and %+v", l, r)
	}
	// The epochs of the merge that was prepared before are over.
	w.apply(CompleteMerge{w.id, l.Epoch - 1, l.TakesOver}, rhumb.Conflict)
	w.apply(CompleteMerge{w.id, l.Epoch, l.TakesOver}, 0)
}

// TestCancelMerge guards that a merge is cancelled only for the record that the primary saw, and can be prepared again.
func TestCancelMerge(t *testing.T) {
	w, right := newMergeWorld(t)
	first := w.prepare(right, 0).TakesOver
	r := w.rng(right)
	w.apply(CancelMerge{right, r.Epoch + 1, r.Version}, rhumb.Conflict)
	w.apply(CancelMerge{right, r.Epoch, r.Version - 1}, rhumb.Conflict)
	w.apply(CancelMerge{right, r.Epoch, r.Version}, 0)
	if l, r := w.rng(w.id), w.rng(right); l.IsMerging() || r.IsMerging() {
		t.Fatalf("still marked: %+v, %+v", l, r)
	}
	w.apply(CancelMerge{right, r.Epoch, r.Version}, 0)
	if again := w.prepare(right, 0); again.TakesOver == first {
		t.Fatalf("two merges have the mark %d", first)
	}
}

// TestRefuseMerge has all reasons for which ranges are not merged.
func TestRefuseMerge(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(w *splitWorld, right rhumb.RangeID)
	}{
		{"other replicas", func(w *splitWorld, right rhumb.RangeID) {
			w.apply(SetReplicas{Range: right, Version: w.rng(right).Version, Replicas: []rhumb.NodeID{1, 2, 3, 4}}, 0)
		}},
		{"other primary", func(w *splitWorld, right rhumb.RangeID) {
			w.apply(Elect{Range: right, Version: w.rng(right).Version, Node: 2}, 0)
		}},
		{"a member is missing", func(w *splitWorld, right rhumb.RangeID) {
			r := w.rng(right)
			w.apply(AlterISR{Range: right, Epoch: r.Epoch, Version: r.Version, Members: []Member{{Node: 1, Boot: 1}, {Node: 2, Boot: 1}}}, 0)
		}},
		{"quarantined", func(w *splitWorld, right rhumb.RangeID) {
			w.apply(QuarantineReplica{Range: right, Node: 3}, 0)
		}},
		{"split", func(w *splitWorld, right rhumb.RangeID) {
			w.apply(PrepareSplit{right, w.rng(right).Version, right.Slot + 7, false}, 0)
		}},
		{"handover", func(w *splitWorld, right rhumb.RangeID) {
			w.apply(PrepareHandover{w.id, w.rng(w.id).Version, 2}, 0)
		}},
		{"leaving", func(w *splitWorld, right rhumb.RangeID) {
			w.apply(SetLeaving{w.id, w.rng(w.id).Version, []rhumb.NodeID{3}}, 0)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, right := newMergeWorld(t)
			tt.change(w, right)
			w.prepare(right, rhumb.Conflict)
			if w.s.WhyNotMerge(w.rng(w.id)) == "" {
				t.Error("no reason")
			}
		})
	}
}

// TestMergeNeedsVersion guards that a cluster that may have older programs merges nothing.
func TestMergeNeedsVersion(t *testing.T) {
	w, _ := newMergeWorld(t)
	old := *w.s
	old.version = rhumb.VersionBase
	for _, cmd := range []Command{PrepareMerge{Range: w.id}, CancelMerge{Range: w.id}, CompleteMerge{Range: w.id}} {
		if err := old.Admits(cmd); rhumb.KindOf(err) != rhumb.Incompatible {
			t.Errorf("%T: %v", cmd, err)
		}
	}
}

// TestMergedSlotsAreBounded guards that a range which took over as many others as it may takes over no more.
func TestMergedSlotsAreBounded(t *testing.T) {
	w, right := newMergeWorld(t)
	many := w.rng(w.id).Clone()
	for s := rhumb.Slot(1); s <= rhumb.MergedMax; s++ {
		many.Merged = append(many.Merged, many.ID.Slot+s)
	}
	if why := w.s.whyNotMerge(many, w.rng(right)); why == "" {
		t.Error("no bound")
	}
}
