package node

import (
	"fmt"
	"testing"
)

// TestLastMemberServes guards docs/replication.md#rule-one-answer. Of ranges with three copies one node stops, so that two
// are in sync, and then one of these is lost permanently. The last one, whose life is recorded, is
// elected alone, and the ranges accept writes again once the stopped node is back.
func TestLastMemberServes(t *testing.T) {
	nodes := startRegion(t)
	// A fourth node has no vote: the metadata group survives its loss and one more.
	nodes = append(nodes, startNode(t, t.TempDir(), "singapore", "d", nodes[0].Addr()))
	awaitReady(t, nodes...)
	table := createTable(t, nodes[0], "flights", 3)
	awaitInSync(t, nodes[0], 3)
	seen, lost, away := nodes[0], nodes[1], nodes[3]
	kv := kvClient(t, seen)
	gone := lost.Identity().Node
	stopped := away.Identity().Node
	away.Close()
	await(t, "two in sync whose lives are recorded", func() bool {
		st := seen.State()
		for r := range st.Ranges() {
			if r.IsReplica(stopped) && len(r.InSync) != 2 {
				return false
			}
			for _, n := range r.InSync {
				if d, ok := st.Node(n); !ok || r.LifeOf(n) != d.Boot {
					return false
				}
			}
		}
		return true
	})
	const keys = 60
	for i := range keys {
		put(t, kv, table.Id, fmt.Sprintf("key-%d", i), "acknowledged")
	}
	alone := 0
	for r := range seen.State().Ranges() {
		if r.Primary == gone && r.IsReplica(stopped) {
			alone++
		}
	}
	if alone == 0 {
		t.Fatal("no range is left with one member")
	}
	lost.Close()
	await(t, "the ranges have another primary", func() bool {
		for r := range seen.State().Ranges() {
			if r.Primary == gone {
				return false
			}
		}
		return true
	})
	startAgain(t, away, seen)
	for i := range keys {
		name := fmt.Sprintf("key-%d", i)
		if got := get(t, kv, table.Id, name); got != "acknowledged" {
			t.Errorf("%s is %q", name, got)
		}
		put(t, kv, table.Id, name, "after")
	}
}
