package server

import (
	"context"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// operator is a node at which requests of operators arrive while metadata changes.
type operator struct {
	OperationsNode
	*node
	// meanwhile is called before each command is applied, with the number of the command.
	meanwhile func(proposed int)
	proposed  int
}

func (o *operator) State() *catalog.State { return o.node.State() }

func (o *operator) Linearize(ctx context.Context) (*catalog.State, error) {
	return o.node.Linearize(ctx)
}

func (o *operator) RangeInfo(ctx context.Context, n rhumb.NodeID, id rhumb.RangeID) (RangeInfo, error) {
	return o.node.RangeInfo(ctx, n, id)
}

func (o *operator) Propose(_ context.Context, cmd catalog.Command) (catalog.Result, *catalog.State, error) {
	o.proposed++
	o.meanwhile(o.proposed)
	res := o.apply(cmd)
	return res, o.State(), res.Err()
}

// startOperator returns the service of a cluster with five nodes in one region, and a table whose ranges have three copies.
func startOperator(t *testing.T) (*operator, *Operations) {
	o := &operator{node: &node{w: newWorld(), st: catalog.New()}, meanwhile: func(int) {}}
	o.mustApply(t, catalog.Init{Cluster: cluster, First: register(1)})
	for i := range byte(4) {
		o.mustApply(t, register(i+2))
	}
	o.mustApply(t, catalog.CreateTable{Name: "notes", Settings: rhumb.DefaultClassSettings()})
	return o, NewOperations(o)
}

// mustApply changes the metadata.
func (o *operator) mustApply(t *testing.T, cmd catalog.Command) catalog.Result {
	t.Helper()
	res := o.apply(cmd)
	if err := res.Err(); err != nil {
		t.Fatal(err)
	}
	return res
}

// rangesOf returns the ranges of which a node has a copy.
func (o *operator) rangesOf(id rhumb.NodeID) (out []*rhumb.Range) {
	for r := range o.State().Ranges() {
		if r.IsReplica(id) {
			out = append(out, r)
		}
	}
	return out
}

// move starts a move of the copy of a range on node 1 to a node that has none.
func (o *operator) move(t *testing.T, r *rhumb.Range, by string) rhumb.OperationID {
	t.Helper()
	for target := rhumb.NodeID(2); ; target++ {
		if !r.IsReplica(target) {
			return o.mustApply(t, catalog.StartOperation{Kind: rhumb.OperationMove, Range: r.ID, Node: 1, Target: target, By: by}).Operation
		}
	}
}

// TestDecommissionEndsBalance guards that an operator who removes a node need not wait for balance: its moves from the node are cancelled, also
// one that begins meanwhile. A move that the operator has started or paused is refused as before.
func TestDecommissionEndsBalance(t *testing.T) {
	o, s := startOperator(t)
	mine := o.rangesOf(1)
	moves := []rhumb.OperationID{o.move(t, mine[0], "balance")}
	o.meanwhile = func(proposed int) {
		if proposed == 1 {
			moves = append(moves, o.move(t, mine[1], "balance"))
		}
	}
	start := &rhumbpb.StartOperationRequest{Kind: uint32(rhumb.OperationDecommission), Node: 1}
	resp, err := s.StartOperation(t.Context(), start)
	if err != nil || rhumb.OperationKind(resp.GetOperation().GetKind()) != rhumb.OperationDecommission || o.proposed != 2 {
		t.Fatalf("after %d proposals: %v, %v", o.proposed, resp, err)
	}
	for _, id := range moves {
		if m, _ := o.State().Operation(id); m.State != rhumb.OperationCancelled {
			t.Errorf("the move %s of balance is %s", id, m.State)
		}
	}
	for name, by := range map[string]string{"of an operator": "ada", "that an operator has paused": "balance"} {
		o, s := startOperator(t)
		id := o.move(t, o.rangesOf(1)[0], by)
		if by == "balance" {
			o.mustApply(t, catalog.ControlOperation{ID: id, Action: catalog.PauseOperation})
		}
		if _, err := s.StartOperation(t.Context(), start); kindOf(t, err) != rhumb.Conflict || o.proposed != decideMost {
			t.Errorf("with a move %s, after %d proposals: %v", name, o.proposed, err)
		}
	}
}

// TestSplitOfChangedRange guards that a split is decided again when the record of the range changes before the command is applied, and is
// refused when it changes each time.
func TestSplitOfChangedRange(t *testing.T) {
	for _, changes := range []int{1, decideMost} {
		o, s := startOperator(t)
		id := o.rangesOf(1)[0].ID
		o.meanwhile = func(proposed int) {
			if r, _ := o.State().Range(id); proposed <= changes {
				// As balance does: another replica becomes the preferred primary.
				to := r.Replicas[0]
				if to == r.Preferred {
					to = r.Replicas[1]
				}
				o.mustApply(t, catalog.SetReplicas{Range: id, Version: r.Version, Replicas: r.Replicas, Preferred: to})
			}
		}
		resp, err := s.SplitRange(t.Context(), &rhumbpb.SplitRangeRequest{Range: api.EncodeRangeID(id)})
		if changes < decideMost {
			if err != nil || o.proposed != changes+1 || resp.GetRange().GetSlot() <= uint32(id.Slot) {
				t.Errorf("after %d proposals: %v, %v", o.proposed, resp, err)
			}
		} else if kindOf(t, err) != rhumb.Conflict || o.proposed != decideMost {
			t.Errorf("after %d proposals: %v", o.proposed, err)
		}
	}
}
