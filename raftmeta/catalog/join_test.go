package catalog

import (
	"fmt"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// registration returns the registration of a life of the node whose store has the given number.
func registration(store byte, boot rhumb.BootSeq) RegisterNode {
	return RegisterNode{
		Binary: testBinary, Store: rhumb.UUID{store}, Boot: boot, Nonce: uint64(store)<<8 | uint64(boot), Region: "r", Zone: "a", HasLocation: true,
		Addr: fmt.Sprintf("127.0.0.1:%d", store), HeartbeatAddr: "127.0.0.1:2", AdminAddr: "127.0.0.1:3",
	}
}

// threeNodes returns a catalog of three nodes, and a range that all of them hold.
func threeNodes(t *testing.T) (*State, rhumb.RangeID) {
	t.Helper()
	s := New()
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = 1
	for _, cmd := range []Command{
		Init{Cluster: rhumb.UUID{9}, First: registration(1, 1)},
		registration(2, 1), registration(3, 1),
		CreateTable{Name: "t", Settings: settings, Placements: []Placement{{Region: 1, Replicas: [][]rhumb.NodeID{{1, 2, 3}}}}},
	} {
		next, res, _ := s.Apply(cmd)
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		s = next
	}
	for r := range s.Ranges() {
		return s, r.ID
	}
	t.Fatal("the class has no range")
	return nil, rhumb.RangeID{}
}

// TestLearnerJoinsBesideADeadMember guards against a liveness bug that the model found. With the
// in-sync set at its minimum and one member dead, the primary cannot drop the dead member. If all
// members had to live, it could not add the learner that would let it do so either, and the range
// would stop until the dead node returns.
func TestLearnerJoinsBesideADeadMember(t *testing.T) {
	s, id := threeNodes(t)
	do := func(cmd Command) Result {
		t.Helper()
		next, res, _ := s.Apply(cmd)
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		s = next
		return res
	}
	do(FenceNode{Node: 3, Boot: 1})
	again := registration(3, 2)
	again.Node = 3
	do(again)
	do(FenceNode{Node: 2, Boot: 1})
	r, _ := s.Range(id)
	if len(r.InSync) != 2 || !r.IsInSync(2) {
		t.Fatalf("in sync are %v, want the dead node to stay at the minimum", r.InSync)
	}
	if r.LifeOf(1) != 1 || r.LifeOf(3) != 0 {
		t.Errorf("recorded lives are %v, want those of the members in which the range was made", r.Lives)
	}
	join := AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: []Member{{1, 1, true}, {2, 1, false}, {3, 2, true}}}
	do(join)
	r, _ = s.Range(id)
	if len(r.InSync) != 3 {
		t.Fatalf("in sync are %v", r.InSync)
	}
	if r.LifeOf(1) != 1 || r.LifeOf(2) != 0 || r.LifeOf(3) != 2 {
		t.Errorf("recorded lives are %v, want those that the primary vouched for", r.Lives)
	}
	do(AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: []Member{{1, 1, true}, {3, 2, true}}})

	// A member that joins must be live, in the life that the primary saw.
	r, _ = s.Range(id)
	for _, bad := range []Member{{2, 1, false}, {2, 7, false}} {
		_, res, _ := s.Apply(AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: []Member{{1, 1, false}, bad, {3, 2, false}}})
		if rhumb.KindOf(res.Err()) != rhumb.Conflict {
			t.Errorf("a dead node joined as %+v: %v", bad, res.Err())
		}
	}
	// A quarantined copy may be discarded within its life.
	do(QuarantineReplica{Range: id, Node: 3})
	r, _ = s.Range(id)
	do(AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: []Member{{1, 1, true}, {3, 2, true}}})
	if r, _ = s.Range(id); r.LifeOf(3) != 0 || r.LifeOf(1) != 1 {
		t.Errorf("recorded lives are %v with a quarantined member", r.Lives)
	}
}

// TestLateNotices guards that a repeated notice has no effect if it arrives after the next one. A
// late quarantine would discard the fresh copy, and a late readmission would make a damaged copy
// electable.
func TestLateNotices(t *testing.T) {
	s, id := threeNodes(t)
	do := func(c Command) {
		t.Helper()
		next, res, _ := s.Apply(c)
		if err := res.Err(); err != nil {
			t.Fatalf("%#v: %v", c, err)
		}
		s = next
	}
	r, _ := s.Range(id)
	first := QuarantineReplica{Range: id, Node: 3, Epoch: r.Epoch}
	do(first)
	readmission := ReadmitReplica{Range: id, Node: 3, Epoch: r.Epoch}
	do(readmission)
	if _, res, _ := s.Apply(first); rhumb.KindOf(res.Err()) != rhumb.Conflict {
		t.Errorf("a quarantine that was decided before the readmission: %v", res.Err())
	}
	r, _ = s.Range(id)
	do(QuarantineReplica{Range: id, Node: 3, Epoch: r.Epoch})
	if _, res, _ := s.Apply(readmission); rhumb.KindOf(res.Err()) != rhumb.Conflict {
		t.Errorf("a readmission that was decided before the second quarantine: %v", res.Err())
	}
}
