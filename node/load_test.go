package node

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/node/peer"
)

// TestLoadsGrowStale guards that a load is ignored if its node has not reported for a while.
func TestLoadsGrowStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoads(1)
		if _, known := l.Load(1, 7); known {
			t.Error("a node knows its load before it was added up")
		}
		l.own.Store(&peer.NodeLoad{7: 10})
		l.recordLoad(2, peer.NodeLoad{7: 20})
		for _, want := range []struct {
			node  rhumb.NodeID
			class rhumb.ClassID
			bytes int64
			known bool
		}{{1, 7, 10, true}, {1, 8, 0, true}, {2, 7, 20, true}, {2, 8, 0, true}, {3, 7, 0, false}} {
			if bytes, known := l.Load(want.node, want.class); bytes != want.bytes || known != want.known {
				t.Errorf("node %s, class %s: %d, %v", want.node, want.class, bytes, known)
			}
		}
		time.Sleep(loadStale + 1) // on the clock of the bubble
		if _, known := l.Load(2, 7); known {
			t.Error("an old load counts")
		}
		if _, known := l.Load(1, 7); !known {
			t.Error("a node forgot its own load")
		}
	})
}

// TestInsertsSpread guards the rule of TippyDB with real nodes: inserts that all arrive at one node
// stay there until it has twice the shard size. Then they move to the other nodes of the region,
// and never to another region.
func TestInsertsSpread(t *testing.T) {
	nodes, _ := startThree(t)
	far := startNode(t, t.TempDir(), "frankfurt", "a", nodes[0].Addr())
	awaitReady(t, far)
	const shard, valueSize = 1 << 20, 256 << 10
	resp, err := clusterClient(t, nodes[0]).CreateTable(t.Context(), &rhumbpb.CreateTableRequest{
		Name: "crews", Settings: &rhumbpb.ClassSettings{Replicas: 3, HashSlots: 8, ShardSize: shard},
	})
	if err != nil {
		t.Fatal(err)
	}
	kv, home := kvClient(t, nodes[0]), uint32(nodes[0].Identity().Node)
	held := map[uint32]int{} // bytes by node
	value := rhumb.EncodeOpaque(nil, bytes.Repeat([]byte{'x'}, valueSize))
	insert := func() {
		retry(t, func(ctx context.Context) error {
			resp, err := kv.Do(ctx, &rhumbpb.Request{Hops: 2, Write: &rhumbpb.Write{Resolve: true, Mutations: []*rhumbpb.Mutation{{
				Kind: rhumbpb.MutationKind_MUTATION_KIND_INSERT, Table: resp.Table.Id, Value: value,
			}}}})
			if err == nil {
				held[resp.Receipt.Node] += valueSize
			}
			return err
		})
	}
	first := 0 // bytes that the node held when it sent the first insert away
	await(t, "inserts on every node of the region", func() bool {
		insert()
		if first == 0 && len(held) > 1 {
			first = held[home]
		}
		return len(held) == 3
	})
	if first < 2*shard*9/10 {
		t.Errorf("the node held %d bytes when it sent an insert away, want about %d or more", first, 2*shard)
	}
	if n := held[uint32(far.Identity().Node)]; n != 0 {
		t.Errorf("%d bytes were sent to another region", n)
	}
	t.Logf("bytes by node: %v", held)
	c, err := client.Open(t.Context(), client.Config{Addrs: []string{nodes[0].Addr()}, Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table, err := c.Table(t.Context(), "crews")
	if err != nil {
		t.Fatal(err)
	}
	// The client alternates between the nodes; the overloaded one forwards the inserts. Their
	// values are small, so that it stays overloaded.
	await(t, "an insert of a client that was sent on", func() bool {
		r, err := table.Insert(t.Context(), []byte("x"), client.InsertOptions{Region: "singapore"})
		if err != nil {
			t.Fatal(err)
		}
		if uint32(r.Receipt.Node) == uint32(far.Identity().Node) {
			t.Fatal("an insert was sent to another region")
		}
		return c.Metrics().Redirects > 0
	})
}
