package catalog

import (
	"errors"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/rhumbdb/rhumb"
)

// preparedState has a range with primary n1 in epoch 1 and a handover to n2 prepared in epoch 2.
func preparedState(t *testing.T) (*State, rhumb.RangeID) {
	s, id := threeNodes(t)
	s, res, _ := s.Apply(PrepareHandover{Range: id, Version: 1, Target: 2})
	if err := res.Err(); err != nil {
		t.Fatal(err)
	}
	return s, id
}

// TestHandoverRefusals checks that a refused handover tells what is in its way.
func TestHandoverRefusals(t *testing.T) {
	s, id := preparedState(t)
	expectRefusal(t, "to a second node", s, PrepareHandover{Range: id, Version: 2, Target: 3}, rhumb.Conflict, "n2", "cancel")
	expectRefusal(t, "to a stranger", s, PrepareHandover{Range: id, Version: 2, Target: 9}, rhumb.InvalidArgument, "n9 is not in sync")
	expectRefusal(t, "of an old record", s, PrepareHandover{Range: id, Version: 1, Target: 3}, rhumb.Conflict, "version 1", "version 2")
	expectRefusal(t, "of no range", s, PrepareHandover{Target: 3}, rhumb.NotFound, "0/0")
	expectRefusal(t, "adopted in another epoch", s, AdoptHandover{Range: id, Epoch: 3}, rhumb.Conflict, "epoch 3", "epoch 1")
	expectRefusal(t, "adopted of no range", s, AdoptHandover{Epoch: 3}, rhumb.NotFound, "0/0")
	expectRefusal(t, "adopted by another life", s, AdoptHandover{Range: id, Epoch: 2, Boot: 7}, rhumb.Conflict, "life 7", "life 1")
	expectRefusal(t, "cancelled late", s, CancelHandover{Range: id, Version: 1}, rhumb.Conflict, "version 1", "version 2")
	expectRefusal(t, "cancelled of no range", s, CancelHandover{}, rhumb.NotFound, "0/0")
	drained, _, _ := s.Apply(Batch{[]Command{CancelHandover{Range: id, Version: 2}, SetNodeState{Node: 3, Boot: 1, State: rhumb.NodeDraining}}})
	r, _ := drained.Range(id)
	// n3 left the in-sync set when it began to drain.
	expectRefusal(t, "to a draining node", drained, PrepareHandover{Range: id, Version: r.Version, Target: 3}, rhumb.InvalidArgument, "n3")
}

// TestHandoverEndsWithItsTarget checks that nothing leaves a handover prepared to a node that must not take over, and
// that elections end it.
func TestHandoverEndsWithItsTarget(t *testing.T) {
	restarted := registration(2, 2)
	restarted.Node = 2
	for name, cmd := range map[string]Command{
		"fenced":        FenceNode{Node: 2, Boot: 1},
		"draining":      SetNodeState{Node: 2, Boot: 1, State: rhumb.NodeDraining},
		"quarantined":   QuarantineReplica{Range: rhumb.RangeID{Region: 1}, Node: 2},
		"elected":       Elect{Range: rhumb.RangeID{Region: 1}, Version: 2, Node: 3},
		"out of sync":   AlterISR{Range: rhumb.RangeID{Region: 1}, Epoch: 1, Version: 2, Members: []Member{{1, 1, true}, {3, 1, true}}},
		"restarted":     restarted,
		"primary fell":  FenceNode{Node: 1, Boot: 1},
		"in a set of 2": Batch{[]Command{FenceNode{Node: 3, Boot: 1}, FenceNode{Node: 2, Boot: 1}}},
	} {
		s, id := preparedState(t)
		s, res, _ := s.Apply(cmd)
		if err := res.Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r, _ := s.Range(id)
		if r.Prepared != nil || s.Check() != nil {
			t.Errorf("%s: %+v, %v", name, r.Prepared, s.Check())
		}
		expectRefusal(t, name, s, AdoptHandover{Range: id, Epoch: 2}, rhumb.Conflict, "no handover in epoch 2")
	}
}

// TestHandoverByItsTarget checks that only the target of a handover may say that it took over.
func TestHandoverByItsTarget(t *testing.T) {
	s, id := preparedState(t)
	for from, ok := range map[rhumb.NodeID]bool{1: false, 2: true, 3: false} {
		if err := s.MayPropose(from, AdoptHandover{Range: id, Epoch: 2}); (err == nil) != ok {
			t.Errorf("by %s: %v", from, err)
		}
	}
}

// TestDecodeChecksHandover checks that an impossible handover in stored bytes counts as damage.
func TestDecodeChecksHandover(t *testing.T) {
	s, id := preparedState(t)
	good := s.Encode()
	back, err := Decode(good)
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := back.Range(id); r.Prepared == nil || *r.Prepared != (rhumb.Handover{Epoch: 2, Target: 2}) {
		t.Fatalf("decoded as %+v", r.Prepared)
	}
	for name, damage := range map[string]func(w *wireHandover){
		"an epoch that has begun": func(w *wireHandover) { w.Epoch = 1 },
		"an epoch not allocated":  func(w *wireHandover) { w.Epoch = 3 },
		"to the primary":          func(w *wireHandover) { w.Target = 1 },
		"to a stranger":           func(w *wireHandover) { w.Target = 9 },
		"of no range":             func(w *wireHandover) { w.Slot = 7 },
	} {
		var w wireState
		if err := cbor.Unmarshal(good, &w); err != nil {
			t.Fatal(err)
		}
		damage(&w.Handovers[0])
		if _, err := Decode(encodeWire(w)); !errors.Is(err, rhumb.ErrCorrupt) {
			t.Errorf("%s: %v, want kind corrupt", name, err)
		}
	}
}
