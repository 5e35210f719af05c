package node

import (
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/freeport"
)

// TestDrainedNodeIsNotReady guards that /readyz answers 503 while a node drains, also if another
// node received the command.
func TestDrainedNodeIsNotReady(t *testing.T) {
	nodes := startRegion(t)
	readyz := func() int {
		resp, err := http.Get("http://" + nodes[2].AdminAddr() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	drain := &rhumbpb.DrainRequest{Node: uint32(nodes[2].Identity().Node), TimeoutUs: 5_000_000}
	if _, err := clusterClient(t, nodes[0]).Drain(t.Context(), drain); err != nil {
		t.Fatal(err)
	}
	await(t, "/readyz says that the node drains", func() bool { return readyz() == http.StatusServiceUnavailable })
	if err := nodes[2].Ready(); err == nil || !strings.Contains(err.Error(), "--undo") {
		t.Errorf("ready: %v", err)
	}
	drain.Undo = true
	if _, err := clusterClient(t, nodes[0]).Drain(t.Context(), drain); err != nil {
		t.Fatal(err)
	}
	await(t, "/readyz is well again", func() bool { return readyz() == http.StatusOK })
}

// TestLonelyNodeIsNotReady guards that /readyz answers 503 with the reason at a node that reaches no other one.
func TestLonelyNodeIsNotReady(t *testing.T) {
	nodes := startRegion(t)
	nodes[0].Close()
	if err := nodes[2].Ready(); err != nil {
		t.Errorf("one of two others is gone: %v", err)
	}
	nodes[1].Close()
	await(t, "the last node to be not ready", func() bool { return nodes[2].Ready() != nil })
	if err := nodes[2].Ready(); !strings.Contains(err.Error(), "reaches none of the") {
		t.Errorf("ready: %v", err)
	}
}

// startAt starts a node with the given addresses. The channel receives the argument of Fatal.
func startAt(t *testing.T, dir, addr string, join ...string) (n *Node, fatal chan error) {
	t.Helper()
	fatal = make(chan error, 1)
	n, err := Start(Config{
		Dirs: []string{dir}, Region: "singapore", Insecure: true, Location: rhumb.Point{Lat: 1.35, Lon: 103.82}, Join: join,
		Addr: addr, HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		Snapshot: SnapshotConfig{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { fatal <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n, fatal
}

// TestCopiedDirectory guards that a process with a copy of a running node's directory stops with an
// error. It must neither wait forever nor act as that node.
func TestCopiedDirectory(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	addrs, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	addr := addrs[0]
	first, _ := startAt(t, dir, addr)
	if _, err := clusterClient(t, first).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, first)
	first.Close()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	first, _ = startAt(t, dir, addr)
	awaitReady(t, first)
	_, fatal := startAt(t, copied, "127.0.0.1:0", first.Addr())
	select {
	case err := <-fatal:
		if rhumb.KindOf(err) != rhumb.WrongCluster || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "copy of its directory") {
			t.Errorf("the process stopped with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the process goes on")
	}
}

// TestNobodyAnswers guards that a node is told to start others only if its cluster has others.
func TestNobodyAnswers(t *testing.T) {
	one := startNode(t, t.TempDir(), "singapore", "a")
	if _, _, err := one.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, one)
	id := one.Identity().Node
	if err := nobodyAnswers(one.State(), id); rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), "the only one of its cluster") || strings.Contains(err.Error(), "--join") {
		t.Errorf("a lone node says %v", err)
	}
	// For any other node, the first one is another member.
	if err := nobodyAnswers(one.State(), id+1); rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), "start the other nodes and check --join") {
		t.Errorf("a node of a cluster of two says %v", err)
	}
}

// TestOutsiderSaysWhy guards that a node outside its cluster reports what it waits for, and that
// only a node that can be the first of a cluster mentions init.
func TestOutsiderSaysWhy(t *testing.T) {
	nodes := startRegion(t)
	await(t, "all vote", func() bool {
		voters := 0
		for n := range nodes[2].State().Nodes() {
			if n.Voter {
				voters++
			}
		}
		return voters == 3
	})
	last := nodes[2]
	for _, n := range nodes {
		n.Close()
	}
	alone, _ := startAt(t, last.cfg.Dirs[0], "127.0.0.1:0")
	says := func(n *Node, want string) {
		t.Helper()
		await(t, want, func() bool {
			resp, err := clusterClient(t, n).Status(t.Context(), &rhumbpb.StatusRequest{})
			return err == nil && !resp.Ready && strings.Contains(resp.Reason, want)
		})
	}
	says(alone, "no other member of the cluster answers")
	if why := alone.Ready().Error(); strings.Contains(why, "init") || !strings.Contains(why, alone.Identity().Cluster.String()) {
		t.Errorf("a node of a cluster says %s", why)
	}
	fresh, _ := startAt(t, t.TempDir(), "127.0.0.1:0", "127.0.0.1:1")
	says(fresh, "none of 127.0.0.1:1 answers")
	waiting, _ := startAt(t, t.TempDir(), "127.0.0.1:0", fresh.Addr())
	says(waiting, "no node that answers belongs to a cluster; run rhumb init")

	// The copy of the catalog can be read nevertheless.
	meta, err := clusterClient(t, alone).GetMetadata(t.Context(), &rhumbpb.GetMetadataRequest{})
	if err != nil || len(meta.Nodes) != 3 {
		t.Errorf("metadata without a leader: %v, %v", meta, err)
	}
	stream, err := clusterClient(t, alone).WatchMetadata(t.Context(), &rhumbpb.WatchMetadataRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || len(m.Nodes) != 3 {
		t.Errorf("watch without a leader: %v, %v", m, err)
	}
}
