package place

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// crowd returns a region of five nodes whose first three hold 40 ranges: more than an operation moves at a time.
func crowd(t *testing.T) *world {
	t.Helper()
	s := build(t, three()[:3]...)
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 40)})))
	for i := 3; i < 5; i++ {
		w.do(catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{byte(i + 1)}, Boot: 1, Region: "fra", Zone: "d"})
	}
	w.pass(sec)
	return w
}

// TestMoveAvoidsFullNode decommissions a node while the disk of one of the others is full: no copy arrives there. The copies that were begun
// there held up the whole operation for ever. They are taken to another node after a while, and none is placed there any more.
func TestMoveAvoidsFullNode(t *testing.T) {
	w := crowd(t)
	full := func(id rhumb.NodeID) bool { return id == 4 }
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	begun, waited := 0, false
	for end := w.now + CopyStalledAfter + 2*time.Minute; !w.operation(1).State.IsOver() && w.now < end; w.pass(sec) {
		w.plan()
		w.follow(full)
		w.safe()
		arriving := holds(w.s, 4)
		begun = max(begun, arriving)
		waited = waited || w.now > CopyStalledAfter/2 && arriving >= movesMax
	}
	if begun == 0 || !waited {
		t.Fatalf("at most %d copies were placed on the full node, and they held up the operation: %v", begun, waited)
	}
	if o := w.operation(1); o.State != rhumb.OperationDone || holds(w.s, 1) != 0 || holds(w.s, 4) != 0 {
		t.Errorf("%+v, n1 holds %d, n4 holds %d", o, holds(w.s, 1), holds(w.s, 4))
	}
	// Later it may have room again. What is remembered goes with the last reason for it.
	w.pass(CopyAvoidFor)
	w.plan()
	if w.p.isStalled(w.now, 4) || len(w.p.arrivals) != 0 {
		t.Errorf("%d nodes are remembered, and n4 is avoided: %v", len(w.p.arrivals), w.p.isStalled(w.now, 4))
	}
}

// TestSlowCopiesStay keeps copies that arrive slowly, and those that wait for their turn on the same node; and a copy whose node an operator
// chose, however long it makes no progress.
func TestSlowCopiesStay(t *testing.T) {
	w := crowd(t)
	w.do(catalog.SetNodeState{Node: 5, Boot: 1, State: rhumb.NodeDraining})
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	// One copy at a time makes progress, and begins anew when it is nearly done: only the first time counts.
	share := 0.0
	measures := Measures{Arrived: func(node rhumb.NodeID, id rhumb.RangeID) (float64, bool) { return share, node == 4 && id.Slot == 0 }}
	step := func() {
		for _, cmd := range w.p.Operations(w.now, time.Unix(0, 0).Add(w.now), w.s, measures) {
			w.s, _, _ = w.s.Apply(cmd)
		}
		w.pass(sec)
	}
	for step(); share < 0.9; share += 0.001 {
		step()
	}
	if w.p.isStalled(w.now, 4) || holds(w.s, 4) != movesMax {
		t.Fatalf("after %v of progress n4 is avoided, or holds %d", w.now, holds(w.s, 4))
	}
	share = 0
	for end := w.now + CopyStalledAfter; w.now <= end+sec; share = min(share+0.002, 0.89) {
		step()
	}
	if !w.p.isStalled(w.now, 4) || holds(w.s, 4) != movesMax || !strings.Contains(w.operation(1).Waits, "no copy that n4 receives has made progress for 10m, and no other node") {
		t.Errorf("a copy that begins anew makes no progress: avoided %v, n4 holds %d, %q", w.p.isStalled(w.now, 4), holds(w.s, 4), w.operation(1).Waits)
	}
	// Copies that do not arrive take no place of others.
	if r, _ := w.s.Range(rhumb.RangeID{Region: 1}); w.p.awaits(w.now, w.s, r, 4) {
		t.Error("the copy counts as one that arrives")
	}
	chosen := crowd(t)
	chosen.do(catalog.StartOperation{Kind: rhumb.OperationMove, Range: rhumb.RangeID{Region: 1}, Node: 1, Target: 4, By: "ann", At: time.Unix(0, 0)})
	for end := CopyStalledAfter + time.Minute; chosen.now < end; chosen.pass(sec) {
		chosen.plan()
		chosen.follow(func(id rhumb.NodeID) bool { return id == 4 })
	}
	if r, _ := chosen.s.Range(rhumb.RangeID{Region: 1}); !r.IsReplica(4) || r.IsReplica(5) || !strings.Contains(chosen.operation(1).Waits, "no copy that n4 receives") {
		t.Errorf("replicas %v, and it waits for %q", r.Replicas, chosen.operation(1).Waits)
	}
}

// TestBalanceGivesUpCopiesThatStall moves a copy for balance to a node where it makes no progress. The move is cancelled, and balance avoids the node.
func TestBalanceGivesUpCopiesThatStall(t *testing.T) {
	w := crowd(t)
	w.do(catalog.StartOperation{Kind: rhumb.OperationMove, Range: rhumb.RangeID{Region: 1}, Node: 1, Target: 4, By: balancer, At: time.Unix(0, 0)})
	for end := CopyStalledAfter + time.Minute; w.now < end; w.pass(sec) {
		w.plan()
		w.follow(func(id rhumb.NodeID) bool { return id == 4 })
	}
	if o := w.operation(1); o.State != rhumb.OperationCancelled || !strings.Contains(o.Error, "no copy that n4 receives has made progress") {
		t.Errorf("the move to a node that receives nothing is %s: %q", o.State, o.Error)
	}
	// n4 and n5 are empty, and n4 is avoided as long as its disk is full or nothing arrived there.
	size := func(*rhumb.Range) (RangeSize, bool) { return RangeSize{Bytes: 64 << 20}, true }
	all, _, _ := PlanMoves(w.s, time.Time{}, size, rhumb.LocalRegion, BalancePlanMax)
	some, _, _ := PlanMoves(w.s, time.Time{}, size, rhumb.LocalRegion, BalancePlanMax, 4)
	to4 := func(x Move) bool { return x.To == 4 }
	if !slices.ContainsFunc(all, to4) || slices.ContainsFunc(some, to4) || len(some) == 0 {
		t.Errorf("moves %+v; without n4 %+v", all, some)
	}
	var e Evidence
	e.Add(w.now, Report{From: 4, Boot: 1, Unfit: true})
	e.Add(w.now, Report{From: 5, Boot: 1, Suspects: []Suspect{{Node: 1, Boot: 1}}})
	if got := e.ListUnfit(w.now); !slices.Equal(got, []rhumb.NodeID{4}) {
		t.Errorf("unfit are %v, want n4", got)
	}
}

// TestBalanceGivesUpMovesThatLostTheirPurpose replaces a node by one that balance is about to move copies of other nodes to. The replacement gives
// it all copies that it can have; the moves would wait for a further node, and hold the places of other moves.
func TestBalanceGivesUpMovesThatLostTheirPurpose(t *testing.T) {
	w := grow(t, 4)
	w.do(catalog.StartOperation{Kind: rhumb.OperationMove, Range: rhumb.RangeID{Region: 1}, Node: 3, Target: 4, By: balancer, At: time.Unix(0, 0)})
	w.do(catalog.StartOperation{Kind: rhumb.OperationReplace, Node: 1, Target: 4, By: "ann", At: time.Unix(0, 0)})
	w.run(2)
	if o := w.run(1); o.State != rhumb.OperationCancelled || !strings.Contains(o.Error, "no other node can take a copy") {
		t.Errorf("the move is %s: %q", o.State, o.Error)
	}
	if r, _ := w.s.Range(rhumb.RangeID{Region: 1}); !slices.Equal(r.Replicas, []rhumb.NodeID{2, 3, 4}) {
		t.Errorf("replicas %v", r.Replicas)
	}
}

// TestBlockedRangesHoldUpNoOthers decommissions a node of four. The ranges of one table have a copy on each and cannot move; they come first, and
// there are more of them than move at a time. Those of the other table move all the same.
func TestBlockedRangesHoldUpNoOthers(t *testing.T) {
	s := build(t, fourZones...)
	s = apply(t, s, Complete(s, catalog.CreateTable{Name: "everywhere", Settings: settings(4, 20)}))
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 20)})))
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	for range 60 {
		w.plan()
		w.follow(never)
		w.safe()
		w.pass(sec)
	}
	for r := range w.s.Ranges() {
		class, _ := w.s.Class(r.Class)
		if r.IsReplica(1) != (class.Settings.Replicas == 4) {
			t.Errorf("range %s, %d copies: replicas %v", r.ID, class.Settings.Replicas, r.Replicas)
		}
	}
	if o := w.operation(1); o.State != rhumb.OperationRunning || o.Progress.Total-o.Progress.Done != 20 || !strings.Contains(o.Waits, "no other node can take a copy: 3 of 4") {
		t.Errorf("%+v", o)
	}
}

// TestReturnsSkipFullNode lets ranges return to a node on whose disk no copy arrives: they are taken back after a while, still belong to the
// node, and return later.
func TestReturnsSkipFullNode(t *testing.T) {
	w, had := replaced(t)
	w.revive(1)
	round := func(slow func(rhumb.NodeID) bool) {
		w.plan()
		for _, cmd := range w.p.Returns(w.now, w.s) {
			w.do(cmd)
		}
		w.follow(slow)
		w.pass(sec)
	}
	full := func(id rhumb.NodeID) bool { return id == 1 }
	began := 0
	for end := w.now + 2*w.p.config.FailbackMax; began == 0 && w.now < end; {
		round(full)
		began = holds(w.s, 1)
	}
	for end := w.now + CopyStalledAfter + 10*sec; w.now < end; {
		round(full)
	}
	if began == 0 || holds(w.s, 1) != 0 {
		t.Fatalf("%d copies began on the full node, and %d are still there", began, holds(w.s, 1))
	}
	for _, id := range had {
		if r, _ := w.s.Range(id); r.Former != 1 {
			t.Errorf("the former node of range %s is %s", id, r.Former)
		}
	}
	for end := w.now + CopyAvoidFor + 5*time.Minute; w.now < end; {
		round(never)
	}
	if home := w.homes(1); !slices.Equal(home, had) {
		t.Errorf("%v belong to n1, want %v", home, had)
	}
}
