package place

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Tests of the nodes that no plan puts a copy on: those with full disks, and those that drain.

// TestPlansAvoidFullDisks decommissions a node, and loses one, while the disk of another node is full as it has reported. No copy begins there, and
// the operations say which disk is full when no other node is left.
func TestPlansAvoidFullDisks(t *testing.T) {
	w := crowd(t)
	w.p.ObserveDisks(w.now, []rhumb.NodeID{4})
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	for range 200 {
		w.plan()
		w.follow(never)
		w.safe()
		if got := holds(w.s, 4); got > 0 {
			t.Fatalf("%d copies were placed on n4, whose disk is full", got)
		}
		w.pass(sec)
	}
	if o := w.operation(1); o.State != rhumb.OperationDone || holds(w.s, 5) != 40 {
		t.Fatalf("%+v, n5 holds %d", o, holds(w.s, 5))
	}
	// Nobody but n4 could take the copies of a dead node. They wait, with the reason, until it has room.
	w.fence(2)
	for range 60 {
		w.pass(sec)
		w.plan()
		w.follow(never)
	}
	var repair *rhumb.Operation
	for o := range w.s.Operations() {
		if o.Kind == rhumb.OperationRepair {
			repair = o
		}
	}
	if repair == nil || holds(w.s, 4) != 0 || !strings.Contains(repair.Waits, "no other node can take a copy, and the disk of n4 is full: it has 2 of 3") {
		t.Fatalf("n4 holds %d, the repair is %+v", holds(w.s, 4), repair)
	}
	w.p.ObserveDisks(w.now, nil)
	for range 60 {
		w.pass(sec)
		w.plan()
		w.follow(never)
	}
	if o := w.operation(repair.ID); o.State != rhumb.OperationDone || holds(w.s, 4) != 40 || holds(w.s, 2) != 0 {
		t.Errorf("when n4 has room: %+v, n4 holds %d", o, holds(w.s, 4))
	}
}

// TestCopiesLeaveFullDisk fills the disk of a node while copies arrive there. They wait for a minute, because an operator may make room, and
// are then given up for copies on another node; they waited for ten minutes, since nothing but their silence told.
func TestCopiesLeaveFullDisk(t *testing.T) {
	w := crowd(t)
	full := func(id rhumb.NodeID) bool { return id == 4 }
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	w.plan()
	begun := holds(w.s, 4)
	w.p.ObserveDisks(w.now, []rhumb.NodeID{4})
	at, said := w.now, false
	for w.now < at+CopyFullAfter-sec {
		w.plan()
		w.follow(full)
		w.pass(sec)
		w.p.ObserveDisks(w.now, []rhumb.NodeID{4})
		said = said || strings.Contains(w.operation(1).Waits, "the disk of n4 is full")
	}
	if got := holds(w.s, 4); begun == 0 || got != begun || !said {
		t.Fatalf("%d copies had begun on n4 and %d are there after a minute; the reason was named: %v", begun, got, said)
	}
	for end := w.now + time.Minute; !w.operation(1).State.IsOver() && w.now < end; w.pass(sec) {
		w.plan()
		w.follow(full)
		w.safe()
	}
	if o := w.operation(1); o.State != rhumb.OperationDone || holds(w.s, 4) != 0 {
		t.Errorf("%+v, n4 holds %d", o, holds(w.s, 4))
	}
}

// TestChosenTargetIsFull moves a copy to a node that an operator named and whose disk is full. The copy does not begin, and the operation
// names the disk.
func TestChosenTargetIsFull(t *testing.T) {
	w := crowd(t)
	w.p.ObserveDisks(w.now, []rhumb.NodeID{4})
	w.do(catalog.StartOperation{Kind: rhumb.OperationMove, Range: rhumb.RangeID{Region: 1}, Node: 1, Target: 4, By: "ann", At: time.Unix(0, 0)})
	for range 3 {
		w.plan()
		w.follow(never)
	}
	if o := w.operation(1); holds(w.s, 4) != 0 || o.Waits != "the disk of n4 is full" {
		t.Fatalf("n4 holds %d: %+v", holds(w.s, 4), o)
	}
	w.p.ObserveDisks(w.now, nil)
	if o := w.run(1); o.State != rhumb.OperationDone || holds(w.s, 4) != 1 {
		t.Errorf("when it has room: %+v, n4 holds %d", o, holds(w.s, 4))
	}
}

// TestNewRangesAvoidFullDisks places the ranges of new tables, of new regions and of inserts on other nodes than those with full disks, if there
// are enough. A table is better on such a node than refused.
func TestNewRangesAvoidFullDisks(t *testing.T) {
	s := build(t, append(three()[:3], spec{"fra", "d", 0})...)
	table := catalog.CreateTable{Name: "t", Settings: settings(3, 12)}
	uses := func(ps []catalog.Placement, id rhumb.NodeID) bool {
		return slices.ContainsFunc(ps, func(p catalog.Placement) bool {
			return slices.ContainsFunc(p.Replicas, func(set []rhumb.NodeID) bool { return slices.Contains(set, id) })
		})
	}
	for _, tt := range []struct {
		full []rhumb.NodeID
		uses bool
	}{{nil, true}, {[]rhumb.NodeID{2}, false}, {[]rhumb.NodeID{1, 2}, true}} {
		got := Complete(s, table, tt.full...).(catalog.CreateTable).Placements
		if len(got) != 1 || uses(got, 2) != tt.uses {
			t.Errorf("with the full nodes %v, n2 is used: %v (want %v), %d regions", tt.full, uses(got, 2), tt.uses, len(got))
		}
	}
	s = apply(t, s, Complete(s, table))
	for _, first := range []rhumb.NodeID{1, 2} {
		got := Complete(s, catalog.OpenSlot{Node: first, Class: 1}, 2).(catalog.OpenSlot).Replicas
		if len(got) != 3 || got[0] != first || slices.Contains(got, 2) != (first == 2) {
			t.Errorf("a slot of %s is on %v, and the disk of n2 is full", first, got)
		}
	}
	s = apply(t, s, catalog.AddRegion{Name: "iad", Location: rhumb.Point{Lat: 1}})
	for i, zone := range []string{"a", "b", "c", "d"} {
		s = apply(t, s, catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{90, byte(i)}, Boot: 1, Region: "iad", Zone: zone})
	}
	for _, cmd := range MissingBlocks(s, 6) {
		if ps := cmd.(catalog.EnsureRegionBlocks).Placements; len(ps) != 1 || uses(ps, 6) || !uses(ps, 5) {
			t.Errorf("the new region is placed on %+v, and the disk of n6 is full", ps)
		}
	}
}

// TestFullReports lists the nodes that report full disks, until their reports are old or withdrawn.
func TestFullReports(t *testing.T) {
	var e Evidence
	e.Add(0, Report{From: 4, Boot: 1, Unfit: true, Full: true})
	e.Add(0, Report{From: 2, Boot: 1, Unfit: true, Full: true})
	e.Add(0, Report{From: 3, Boot: 1, Unfit: true})
	if got := e.ListFull(ReportKeep); !slices.Equal(got, []rhumb.NodeID{2, 4}) {
		t.Errorf("full are %v, want n2 and n4", got)
	}
	e.Add(sec, Report{From: 4, Boot: 1})
	if got := e.ListFull(ReportKeep); !slices.Equal(got, []rhumb.NodeID{2}) {
		t.Errorf("after n4 has withdrawn its report: %v", got)
	}
	if got := e.ListFull(ReportKeep + 1); len(got) != 0 {
		t.Errorf("an old report counts: %v", got)
	}
}

// TestHomecomingAvoidsFullDisks brings the copies of a region home after the removal of the region was cancelled, and not to a node whose disk is full.
func TestHomecomingAvoidsFullDisks(t *testing.T) {
	w := emptiedRegion(t)
	size := func(*rhumb.Range) (RangeSize, bool) { return RangeSize{}, true }
	moves, _, _ := PlanMoves(w.s, time.Time{}, size, 1, BalancePlanMax, 1)
	if len(moves) == 0 || slices.ContainsFunc(moves, func(m Move) bool { return m.To == 1 }) {
		t.Errorf("the moves are %+v, and the disk of n1 is full", moves)
	}
}

// TestRemovalPassesDrainingNode removes a region while a node of the other one drains, and a fourth node could take its copies. The removal waited
// for the end of the drain. It waits as long as for a dead node now, so that a restart costs no copies, and the copies that are one too
// many go when the drain ends.
func TestRemovalPassesDrainingNode(t *testing.T) {
	w := twoRegions(t)
	w.do(catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{77}, Boot: 1, Region: "iad", Zone: "d"})
	w.pass(sec)
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, At: time.Unix(0, 0)})
	w.plan()
	drained := rhumb.NoNode
	for r := range w.s.Ranges() {
		if r.ID.Region == 1 {
			drained = r.Replicas[len(r.Replicas)-1]
		}
	}
	w.do(catalog.SetNodeState{Node: drained, Boot: 1, State: rhumb.NodeDraining})
	w.p.Observe(w.now, w.s)
	copies := func() (count int) {
		for r := range w.s.Ranges() {
			if r.ID.Region == 1 {
				count += len(r.Replicas)
			}
		}
		return count
	}
	begun := copies()
	for end := w.now + DefaultConfig().ReplaceAfter - sec; w.now < end; w.pass(sec) {
		w.plan()
		w.follow(never)
		if copies() > begun {
			t.Fatalf("%d copies %v after the beginning of the drain, and %d before", copies(), w.now, begun)
		}
	}
	o := w.operation(1)
	if o.State != rhumb.OperationRunning || !strings.Contains(o.Waits, "does not count while that node drains") {
		t.Fatalf("during a short drain: %+v", o)
	}
	if o := w.run(1); o.State != rhumb.OperationDone || inRegion(w.s, 1) != 0 {
		t.Errorf("during a long drain %d copies are left in the region: %+v", inRegion(w.s, 1), o)
	}
	if n, _ := w.s.Node(drained); n.State != rhumb.NodeDraining {
		t.Errorf("%s is %s", drained, n.State)
	}
	w.do(catalog.SetNodeState{Node: drained, Boot: 1, State: rhumb.NodeLive})
	w.settle()
}

// TestWhyNotReplaceAcrossRegions refuses the replacement of a node with copies of tables that survive the loss of a region, if the nodes that stay
// would be in too few regions because others leave too. Both operations began, and waited for each other.
func TestWhyNotReplaceAcrossRegions(t *testing.T) {
	s := buildNew(t, spec{"aaa", "a", 0}, spec{"bbb", "a", 10}, spec{"ccc", "a", 30})
	s = apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: surviving(3, 2)}))
	s = apply(t, s, catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{44}, Boot: 1, Region: "ccc", Zone: "b"})
	if why := WhyNotReplace(s, 3, 4); why != "" {
		t.Fatalf("the first replacement: %s", why)
	}
	s = apply(t, s, catalog.StartOperation{Kind: rhumb.OperationReplace, Node: 3, Target: 4, At: time.Unix(0, 0)})
	if why := WhyNotReplace(s, 4, 3); !strings.Contains(why, "without n4 and the nodes that leave already, the copies of t would not survive the loss of a region") {
		t.Errorf("replacing the node that replaces: %q", why)
	}
}
