package catalog

import (
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestRecoverFromOneCopy: of three nodes, one is gone for good and one has begun a new life, so
// that nothing proves its disk intact. Only an operator may let the range continue from it, and the
// copy of the lost node takes part no more.
func TestRecoverFromOneCopy(t *testing.T) {
	s, id := threeNodes(t)
	do := func(cmd Command) *rhumb.Range {
		t.Helper()
		next, res, _ := s.Apply(cmd)
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		if s = next; s.Check() != nil {
			t.Fatal(s.Check())
		}
		r, _ := s.Range(id)
		return r
	}
	recover := func(n rhumb.NodeID) RecoverRange {
		r, _ := s.Range(id)
		return RecoverRange{Range: id, Version: r.Version, Node: n, End: 8, EndTime: 9, Known: 7}
	}
	refused := func(what string, n rhumb.NodeID) {
		t.Helper()
		if _, res, _ := s.Apply(recover(n)); rhumb.KindOf(res.Err()) != rhumb.Conflict {
			t.Errorf("%s: %v", what, res.Err())
		}
	}
	refused("all are well", 1)
	do(FenceNode{Node: 3, Boot: 1})
	do(FenceNode{Node: 2, Boot: 1})
	refused("the life of the one that is left is recorded", 1)
	again := registration(1, 2)
	again.Node = 1
	r := do(again)
	if len(r.InSync) != 2 || r.Primary != 1 {
		t.Fatalf("the record is %+v", r)
	}
	refused("the node is gone", 2)
	epoch := r.Epoch
	r = do(recover(1))
	want := rhumb.Recovery{Epoch: epoch + 1, Node: 1, Gone: []rhumb.NodeID{2, 3}, End: 8, EndTime: 9, Known: 7}
	if r.Epoch != epoch+1 || r.Primary != 1 || r.LifeOf(1) != 2 || !r.IsQuarantined(2) || len(r.InSync) != 2 ||
		r.Recovery == nil || !slices.Equal(r.Recovery.Gone, want.Gone) || r.Recovery.Epoch != want.Epoch || r.Recovery.End != 8 || r.Recovery.Known != 7 {
		t.Fatalf("the record is %+v, its recovery %+v", r, r.Recovery)
	}
	refused("it was done", 1)
	decoded, err := Decode(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if d, _ := decoded.Range(id); d.Recovery == nil || d.Recovery.EndTime != 9 || d.LifeOf(1) != 2 {
		t.Errorf("the record that was read back is %+v", d)
	}
	back := registration(2, 2)
	back.Node = 2
	if r = do(back); !r.IsQuarantined(2) {
		t.Error("a copy that was given up takes part again")
	}
}
