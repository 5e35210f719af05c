package server

import (
	"context"
	"slices"
	"strings"
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
	// afterwards is called after each command is applied, before the state is read that Propose returns.
	afterwards func()
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
	o.afterwards()
	return res, o.State(), res.Err()
}

// startOperator returns the service of a cluster with five nodes in one region, and a table whose ranges have three copies.
func startOperator(t *testing.T) (*operator, *Operations) {
	o := &operator{node: &node{w: newWorld(), st: catalog.New()}, meanwhile: func(int) {}, afterwards: func() {}}
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

// TestHandoverOverAtOnce guards that the answer to a handover that nodes carried out at once has the record with the handover: without it,
// the request would seem to have found the node primary already, and done nothing.
func TestHandoverOverAtOnce(t *testing.T) {
	o, s := startOperator(t)
	r := o.rangesOf(1)[0]
	to := r.InSync[slices.IndexFunc(r.InSync, func(n rhumb.NodeID) bool { return n != r.Primary })]
	o.afterwards = func() {
		if now, _ := o.State().Range(r.ID); now.Prepared != nil {
			o.carryOut(t, r.ID)
		}
	}
	q := &rhumbpb.HandOverRangeRequest{Range: api.EncodeRangeID(r.ID), Node: uint32(to)}
	resp, err := s.HandOverRange(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := o.State().Range(r.ID); now.Primary != to {
		t.Fatalf("nobody carried it out: %+v", now)
	}
	if got := api.DecodeRange(resp.GetRange()); got.Primary != r.Primary || got.Prepared == nil || got.Prepared.Target != to {
		t.Errorf("the answer is %+v", got)
	}
	if resp, err = s.HandOverRange(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if got := api.DecodeRange(resp.GetRange()); got.Primary != to || got.Prepared != nil {
		t.Errorf("the answer of a node that is primary already is %+v", got)
	}
}

// carryOut plays the target of a handover that is prepared.
func (o *operator) carryOut(t *testing.T, id rhumb.RangeID) {
	t.Helper()
	r, _ := o.State().Range(id)
	target, _ := o.State().Node(r.Prepared.Target)
	o.mustApply(t, catalog.AdoptHandover{Range: id, Epoch: r.Prepared.Epoch, Boot: target.Boot})
}

// touch changes the record of a range and leaves its roles alone.
func (o *operator) touch(t *testing.T, id rhumb.RangeID) {
	t.Helper()
	r, _ := o.State().Range(id)
	at := slices.IndexFunc(r.InSync, func(n rhumb.NodeID) bool { return n != r.Primary })
	r = o.mustApply(t, catalog.PrepareHandover{Range: id, Version: r.Version, Target: r.InSync[at]}).Range
	o.mustApply(t, catalog.CancelHandover{Range: id, Version: r.Version})
}

// TestHandoverOfChangedRange guards that a handover and a fail-back are decided again when the record of the range changes before the command is
// applied, and that a record which changes each time is an error that says so.
func TestHandoverOfChangedRange(t *testing.T) {
	for _, changes := range []int{1, decideMost} {
		o, s := startOperator(t)
		first := o.rangesOf(1)[0]
		id, from := first.ID, first.Primary
		to := first.InSync[slices.IndexFunc(first.InSync, func(n rhumb.NodeID) bool { return n != from })]
		o.meanwhile = func(proposed int) {
			if proposed <= changes {
				o.touch(t, id)
			}
		}
		_, err := s.HandOverRange(t.Context(), &rhumbpb.HandOverRangeRequest{Range: api.EncodeRangeID(id), Node: uint32(to)})
		if r, _ := o.State().Range(id); changes < decideMost && (err != nil || r.Prepared == nil || r.Prepared.Target != to || r.Preferred != to) {
			t.Errorf("after %d proposals: %v, %+v", o.proposed, err, r)
		}
		if changes == decideMost && (kindOf(t, err) != rhumb.Conflict || o.proposed != decideMost) {
			t.Errorf("after %d proposals: %v", o.proposed, err)
		}

		o, s = startOperator(t)
		first, _ = o.State().Range(id)
		o.mustApply(t, catalog.PrepareHandover{Range: id, Version: first.Version, Target: to})
		o.carryOut(t, id)
		o.meanwhile = func(proposed int) {
			if proposed <= changes {
				o.touch(t, id)
			}
		}
		back, err := s.FailBack(t.Context(), &rhumbpb.FailBackRequest{Node: uint32(from)})
		if err != nil {
			t.Fatal(err)
		}
		moved, stays := len(back.Prepared), len(back.Blocked)
		if changes < decideMost && (moved != 1 || stays != 0 || o.proposed != changes+1) || changes == decideMost && (moved != 0 || stays != 1 || o.proposed != decideMost) {
			t.Errorf("after %d proposals: %v", o.proposed, back)
		}
	}
}

// TestRefusedHandover guards that a handover which the metadata refuses leaves the preferred primary as it is: fail-back would move the range later.
func TestRefusedHandover(t *testing.T) {
	o, s := startOperator(t)
	r := o.rangesOf(1)[0]
	to := r.InSync[slices.IndexFunc(r.InSync, func(n rhumb.NodeID) bool { return n != r.Primary })]
	o.mustApply(t, catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: r.ID.Slot + 8})
	_, err := s.HandOverRange(t.Context(), &rhumbpb.HandOverRangeRequest{Range: api.EncodeRangeID(r.ID), Node: uint32(to)})
	if kindOf(t, err) != rhumb.Conflict || !strings.Contains(err.Error(), "being split") {
		t.Errorf("a handover of a range that is being split: %v", err)
	}
	if now, _ := o.State().Range(r.ID); now.Preferred != r.Preferred || now.Prepared != nil {
		t.Errorf("the record is %+v", now)
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
