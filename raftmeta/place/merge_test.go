package place

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// mergeWorld is a region of four nodes with a table of two hash slots, the first of which
// was split in three.
type mergeWorld struct {
	*world
	ids   []rhumb.RangeID
	sizes map[rhumb.RangeID]RangeSize
	// stores is the number of stores of the second node, which tells which copies are in which if tells is set; apart is a range whose copy
	// is in another one than that of the range before it.
	stores uint32
	tells  bool
	apart  rhumb.RangeID
}

func newMergeWorld(t *testing.T) *mergeWorld {
	s := build(t, fourZones...)
	w := &mergeWorld{world: newWorld(t, apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 2)}))), sizes: map[rhumb.RangeID]RangeSize{}}
	first := rhumb.RangeID{Region: 1}
	for r := range w.s.Ranges() {
		first = r.ID
		break
	}
	for _, at := range []rhumb.Slot{first.Slot + 200, first.Slot + 100} {
		w.split(first, at, false)
	}
	for r := range w.s.Ranges() {
		w.ids = append(w.ids, r.ID)
		w.sizes[r.ID] = RangeSize{Range: r.ID, Bytes: 200 << 20}
	}
	return w
}

// split splits a range at once.
func (w *mergeWorld) split(id rhumb.RangeID, at rhumb.Slot, kept bool) {
	w.t.Helper()
	r, _ := w.s.Range(id)
	w.do(catalog.PrepareSplit{Range: id, Version: r.Version, At: at, Kept: kept})
	child, _ := w.s.Range(rhumb.RangeID{Region: id.Region, Slot: at})
	w.do(catalog.CompleteSplit{Range: child.ID, Epoch: child.Epoch})
}

// unite merges a range into the one before it at once.
func (w *mergeWorld) unite(id rhumb.RangeID) {
	w.t.Helper()
	right, _ := w.s.Range(id)
	left, _ := w.s.LeftOf(right)
	w.do(catalog.PrepareMerge{Range: left.ID, Version: left.Version, RightVersion: right.Version})
	w.complete()
}

// surveys returns the newest surveys of all nodes.
func (w *mergeWorld) surveys() *Surveys {
	var v Surveys
	for n := range w.s.Nodes() {
		x := Survey{From: n.ID}
		if n.ID == 2 {
			x.Stores, x.KnowsApart = w.stores, w.tells
			if r, ok := w.s.Range(w.apart); ok {
				x.Apart = []ApartCopy{{r.ID, r.Version}}
			}
		}
		for id, size := range w.sizes {
			if r, ok := w.s.Range(id); ok && r.Primary == n.ID {
				size.Range = id
				x.Ranges = append(x.Ranges, size)
			}
		}
		v.Add(w.now, x)
	}
	return &v
}

func (w *mergeWorld) wall() time.Time { return time.Unix(0, 0).Add(w.now) }

// merges looks for merges for a while, and returns the ranges of the operations that were
// started.
func (w *mergeWorld) merges(d time.Duration) (out []rhumb.RangeID) {
	w.t.Helper()
	for end := w.now + d; w.now < end; w.pass(sec) {
		for _, cmd := range w.p.Merges(w.now, w.wall(), w.s, w.surveys()) {
			w.do(cmd)
			out = append(out, cmd.(catalog.StartOperation).Range)
		}
	}
	return out
}

// TestMerges guards which ranges are merged, and when: two neighbours that have been
// small together for long enough, while nothing else is the matter. Each case changes one
// thing.
func TestMerges(t *testing.T) {
	const after = rhumb.RangeMergeAfterDefault
	small := RangeSize{Bytes: 10 << 20}
	tests := []struct {
		name   string
		change func(w *mergeWorld)
		wait   time.Duration
		want   bool
	}{
		{"small for long enough", func(*mergeWorld) {}, after + MergeEvery, true},
		{"not long enough", func(*mergeWorld) {}, after - sec, false},
		{"a shorter time", func(w *mergeWorld) { w.do(catalog.SetSetting{Name: rhumb.SettingRangeMergeAfter, Value: "20s"}) }, 30 * sec, true},
		{"never", func(w *mergeWorld) {
			w.do(catalog.SetSetting{Name: rhumb.SettingRangeMergeAfter, Value: rhumb.RangeMergeNever})
		}, 2 * after, false},
		{"too large together", func(w *mergeWorld) { w.sizes[w.ids[0]] = RangeSize{Bytes: MergeBytes(w.s) - 10<<20} }, 2 * after, false},
		{"just small enough", func(w *mergeWorld) { w.sizes[w.ids[0]] = RangeSize{Bytes: MergeBytes(w.s) - 10<<20 - 1} }, 2 * after, true},
		{"being filled", func(w *mergeWorld) { w.sizes[w.ids[1]] = RangeSize{Bytes: 1, WrittenRate: 200 << 10} }, 2 * after, false},
		{"size unknown", func(w *mergeWorld) { delete(w.sizes, w.ids[1]) }, 2 * after, false},
		{"a node has two stores and does not tell what is in which", func(w *mergeWorld) { w.stores = 2 }, 2 * after, false},
		{"a node has both copies in one of its stores", func(w *mergeWorld) { w.stores, w.tells = 2, true }, 2 * after, true},
		{"a node has them in two stores, and another one has room", func(w *mergeWorld) { w.stores, w.tells, w.apart = 2, true, w.ids[1] }, 2 * after, true},
		{"a node has them in two stores, and no other one has room", func(w *mergeWorld) {
			w.stores, w.tells, w.apart = 2, true, w.ids[1]
			r, _ := w.s.Range(w.ids[1])
			for id := rhumb.NodeID(1); id <= 4; id++ {
				if !r.IsReplica(id) {
					w.do(catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: append(slices.Clone(r.Replicas), id)})
				}
			}
		}, 2 * after, false},
		{"a node is down", func(w *mergeWorld) { w.fence(4) }, 2 * after, false},
		{"kept", func(w *mergeWorld) {
			w.unite(w.ids[1])
			next := rhumb.RangeID{Region: w.ids[1].Region, Slot: w.ids[1].Slot + 1}
			w.split(w.ids[0], next.Slot, true)
			w.sizes[next] = small
		}, 2 * after, false},
		{"a copy is damaged", func(w *mergeWorld) {
			r, _ := w.s.Range(w.ids[1])
			w.do(catalog.QuarantineReplica{Range: r.ID, Node: r.Replicas[2], Epoch: r.Epoch})
		}, 2 * after, false},
		{"a move", func(w *mergeWorld) {
			r, _ := w.s.Range(w.ids[0])
			to := rhumb.NodeID(1)
			for r.IsReplica(to) {
				to++
			}
			w.do(catalog.StartOperation{Kind: rhumb.OperationMove, Range: r.ID, Node: r.Replicas[1], Target: to, By: "ann", At: w.wall()})
		}, 2 * after, false},
		{"a decommission", func(w *mergeWorld) {
			w.do(catalog.StartOperation{Kind: rhumb.OperationReplace, Node: 4, Target: 3, By: "ann", At: w.wall()})
		}, 2 * after, false},
	}
	for _, tt := range tests {
		w := newMergeWorld(t)
		// The third range stays large, so the first two are the only pair.
		w.sizes[w.ids[0]], w.sizes[w.ids[1]] = small, small
		tt.change(w)
		if got := w.merges(tt.wait); len(got) > 0 != tt.want || tt.want && (len(got) != 1 || got[0] != w.ids[1]) {
			t.Errorf("%s: merges of %v were started", tt.name, got)
		}
	}
}

// TestMergesNeedOneSpell guards that a pair which grows in between is small for a whole
// new spell, and that the smallest pair comes first, one at a time; that a class keeps
// the ranges that it was created with; and that an operation that was cancelled is not
// begun again soon.
func TestMergesNeedOneSpell(t *testing.T) {
	const after = rhumb.RangeMergeAfterDefault
	w := newMergeWorld(t)
	w.sizes[w.ids[0]], w.sizes[w.ids[1]], w.sizes[w.ids[2]] = RangeSize{Bytes: 30 << 20}, RangeSize{Bytes: 20 << 20}, RangeSize{Bytes: 10 << 20}
	w.merges(after - 2*MergeEvery)
	w.sizes[w.ids[1]] = RangeSize{Bytes: 300 << 20}
	w.merges(2 * MergeEvery)
	w.sizes[w.ids[1]] = RangeSize{Bytes: 20 << 20}
	if got := w.merges(after - 2*MergeEvery); len(got) > 0 {
		t.Fatalf("merged %v although they were large in between", got)
	}
	if got := w.merges(4 * MergeEvery); !slices.Equal(got, w.ids[2:3]) {
		t.Fatalf("merges of %v were started, want the smallest pair, %v", got, w.ids[2])
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.PauseOperation, At: w.wall()})
	if got := w.merges(2 * after); len(got) > 0 {
		t.Errorf("while one is paused: %v", got)
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.CancelOperation, At: w.wall()})
	// All three ranges were busy, so a new spell begins.
	w.do(catalog.SetSetting{Name: rhumb.SettingRangeMergeAfter, Value: "1m"})
	if got := w.merges(time.Minute + 2*MergeEvery); !slices.Equal(got, w.ids[1:2]) {
		t.Errorf("after one was cancelled: %v, want the other pair", got)
	}
	w.do(catalog.ControlOperation{ID: 2, Action: catalog.CancelOperation, At: w.wall()})
	if got := w.merges(5 * time.Minute); len(got) > 0 {
		t.Errorf("begun again at once: %v", got)
	}
	// As many ranges as the class was created with.
	for _, id := range w.ids[1:3] {
		w.unite(id)
	}
	for id := range w.sizes {
		w.sizes[id] = RangeSize{Bytes: 1}
	}
	if got := w.merges(3 * after); len(got) > 0 {
		t.Errorf("the last ranges of the class are merged: %v", got)
	}
}

// complete does what the primaries of two ranges do that are marked for a merge.
func (w *mergeWorld) complete() {
	for _, r := range slices.Collect(w.s.Ranges()) {
		if r.TakesOver != 0 {
			w.do(catalog.CompleteMerge{Range: r.ID, Epoch: r.Epoch, Merge: r.TakesOver})
		}
	}
}

// TestMergeOperation guards that an operation brings the copies and the primary of the
// right range to those of the left one, one at a time, in spite of balance, and then
// merges the two.
func TestMergeOperation(t *testing.T) {
	w := newMergeWorld(t)
	for id := range w.sizes {
		w.sizes[id] = RangeSize{Range: id, Bytes: 1}
	}
	// The copy of the second range on its primary moves to the fourth node.
	right, _ := w.s.Range(w.ids[1])
	to := rhumb.NodeID(1)
	for right.IsReplica(to) {
		to++
	}
	w.do(catalog.StartOperation{Kind: rhumb.OperationMove, Range: right.ID, Node: right.Primary, Target: to, By: "ann", At: w.wall()})
	w.run(1)
	left, _ := w.s.Range(w.ids[0])
	if right, _ = w.s.Range(right.ID); slices.Equal(left.Replicas, right.Replicas) || left.Primary == right.Primary {
		t.Fatalf("%+v and %+v differ in nothing", left, right)
	}
	w.do(catalog.StartOperation{Kind: rhumb.OperationMerge, Range: right.ID, By: "cluster", At: w.wall()})
	steps := map[int]bool{}
	for i := 0; !w.operation(2).State.IsOver(); i++ {
		if i > 100 {
			t.Fatalf("it does not end: %+v", w.operation(2))
		}
		w.plan()
		for _, cmd := range slices.Concat(w.p.BalancePrimaries(w.s), w.p.BalanceCopies(w.now, w.wall(), w.s, w.surveys())) {
			w.do(cmd)
		}
		w.follow(never)
		w.safe()
		steps[slices.IndexFunc(w.operation(2).Steps, func(x rhumb.OperationStep) bool { return x.State == rhumb.OperationRunning })] = true
		w.pass(sec)
		w.complete()
	}
	whole, _ := w.s.Range(w.ids[0])
	if whole.Preferred != left.Preferred {
		t.Errorf("balance has changed the preferred primary to %s meanwhile", whole.Preferred)
	}
	if o := w.operation(2); o.State != rhumb.OperationDone || !whole.Holds(w.ids[1]) || !steps[0] || o.Progress.Done != o.Progress.Total {
		t.Errorf("it ended as %+v after the steps %v, with %+v", o, steps, whole)
	}
	w.settle()
}

// TestMergeOfTwoStores guards that the copy of a node which has the two ranges in different stores moves away and back before they are merged,
// whatever the report of the node says in between, and that no copy is missing meanwhile.
func TestMergeOfTwoStores(t *testing.T) {
	w := newMergeWorld(t)
	for id := range w.sizes {
		w.sizes[id] = RangeSize{Range: id, Bytes: 1}
	}
	right, _ := w.s.Range(w.ids[1])
	victim := right.Replicas[0]
	w.do(catalog.StartOperation{Kind: rhumb.OperationMerge, Range: right.ID, By: "cluster", At: w.wall()})
	// gone is set once the copy has left the node, which makes the next one in the right store. The report lists the copy for a while longer.
	gone, reported := false, right.Version
	measures := Measures{
		Size: func(rhumb.RangeID) (int64, bool) { return 1, true },
		Apart: func(id rhumb.NodeID, r *rhumb.Range) (apart, sure bool) {
			return id == victim && reported > 0, r.Version == reported
		},
	}
	waited := map[string]bool{}
	for i := 0; !w.operation(1).State.IsOver(); i++ {
		if i > 100 {
			t.Fatalf("it does not end: %+v", w.operation(1))
		}
		for _, cmd := range w.p.Operations(w.now, w.wall(), w.s, measures) {
			w.s, _, _ = w.s.Apply(cmd)
		}
		waits := w.operation(1).Waits
		for _, text := range []string{"in two of its stores", "next report is awaited"} {
			waited[text] = waited[text] || strings.Contains(waits, text)
		}
		w.follow(never)
		w.safe()
		if r, ok := w.s.Range(right.ID); ok && !r.IsReplica(victim) {
			gone = true
		}
		// Nodes report every few seconds.
		if r, ok := w.s.Range(right.ID); ok && i%5 == 4 {
			if reported = r.Version; gone {
				reported = 0
			}
		}
		w.pass(sec)
		if r, ok := w.s.Range(right.ID); ok && r.Ends != 0 && !gone {
			t.Fatal("the ranges are merged although a node cannot unite its copies")
		}
		w.complete()
	}
	if whole, _ := w.s.Range(w.ids[0]); !gone || !waited["in two of its stores"] || !waited["next report is awaited"] || !whole.Holds(right.ID) || !whole.IsReplica(victim) {
		t.Errorf("gone %v, waited for %v, %+v; %+v", gone, waited, whole, w.operation(1))
	}
	w.settle()
}

// TestMergeIsGivenUp guards that an operation ends when its ranges have grown, are gone
// or split, or when it takes too long; and that it waits for a primary that has begun.
func TestMergeIsGivenUp(t *testing.T) {
	for why, change := range map[string]func(w *mergeWorld){
		"have grown to 200 MiB": func(w *mergeWorld) { w.sizes[w.ids[1]] = RangeSize{Bytes: 200 << 20} },
		"being split": func(w *mergeWorld) {
			r, _ := w.s.Range(w.ids[1])
			w.do(catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: r.ID.Slot + 1})
		},
		"not done within 10m0s": func(w *mergeWorld) {
			r, _ := w.s.Range(w.ids[1])
			w.do(catalog.QuarantineReplica{Range: r.ID, Node: r.Replicas[2], Epoch: r.Epoch})
			w.step()
			w.pass(MergeWithin + sec)
		},
	} {
		w := newMergeWorld(t)
		w.sizes[w.ids[0]], w.sizes[w.ids[1]] = RangeSize{Bytes: 1}, RangeSize{Bytes: 1}
		w.do(catalog.StartOperation{Kind: rhumb.OperationMerge, Range: w.ids[1], By: "cluster", At: w.wall()})
		change(w)
		if w.step(); w.operation(1).State != rhumb.OperationFailed || !strings.Contains(w.operation(1).Error, why) {
			t.Errorf("%s: %+v", why, w.operation(1))
		}
	}
	w := newMergeWorld(t)
	w.sizes[w.ids[0]], w.sizes[w.ids[1]] = RangeSize{Bytes: 1}, RangeSize{Bytes: 1}
	left, _ := w.s.Range(w.ids[0])
	right, _ := w.s.Range(w.ids[1])
	w.do(catalog.StartOperation{Kind: rhumb.OperationMerge, Range: right.ID, By: "cluster", At: w.wall()})
	w.do(catalog.PrepareMerge{Range: left.ID, Version: left.Version, RightVersion: right.Version})
	w.sizes[w.ids[1]] = RangeSize{Bytes: 200 << 20}
	if w.step(); w.operation(1).State != rhumb.OperationRunning || !strings.Contains(w.operation(1).Waits, "makes one range") {
		t.Errorf("while the primary merges: %+v", w.operation(1))
	}
}

// step plans operations once, with the sizes of the world.
func (w *mergeWorld) step() {
	w.t.Helper()
	size := func(id rhumb.RangeID) (int64, bool) { return w.sizes[id].Bytes, true }
	for _, cmd := range w.p.Operations(w.now, w.wall(), w.s, Measures{Size: size}) {
		w.do(cmd)
	}
}
