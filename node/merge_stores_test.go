package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// startStores starts a region of nodes with two stores each.
func startStores(t *testing.T, count int) (nodes []*Node) {
	t.Helper()
	for i := range count {
		dir := t.TempDir()
		cfg := Config{
			Dirs: []string{filepath.Join(dir, "1"), filepath.Join(dir, "2")}, Region: "singapore", Zone: fmt.Sprintf("z%d", i),
			Location: rhumb.Point{Lat: 1.35, Lon: 103.82}, Insecure: true,
			Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
			Snapshot: SnapshotConfig{Dir: dir + "-images"}, CacheBytes: 8 << 20,
			Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
			Fatal:  func(err error) { panic(fmt.Sprintf("node cannot go on: %v", err)) },
		}
		if i > 0 {
			cfg.Join = []string{nodes[0].Addr()}
		}
		n, err := Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		if nodes = append(nodes, n); i > 0 {
			continue
		}
		if _, err := clusterClient(t, n).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitReady(t, nodes...)
	return nodes
}

// change applies a command through a node, and tries again while ranges change at the same time.
func change(t *testing.T, n *Node, cmd func(st *catalog.State) catalog.Command) {
	t.Helper()
	retry(t, func(ctx context.Context) error {
		res, _, err := n.Propose(ctx, cmd(n.State()))
		if err == nil {
			err = res.Err()
		}
		return err
	})
}

// moveCopy moves a copy, and waits for the end of the operation.
func moveCopy(t *testing.T, n *Node, id rhumb.RangeID, from, to rhumb.NodeID) {
	t.Helper()
	change(t, n, func(*catalog.State) catalog.Command {
		return catalog.StartOperation{Kind: rhumb.OperationMove, Range: id, Node: from, Target: to, By: "test", At: time.Now()}
	})
	await(t, fmt.Sprintf("range %s moves from %s to %s", id, from, to), func() bool {
		r, ok := n.State().Range(id)
		return ok && r.IsInSync(to) && !r.IsReplica(from) && len(r.Leaving) == 0
	})
}

// mergeWithin is how long a merge may take whose copies have to be brought together: nodes report every few seconds, and the
// leader waits for a report after each change of a record.
const mergeWithin = 90 * time.Second

// TestMergeOfTwoStores guards the merge of two small ranges that a node holds in different stores: a command refuses it with the reason, and the
// cluster brings the copies together and merges the ranges, without a copy less at any time. All records are there afterwards.
func TestMergeOfTwoStores(t *testing.T) {
	nodes := startStores(t, 4)
	resp, err := clusterClient(t, nodes[0]).CreateTable(t.Context(), &rhumbpb.CreateTableRequest{Name: "small", Settings: &rhumbpb.ClassSettings{Replicas: 3, HashSlots: 1}})
	if err != nil {
		t.Fatal(err)
	}
	awaitInSync(t, nodes[0], 3)
	kv := kvClient(t, nodes[0])
	for i := range 40 {
		put(t, kv, resp.Table.Id, fmt.Sprintf("key-%d", i), "v")
	}
	var left, right *rhumb.Range
	for r := range nodes[0].State().Ranges() {
		left = r
	}
	at := left.ID.Slot + (left.LastSlot()-left.ID.Slot)/2
	// As a split by size does: what an operator splits off is not merged on its own.
	change(t, nodes[0], func(st *catalog.State) catalog.Command {
		r, _ := st.Range(left.ID)
		return catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: at}
	})
	await(t, "the split", func() bool {
		r, ok := nodes[0].State().Range(rhumb.RangeID{Region: left.ID.Region, Slot: at})
		right = r
		return ok && r.Birth == 0
	})
	// The node without a copy gets both, one after the other, and the store with the fewest ranges takes each.
	spare := nodes[slices.IndexFunc(nodes, func(n *Node) bool { return !left.IsReplica(n.Identity().Node) })]
	from := left.Replicas[slices.IndexFunc(left.Replicas, func(id rhumb.NodeID) bool { return id != left.Primary && id != right.Primary })]
	moveCopy(t, nodes[0], right.ID, from, spare.Identity().Node)
	moveCopy(t, nodes[0], left.ID, from, spare.Identity().Node)
	if spare.engine.Placed(left.ID) == spare.engine.Placed(right.ID) {
		t.Fatal("both copies are in one store, so the test shows nothing")
	}
	conn, err := api.Connect(nodes[0].Addr(), nil, credentialsFor(nodes[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await(t, "a refusal that names the stores", func() bool {
		_, err := rhumbpb.NewOperationsClient(conn).MergeRange(t.Context(), &rhumbpb.MergeRangeRequest{Range: api.EncodeRangeID(left.ID)})
		return err != nil && strings.Contains(err.Error(), "copies in two stores cannot be united")
	})
	change(t, nodes[0], func(*catalog.State) catalog.Command {
		return catalog.SetSetting{Name: rhumb.SettingRangeMergeAfter, Value: "5s"}
	})
	begun := time.Now()
	for deadline := begun.Add(mergeWithin); !nodes[0].State().IsMerged(right.ID); time.Sleep(5 * time.Millisecond) {
		for r := range nodes[0].State().Ranges() {
			// A slow disk may take one copy out of the in-sync set for a while. A merge that moved copies before others are in sync
			// would take a replica.
			if len(r.Replicas) < 3 || len(r.InSync) < 2 {
				t.Fatalf("range %s has %v in sync of %v", r.ID, r.InSync, r.Replicas)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the ranges are not merged: %+v", slices.Collect(nodes[0].State().Operations()))
		}
	}
	t.Logf("merged after %v", time.Since(begun).Round(time.Second))
	for i := range 40 {
		if got := get(t, kv, resp.Table.Id, fmt.Sprintf("key-%d", i)); got != "v" {
			t.Errorf("key-%d is %q", i, got)
		}
	}
}
