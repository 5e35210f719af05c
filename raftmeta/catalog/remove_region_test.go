package catalog

import (
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// emptied returns two regions. The first is being removed, and its nodes are gone: only the last command of the removal is missing.
func emptied(t *testing.T) *State {
	t.Helper()
	s := New()
	other := registration(2, 1)
	other.Region = "r2"
	for _, cmd := range []Command{
		Init{Cluster: rhumb.UUID{9}, First: registration(1, 1)},
		other,
		StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, By: "ann", At: time.Unix(10, 0)},
		UpdateOperation{ID: 1, Version: 1, State: rhumb.OperationRunning, Steps: make([]rhumb.OperationStep, 4), Progress: rhumb.Progress{Done: 2, Total: 3}, At: time.Unix(20, 0)},
		ForgetNode{Node: 1, Boot: 1, Empty: true},
	} {
		s = mustApply(t, s, cmd)
	}
	return s
}

// TestRemovalEndsItsOperation applies what an operator may ask for around the last step of a removal, in any order. The region is removed for
// good or not at all: a cancellation right after the last step took the mark of the removed region, and no node could read the metadata.
func TestRemovalEndsItsOperation(t *testing.T) {
	remove := RemoveRegion{Region: 1, At: time.Unix(30, 0)}
	control := func(a OperationAction) Command { return ControlOperation{ID: 1, Action: a, At: time.Unix(40, 0)} }
	tests := []struct {
		name string
		// removed is whether the region is removed in the end, and refused what the last command is refused with.
		commands []Command
		removed  bool
		state    rhumb.OperationState
		refused  string
	}{
		{"removed", []Command{remove}, true, rhumb.OperationDone, ""},
		{"removed twice", []Command{remove, remove}, true, rhumb.OperationDone, ""},
		{"removed, then cancelled", []Command{remove, control(CancelOperation)}, true, rhumb.OperationDone, "is done already"},
		{"removed, then paused", []Command{remove, control(PauseOperation)}, true, rhumb.OperationDone, "is done already"},
		{"cancelled, then removed", []Command{control(CancelOperation), remove}, false, rhumb.OperationCancelled, "is not being removed"},
		{"paused, then removed", []Command{control(PauseOperation), remove}, true, rhumb.OperationDone, ""},
		{"paused, removed, then cancelled", []Command{control(PauseOperation), remove, control(CancelOperation)}, true, rhumb.OperationDone, "is done already"},
		{"paused, then cancelled", []Command{control(PauseOperation), control(CancelOperation)}, false, rhumb.OperationCancelled, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := emptied(t)
			var res Result
			for _, cmd := range test.commands {
				s, res, _ = s.Apply(cmd)
				if _, err := Decode(s.Encode()); err != nil {
					t.Fatalf("after %+v: %v", cmd, err)
				}
			}
			if err := res.Err(); (err == nil) != (test.refused == "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("the last command: %v, want %q", err, test.refused)
			}
			r, _ := s.Region(1)
			o, _ := s.Operation(1)
			if r.Removed != test.removed || (r.Into != 0) != test.removed || o.State != test.state {
				t.Errorf("the region is %+v, the operation %+v", r, o)
			}
			done := rhumb.Progress{Done: 3, Total: 3}
			if test.removed && (o.Progress != done || o.Steps[3].State != rhumb.OperationDone || !o.Ended.Equal(time.Unix(30, 0))) {
				t.Errorf("the operation ended as %+v", o)
			}
		})
	}
}

// TestRemovalOfEarlierBuild reads a state in which a region was removed and its operation was not ended yet: that cannot be cancelled either.
func TestRemovalOfEarlierBuild(t *testing.T) {
	earlier := &tx{State: *emptied(t), owner: new(owner)}
	earlier.removeRegion(1, 0)
	s := &earlier.State
	next, res, _ := s.Apply(ControlOperation{ID: 1, Action: CancelOperation, At: time.Unix(40, 0)})
	if err := next.Check(); err != nil || next != s || !strings.Contains(res.Err().Error(), "has removed its region already") {
		t.Errorf("%v: %v", res.Err(), err)
	}
	// The planner ends it.
	s = mustApply(t, s, UpdateOperation{ID: 1, Version: 2, State: rhumb.OperationDone, Steps: make([]rhumb.OperationStep, 4)})
	if o, _ := s.Operation(1); o.State != rhumb.OperationDone {
		t.Errorf("%+v", o)
	}
}

// TestCancelledRemovalKeepsDecommission cancels the removal of a region in which a node had been decommissioned before: that node still leaves,
// also if it started again meanwhile, and the others take copies again.
func TestCancelledRemovalKeepsDecommission(t *testing.T) {
	again := registration(2, 2)
	again.Node, again.Previous = 2, registration(2, 1).Nonce
	other := registration(3, 1)
	other.Region = "r2"
	s := New()
	for _, cmd := range []Command{
		Init{Cluster: rhumb.UUID{9}, First: registration(1, 1)},
		registration(2, 1), other,
		StartOperation{Kind: rhumb.OperationDecommission, Node: 2},
		UpdateOperation{ID: 1, Version: 1, State: rhumb.OperationDone, Steps: make([]rhumb.OperationStep, 2)},
		StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2},
		again,
	} {
		s = mustApply(t, s, cmd)
	}
	stored, err := Decode(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	s = mustApply(t, stored, ControlOperation{ID: 2, Action: CancelOperation})
	if first, _ := s.Node(1); first.Leaving || first.State != rhumb.NodeLive {
		t.Errorf("the other node is %+v", first)
	}
	if second, _ := s.Node(2); !second.Leaving || second.State != rhumb.NodeDecommissioning {
		t.Errorf("the node that was decommissioned before is %+v", second)
	}
	// A decommissioning that is cancelled later takes its own mark back, and the mark of the removal is forgotten.
	s = mustApply(t, s, StartOperation{Kind: rhumb.OperationDecommission, Node: 2})
	s = mustApply(t, s, ControlOperation{ID: 3, Action: CancelOperation})
	if n, _ := s.nodes.get(2); n.Leaving || n.leftBefore {
		t.Errorf("in the end it is %+v", n)
	}
}

// TestForceTakesPinsBack gives a region up whose node had a pinned vote: the pin would keep a place among the voters for a node that
// cannot return.
func TestForceTakesPinsBack(t *testing.T) {
	s := halfMoved(t)
	pinned := &tx{State: *s, owner: new(owner)}
	for _, id := range []uint64{1, 3} {
		n, _ := pinned.nodes.get(id)
		next := *n
		next.Voter, next.VotePinned = true, true
		pinned.putNode(&next)
	}
	lost := rangesOf(s, 1)[1:]
	give := RemoveRegion{Region: 1, Into: 2, Force: true, Lost: 2}
	for _, r := range lost {
		give.Restarts = append(give.Restarts, RangeCopies{r.ID, []rhumb.NodeID{3, 4}})
	}
	next := mustApply(t, &pinned.State, give)
	for n := range next.Nodes() {
		if n.VotePinned != (n.ID == 3) || n.Forgotten != (n.Region == 1) {
			t.Errorf("%s: pinned %v, forgotten %v", n.ID, n.VotePinned, n.Forgotten)
		}
	}
}

// TestRemovedNodesLeaveRoom counts the nodes of a cluster that has had many: those that were removed for good make room for others, up to
// a bound of all.
func TestRemovedNodesLeaveRoom(t *testing.T) {
	many := func(s *State, total, members int) *State {
		x := &tx{State: *s, owner: new(owner)}
		first, _ := x.nodes.get(1)
		for id := 2; id <= total; id++ {
			n := *first
			n.ID, n.Store, n.State, n.Forgotten = rhumb.NodeID(id), rhumb.UUID{1, byte(id), byte(id >> 8), 1}, rhumb.NodeFenced, id > members
			x.putNode(&n)
		}
		x.lastNode = rhumb.NodeID(total)
		return &x.State
	}
	tests := []struct {
		name           string
		program        string
		total, members int
		want           string
	}{
		{"room", testBinary, rhumb.NodesMax - 1, rhumb.NodesMax - 1, ""},
		{"full", testBinary, rhumb.NodesMax, rhumb.NodesMax, "`rhumb node rm`"},
		{"one was removed", testBinary, rhumb.NodesMax, rhumb.NodesMax - 1, ""},
		{"many were removed", testBinary, rhumb.NodesEverMax - 1, 3, ""},
		{"too many were removed", testBinary, rhumb.NodesEverMax, 3, "16384 nodes, which is the limit; move the data"},
		// Programs of the first version count all of them.
		{"first version", "old", rhumb.NodesMax, 3, "1024 nodes, which is the limit"},
	}
	for _, test := range tests {
		s := many(foundedBy(test.program), test.total, test.members)
		_, res, _ := s.Apply(registration(250, 1))
		if err := res.Err(); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// TestRegionOfRemovedNodes removes a region whose nodes were removed one by one, by force: that is refused while its ranges have no copy
// elsewhere, and giving the region up settles it.
func TestRegionOfRemovedNodes(t *testing.T) {
	s := halfMoved(t)
	for id := range rhumb.NodeID(2) {
		s = mustApply(t, s, ForgetNode{Node: id + 1, Boot: 1})
	}
	next, res, _ := s.Apply(RemoveRegion{Region: 1})
	if next != s || !strings.Contains(res.Err().Error(), "the only copies of 2 ranges") || !strings.Contains(res.Err().Error(), "rhumb unsafe-recover region r") {
		t.Errorf("removed although ranges have no copy left: %v", res.Err())
	}
	give := RemoveRegion{Region: 1, Into: 2, Force: true, Lost: 2}
	for _, r := range rangesOf(s, 1)[1:] {
		give.Restarts = append(give.Restarts, RangeCopies{r.ID, []rhumb.NodeID{3, 4}})
	}
	s = mustApply(t, s, give)
	for r := range s.Ranges() {
		if !s.IsLive(r.Primary) {
			t.Errorf("range %+v", r)
		}
	}
}
