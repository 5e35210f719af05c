package catalog

import (
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// splitWorld is a catalog with three nodes and one range of many slots, which the tests split.
type splitWorld struct {
	t  *testing.T
	s  *State
	id rhumb.RangeID
}

func newSplitWorld(t *testing.T) *splitWorld {
	t.Helper()
	s := founded()
	for n := rhumb.NodeID(2); n <= 4; n++ {
		var res Result
		r := registration(byte(n), 1)
		r.Region = "fra"
		if s, res, _ = s.Apply(r); res.Err() != nil {
			t.Fatal(res.Err())
		}
	}
	c := rhumb.DefaultClassSettings()
	c.Replicas, c.MinInSync, c.HashSlots = 3, 2, 1
	s, res, _ := s.Apply(CreateClass{c, []Placement{{Region: 1, Replicas: [][]rhumb.NodeID{{1, 2, 3}}}}})
	if res.Err() != nil {
		t.Fatal(res.Err())
	}
	b, _ := s.HashBlock(1, res.Class)
	return &splitWorld{t, s, rhumb.RangeID{Region: 1, Slot: b.First}}
}

// apply applies a command and checks the kind of the refusal, and all invariants.
func (w *splitWorld) apply(cmd Command, want rhumb.Kind) *rhumb.Range {
	w.t.Helper()
	next, res, _ := w.s.Apply(cmd)
	if got := rhumb.KindOf(res.Err()); got != want {
		w.t.Fatalf("%T: %v, want kind %v", cmd, res.Err(), want)
	}
	w.s = next
	if err := w.s.Check(); err != nil {
		w.t.Fatal(err)
	}
	return res.Range
}

func (w *splitWorld) rng(id rhumb.RangeID) *rhumb.Range {
	w.t.Helper()
	r, ok := w.s.Range(id)
	if !ok {
		w.t.Fatalf("no range %s", id)
	}
	return r
}

// TestSplit guards the records of a split from its reservation to its end.
func TestSplit(t *testing.T) {
	w := newSplitWorld(t)
	old := w.rng(w.id)
	at := w.id.Slot + 100
	child := rhumb.RangeID{Region: 1, Slot: at}
	// Slots that do not divide the range.
	w.apply(PrepareSplit{w.id, old.Version, w.id.Slot, false}, rhumb.InvalidArgument)
	w.apply(PrepareSplit{w.id, old.Version, old.LastSlot() + 1, false}, rhumb.InvalidArgument)
	w.apply(PrepareSplit{w.id, old.Version + 1, at, false}, rhumb.Conflict)
	w.apply(PrepareSplit{child, 1, at + 1, false}, rhumb.NotFound)
	r := w.apply(PrepareSplit{w.id, old.Version, at, false}, 0)
	if r.ID != child || r.Birth != old.Epoch+1 || r.Epoch != r.Birth || r.Primary != old.Primary || !slices.Equal(r.InSync, old.InSync) || r.LastSlot() != old.LastSlot() {
		t.Fatalf("reserved %+v for %+v", r, old)
	}
	// The slots are still those of the old range.
	if got, _ := w.s.RangeOf(rhumb.RangeID{Region: 1, Slot: at + 5}); got.ID != w.id {
		t.Fatalf("slot %d is in %s", at+5, got.ID)
	}
	// A repetition changes nothing; another split and whatever moves copies wait.
	if again := w.apply(PrepareSplit{w.id, old.Version, at, false}, 0); again.Version != r.Version {
		t.Fatalf("reserved twice: %+v", again)
	}
	w.apply(PrepareSplit{w.id, w.rng(w.id).Version, at + 1, false}, rhumb.Conflict)
	w.apply(PrepareSplit{child, r.Version, at + 1, false}, rhumb.Conflict)
	w.apply(PrepareHandover{w.id, w.rng(w.id).Version, 2}, rhumb.Conflict)
	w.apply(SetLeaving{w.id, w.rng(w.id).Version, []rhumb.NodeID{3}}, rhumb.Conflict)
	w.apply(SetReplicas{Range: child, Version: r.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4}}, rhumb.Conflict)
	// A learner may come: a range whose members died needs one. It gets both parts.
	w.apply(SetReplicas{Range: w.id, Version: w.rng(w.id).Version, Replicas: []rhumb.NodeID{1, 2, 3, 4}}, 0)
	w.apply(SetReplicas{Range: w.id, Version: w.rng(w.id).Version, Replicas: []rhumb.NodeID{1, 2, 3}}, rhumb.Conflict)
	// An epoch that is over completes nothing.
	w.apply(CompleteSplit{child, r.Epoch - 1}, rhumb.Conflict)
	w.apply(CompleteSplit{child, r.Epoch}, 0)
	left, right := w.rng(w.id), w.rng(child)
	if left.LastSlot() != at-1 || right.Birth != 0 || right.LastSlot() != old.LastSlot() {
		t.Fatalf("after the split %+v and %+v", left, right)
	}
	for slot := w.id.Slot; slot <= old.LastSlot(); slot++ {
		if got, ok := w.s.RangeOf(rhumb.RangeID{Region: 1, Slot: slot}); !ok || (got.ID == child) != (slot >= at) {
			t.Fatalf("slot %d is in %+v", slot, got)
		}
	}
	w.apply(CompleteSplit{child, r.Epoch}, 0)
	// Both parts can be split again, down to single slots.
	w.apply(PrepareSplit{w.id, left.Version, w.id.Slot + 1, false}, 0)
	one := rhumb.RangeID{Region: 1, Slot: w.id.Slot + 1}
	w.apply(CompleteSplit{one, w.rng(one).Epoch}, 0)
	if r := w.rng(w.id); r.Last != 0 {
		t.Fatalf("a range of one slot ends at %d", r.Last)
	}
	w.apply(PrepareSplit{w.id, w.rng(w.id).Version, w.id.Slot + 1, false}, rhumb.InvalidArgument)
}

// TestSplitFollowsElections guards that the reserved range stays in an epoch above that of the range that is to be split,
// whoever becomes primary, and that members that leave one leave the other.
func TestSplitFollowsElections(t *testing.T) {
	w := newSplitWorld(t)
	child := w.apply(PrepareSplit{w.id, w.rng(w.id).Version, w.id.Slot + 9, false}, 0).ID
	birth := w.rng(child).Birth
	for range 3 {
		old := w.rng(w.id)
		heir := old.InSync[0]
		if heir == old.Primary {
			heir = old.InSync[1]
		}
		w.apply(Elect{Range: w.id, Version: old.Version, Node: heir}, 0)
		if r := w.rng(child); r.Epoch <= w.rng(w.id).Epoch || r.Primary != heir || r.Birth != birth {
			t.Fatalf("the reserved range is %+v", r)
		}
	}
	// A primary that takes a member out does so for both.
	old := w.rng(w.id)
	left := slices.DeleteFunc(slices.Clone(old.InSync), func(n rhumb.NodeID) bool { return n == 3 })
	var members []Member
	for _, n := range left {
		members = append(members, Member{Node: n, Boot: 1})
	}
	w.apply(AlterISR{Range: w.id, Epoch: old.Epoch, Version: old.Version, Members: members}, 0)
	if r := w.rng(child); r.IsInSync(3) {
		t.Fatalf("the reserved range counts on %v", r.InSync)
	}
	// A dead primary loses both roles to one node.
	w.apply(FenceNode{w.rng(w.id).Primary, 1}, 0)
	if a, b := w.rng(w.id), w.rng(child); a.Primary != b.Primary || b.Epoch <= a.Epoch || !w.s.IsLive(a.Primary) {
		t.Fatalf("%+v and %+v", a, b)
	}
}

// TestSplitOfDamagedCopy guards that a copy which is quarantined while its range is split is quarantined in both: the copy
// of the new range would be empty once the damaged one is discarded.
func TestSplitOfDamagedCopy(t *testing.T) {
	w := newSplitWorld(t)
	child := w.apply(PrepareSplit{w.id, w.rng(w.id).Version, w.id.Slot + 9, false}, 0).ID
	n := w.rng(w.id).Primary
	w.apply(QuarantineReplica{Range: w.id, Node: n}, 0)
	for _, id := range []rhumb.RangeID{w.id, child} {
		if r := w.rng(id); !r.IsQuarantined(n) || r.Primary == n || r.IsInSync(n) {
			t.Errorf("range %s: %+v", id, r)
		}
	}
	// Only the primary says that its range is born.
	r := w.rng(child)
	for from := rhumb.NodeID(1); from <= 4; from++ {
		if err := w.s.MayPropose(from, CompleteSplit{child, r.Epoch}); (err == nil) != (from == r.Primary) {
			t.Errorf("%s: %v", from, err)
		}
	}
}

// join brings a node into the in-sync set of the range that is split.
func (w *splitWorld) join(n rhumb.NodeID) {
	w.t.Helper()
	r := w.rng(w.id)
	if !r.IsReplica(n) {
		w.apply(SetReplicas{Range: w.id, Version: r.Version, Replicas: append(slices.Clone(r.Replicas), n)}, 0)
	}
	w.alter(append(slices.Clone(w.rng(w.id).InSync), n))
}

// alter sets the in-sync set of the range that is split.
func (w *splitWorld) alter(set []rhumb.NodeID) {
	w.t.Helper()
	r := w.rng(w.id)
	c := AlterISR{Range: w.id, Epoch: r.Epoch, Version: r.Version}
	for _, n := range set {
		c.Members = append(c.Members, Member{Node: n, Boot: 1})
	}
	w.apply(c, 0)
}

// TestHeirCanDivide guards that a range which is being split passes to a node that can divide it. A copy that joined after the
// reservation is no member of the new range, so under such a primary the split, and every handover, would wait for ever.
func TestHeirCanDivide(t *testing.T) {
	w := newSplitWorld(t)
	w.join(4)
	w.apply(Elect{Range: w.id, Version: w.rng(w.id).Version, Node: 2}, 0)
	w.alter([]rhumb.NodeID{2, 3, 4})
	child := w.apply(PrepareSplit{w.id, w.rng(w.id).Version, w.id.Slot + 9, false}, 0).ID
	// Node 1 has the lowest number, which decides among nodes at equal distance, and it counts in sync for the old range only.
	w.join(1)
	if r := w.rng(child); r.IsInSync(1) || !r.IsReplica(1) {
		t.Fatalf("the reserved range is %+v", r)
	}
	w.apply(FenceNode{2, 1}, 0)
	old, r := w.rng(w.id), w.rng(child)
	if old.Primary == 1 || r.Primary != old.Primary || r.Epoch <= old.Epoch {
		t.Errorf("%s is primary of the range, %s in epoch %d of the reserved one; the epoch of the old one is %d", old.Primary, r.Primary, r.Epoch, old.Epoch)
	}
}

// TestCancelSplit guards that only the primary of the present epoch takes a reserved record away, that its slots stay where they
// are, and that a later split of the same slots is newer than the cancelled one in everything that nodes compare.
func TestCancelSplit(t *testing.T) {
	w := newSplitWorld(t)
	last := w.rng(w.id).LastSlot()
	at := w.id.Slot + 9
	child := w.apply(PrepareSplit{w.id, w.rng(w.id).Version, at, false}, 0).ID
	first := w.rng(child)
	// Elections move the epochs of both.
	w.apply(Elect{Range: w.id, Version: w.rng(w.id).Version, Node: 2}, 0)
	w.apply(Elect{Range: w.id, Version: w.rng(w.id).Version, Node: 1}, 0)
	old, r := w.rng(w.id), w.rng(child)
	w.apply(CancelSplit{child, old.Epoch, first.Version}, rhumb.Conflict)
	w.apply(CancelSplit{child, old.Epoch - 1, r.Version}, rhumb.Conflict)
	w.apply(CancelSplit{w.id, old.Epoch, old.Version}, rhumb.Conflict)
	for from := rhumb.NodeID(1); from <= 4; from++ {
		if err := w.s.MayPropose(from, CancelSplit{child, old.Epoch, r.Version}); (err == nil) != (from == old.Primary) {
			t.Errorf("%s: %v", from, err)
		}
	}
	for range 2 {
		w.apply(CancelSplit{child, old.Epoch, r.Version}, 0)
		if _, ok := w.s.Range(child); ok || w.rng(w.id).LastSlot() != last {
			t.Fatalf("the range ends at %s instead of %s, or the reserved one is there", w.rng(w.id).LastSlot(), last)
		}
	}
	w.apply(CompleteSplit{child, r.Epoch}, rhumb.NotFound)
	// Whatever waited for the split goes on, and the range can be split again.
	w.apply(SetLeaving{w.id, w.rng(w.id).Version, []rhumb.NodeID{3}}, 0)
	w.apply(SetLeaving{w.id, w.rng(w.id).Version, nil}, 0)
	again := w.apply(PrepareSplit{w.id, w.rng(w.id).Version, at, false}, 0)
	if again.Version <= r.Version || again.Birth <= r.Allocated {
		t.Errorf("the second reservation %+v is not newer than the first %+v", again, r)
	}
	w.apply(CompleteSplit{child, again.Epoch}, 0)
	w.apply(CancelSplit{child, w.rng(w.id).Epoch, w.rng(child).Version}, rhumb.Conflict)
}

// TestSplitShrinksWithElections guards that a member which leaves the in-sync set with an election leaves that of the reserved range in
// the same command: both count on the same members until the range is divided.
func TestSplitShrinksWithElections(t *testing.T) {
	w := newSplitWorld(t)
	child := w.apply(PrepareSplit{w.id, w.rng(w.id).Version, w.id.Slot + 9, false}, 0).ID
	w.apply(Elect{Range: w.id, Version: w.rng(w.id).Version, Node: 2, InSync: []rhumb.NodeID{2, 3}}, 0)
	if old, r := w.rng(w.id), w.rng(child); !slices.Equal(old.InSync, r.InSync) || r.Primary != 2 {
		t.Errorf("in sync are %v, and %v for the reserved range, whose primary is %s", old.InSync, r.InSync, r.Primary)
	}
}
