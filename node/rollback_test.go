package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// rollbackKeys is the number of values written after the fencing.
const rollbackKeys = 76

// leads makes a node the leader of the metadata group.
func leads(t *testing.T, n *Node, others ...*Node) {
	t.Helper()
	await(t, "the node leads the metadata", func() bool {
		for _, o := range others {
			if m := o.member.Load(); m != nil {
				_ = m.group.StepAside(t.Context())
			}
		}
		return n.member.Load().group.IsLeader()
	})
}

// fenced reports whether another node is fenced according to a node's copy of the metadata.
func fenced(n *Node, other rhumb.NodeID) bool {
	d, ok := n.State().Node(other)
	return ok && d.State == rhumb.NodeFenced
}

// TestFencingOutlivesRollback fences a member of all in-sync sets. One of the two voters that
// stored this entry, the metadata leader, then returns with an older copy of its disk. It and the
// fenced member are a majority of the voters, and neither knows of the writes in between. They must
// not elect a leader without the third voter.
func TestFencingOutlivesRollback(t *testing.T) {
	nodes, table := startThree(t)
	awaitVoters(t, nodes...)
	old := copyOf(t, nodes[0])
	nodes[0].Close()
	nodes[0] = startAgain(t, nodes[0], nodes[1])
	awaitReady(t, nodes...)
	awaitVoters(t, nodes...)
	awaitInSync(t, nodes[0], 3)
	leads(t, nodes[0], nodes[1:]...)

	third := nodes[2].Identity().Node
	nodes[2].Close()
	await(t, "the third node is fenced", func() bool { return fenced(nodes[0], third) && fenced(nodes[1], third) })
	kv := kvClient(t, nodes[0])
	for i := range rollbackKeys {
		put(t, kv, table.Id, fmt.Sprint("late", i), "v")
	}
	nodes[0].Close()
	nodes[1].Close()

	first := startNode(t, old, "singapore", "a")
	back := startNode(t, nodes[2].cfg.Dirs[0], "singapore", "c", first.Addr())
	await(t, "the voter that was rolled back knows that it is", func() bool {
		for _, n := range []*Node{first, back} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			resp, err := kvClient(t, n).Do(ctx, &rhumbpb.Request{Hops: 2, Read: &rhumbpb.Read{Table: table.Id, Resolve: true, Names: [][]byte{[]byte("late0")}}})
			cancel()
			if err == nil && resp.Error == nil {
				t.Fatal("two voters that do not know of the fencing answer a read")
			}
		}
		m := first.currentMember()
		if m == nil {
			return false
		}
		s, err := m.group.Status(t.Context())
		return err == nil && s.Short && s.Silent
	})

	second := startNode(t, nodes[1].cfg.Dirs[0], "singapore", "b", first.Addr())
	awaitReady(t, first, second, back)
	awaitVoters(t, first, second, back)
	for i := range rollbackKeys {
		if got := get(t, kvClient(t, []*Node{first, second, back}[i%3]), table.Id, fmt.Sprint("late", i)); got != "v" {
			t.Errorf("late%d is %q, acknowledged was v", i, got)
		}
	}
}
