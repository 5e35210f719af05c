package catalog

import (
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestLearnerJoinsBesideADeadMember guards a liveness bug that the model found: with the in-sync set at its minimum and one
// of it dead, the primary can neither drop the dead member nor, if all members had to live, add the learner that would
// let it. The range would stand still until the dead node returns.
func TestLearnerJoinsBesideADeadMember(t *testing.T) {
	s := New()
	do := func(cmd Command) Result {
		t.Helper()
		next, res, _ := s.Apply(cmd)
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		s = next
		return res
	}
	register := func(store byte, boot rhumb.BootSeq) RegisterNode {
		return RegisterNode{
			Store: rhumb.UUID{store}, Boot: boot, Nonce: uint64(store)<<8 | uint64(boot), Region: "r", Zone: "a", HasLocation: true,
			Addr: "127.0.0.1:1", HeartbeatAddr: "127.0.0.1:2", AdminAddr: "127.0.0.1:3",
		}
	}
	do(Init{Cluster: rhumb.UUID{9}, First: register(1, 1)})
	do(register(2, 1))
	do(register(3, 1))
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = 1
	table := do(CreateTable{Name: "t", Settings: settings, Placements: []Placement{{Region: 1, Replicas: [][]rhumb.NodeID{{1, 2, 3}}}}})
	block, ok := s.HashBlock(1, table.Class)
	if !ok {
		t.Fatal("the class has no hash slots")
	}
	id := rhumb.RangeID{Region: 1, Slot: block.First}
	do(FenceNode{Node: 3, Boot: 1})
	again := register(3, 2)
	again.Node = 3
	do(again)
	do(FenceNode{Node: 2, Boot: 1})
	r, _ := s.Range(id)
	if len(r.InSync) != 2 || !r.IsInSync(2) {
		t.Fatalf("in sync are %v, want the dead node to stay at the minimum", r.InSync)
	}
	join := AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: []Member{{1, 1}, {2, 1}, {3, 2}}}
	do(join)
	r, _ = s.Range(id)
	if len(r.InSync) != 3 {
		t.Fatalf("in sync are %v", r.InSync)
	}
	do(AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: []Member{{1, 1}, {3, 2}}})

	// Who joins must live, in the life that the primary saw.
	r, _ = s.Range(id)
	for _, bad := range []Member{{2, 1}, {2, 7}} {
		_, res, _ := s.Apply(AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: []Member{{1, 1}, bad, {3, 2}}})
		if rhumb.KindOf(res.Err()) != rhumb.Conflict {
			t.Errorf("a dead node joined as %+v: %v", bad, res.Err())
		}
	}
}
