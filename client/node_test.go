package client_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/node"
)

// These tests run a client against real nodes in this process.

func startNode(t *testing.T, region string, at rhumb.Point, zone string, join ...string) *node.Node {
	t.Helper()
	return startIn(t, t.TempDir(), region, at, zone, join...)
}

func startIn(t *testing.T, dir, region string, at rhumb.Point, zone string, join ...string) *node.Node {
	t.Helper()
	n, err := node.Start(node.Config{
		Dirs: []string{dir}, Region: region, Zone: zone, Location: at, Insecure: true, Join: join,
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		CacheBytes: 8 << 20, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Fatal: func(err error) { panic(fmt.Sprintf("node cannot go on: %v", err)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func awaitReady(t *testing.T, nodes ...*node.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, n := range nodes {
		if err := n.AwaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, from string, n *node.Node) *client.Client {
	t.Helper()
	c, err := client.Open(t.Context(), client.Config{Addrs: []string{n.Addr()}, From: from, Insecure: true, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func initialise(t *testing.T, n *node.Node) {
	t.Helper()
	if _, err := client.Init(t.Context(), client.Config{Addrs: []string{n.Addr()}, Insecure: true}); err != nil {
		t.Fatal(err)
	}
}

// Every operation, in a cluster of three regions.
func TestRegions(t *testing.T) {
	places := map[string]rhumb.Point{"singapore": {Lat: 1.35, Lon: 103.82}, "frankfurt": {Lat: 50.11, Lon: 8.68}, "virginia": {Lat: 38.95, Lon: -77.45}}
	first := startNode(t, "singapore", places["singapore"], "a")
	initialise(t, first)
	nodes := []*node.Node{first}
	for _, region := range []string{"frankfurt", "virginia"} {
		nodes = append(nodes, startNode(t, region, places[region], "a", first.Addr()))
	}
	awaitReady(t, nodes...)
	c := open(t, "singapore", first)
	ctx := t.Context()
	table, err := c.CreateTable(ctx, "flights", client.TableOptions{
		Settings: rhumb.ClassSettings{Replicas: 1, HashSlots: 4}, TableOptions: rhumb.TableOptions{Colocate: '/'},
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err = table.Put(ctx, []byte("a"), []byte("1"), client.PutOptions{})
	check("put", err)
	zurich, err := rhumb.NewRecord(rhumb.Field{Name: "location", Value: rhumb.PointField(rhumb.Point{Lat: 47.4, Lon: 8.5})}, rhumb.Field{Name: "seq", Value: rhumb.Int64Field(1)})
	check("record", err)
	newer := client.PatchOptions{WriteOptions: client.WriteOptions{If: rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"seq"}}}}
	made, err := table.Patch(ctx, []byte("SWR8"), zurich, newer)
	check("patch", err)
	again, err := table.Patch(ctx, []byte("SWR8"), zurich, newer)
	check("patch again", err)
	if !made.Applied || again.Applied {
		t.Fatalf("a feed that is played again was applied: %+v %+v", made, again)
	}
	far := open(t, "virginia", first)
	there, err := far.Table(ctx, "flights")
	check("table", err)
	got, err := there.Get(ctx, []byte("SWR8"), client.GetOptions{})
	check("get", err)
	if r, err := got.Record(); err != nil || len(r) != 2 || got.Receipt.Searched != 2 || got.Key.Home != made.Key.Home {
		t.Fatalf("%+v", got)
	}
	for _, r := range far.Regions() {
		if r.Name == "frankfurt" && r.ID != got.Key.Home.Region {
			t.Fatalf("created at %s, not in frankfurt", got.Key.Home)
		}
	}
	ins, err := there.Insert(ctx, []byte("x"), client.InsertOptions{Region: "singapore"})
	check("insert", err)
	back, err := table.Get(ctx, ins.Key.Name, client.GetOptions{Home: ins.Key.Home.String()})
	check("get what was inserted", err)
	if b, _ := back.Bytes(); string(b) != "x" {
		t.Fatalf("%q", b)
	}
	_, err = there.Delete(ctx, []byte("a"), client.DeleteOptions{})
	check("delete", err)
	var names []string
	for it, err := range there.Scan(ctx, client.ScanOptions{}) {
		check("scan", err)
		names = append(names, rhumb.NameString(it.Key.Name))
	}
	if len(names) != 2 {
		t.Fatalf("scan: %v", names)
	}
	st, err := c.DescribeRange(ctx, made.Key.Home)
	check("describe", err)
	if len(st.Replicas) != 1 || st.Replicas[0].State != "primary" {
		t.Fatalf("%+v", st)
	}
	for _, s := range c.Status(ctx) {
		if s.Err != "" || !s.Ready {
			t.Fatalf("%+v", s)
		}
	}
}

// 64 callers write while a node stops: every call succeeds, and what it wrote is there exactly as
// acknowledged.
func TestNodeStopsUnderLoad(t *testing.T) {
	at := rhumb.Point{Lat: 1.35, Lon: 103.82}
	first := startNode(t, "singapore", at, "a")
	initialise(t, first)
	nodes := []*node.Node{first, startNode(t, "singapore", at, "b", first.Addr()), startNode(t, "singapore", at, "c", first.Addr())}
	awaitReady(t, nodes...)
	c := open(t, "", first)
	table, err := c.CreateTable(t.Context(), "counts", client.TableOptions{Settings: rhumb.ClassSettings{HashSlots: 8}})
	if err != nil {
		t.Fatal(err)
	}
	const callers = 64
	var stopped atomic.Bool
	var done atomic.Int64
	counts := make([]int64, callers)
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			name := fmt.Appendf(nil, "caller-%d", i)
			for after := 0; after < 10; {
				counts[i]++
				r := rhumb.Record{{Name: "n", Value: rhumb.Int64Field(counts[i])}}
				// Each write is the next of its caller, or a no-op: one applied twice, or lost,
				// would show.
				res, err := table.Patch(t.Context(), name, r, client.PatchOptions{WriteOptions: client.WriteOptions{If: rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"n"}}}})
				if err != nil || !res.Applied {
					t.Errorf("write %d of caller %d: %+v %v", counts[i], i, res, err)
					return
				}
				done.Add(1)
				if stopped.Load() {
					after++
				}
			}
		})
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for done.Load() < 10*callers && !t.Failed() {
		<-tick.C
	}
	start := time.Now()
	nodes[1].Close()
	stopped.Store(true)
	work.Wait()
	t.Logf("%d writes, the last ones %v after a node stopped; %+v", done.Load(), time.Since(start), c.Metrics())
	for i := range callers {
		got, err := table.Get(t.Context(), fmt.Appendf(nil, "caller-%d", i), client.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r, _ := got.Record()
		if v, _ := r.Get("n"); v.Int64() != counts[i] {
			t.Fatalf("caller %d: %d was acknowledged last, %d is there", i, counts[i], v.Int64())
		}
	}
}

// Without a majority of the metadata group, a node that lives and one that starts again, and cannot
// register, both show the copy of the metadata that they have, and how they stand; a node without a
// cluster says what it waits for.
func TestStatusWithoutLeader(t *testing.T) {
	at := rhumb.Point{Lat: 1.35, Lon: 103.82}
	dir := t.TempDir()
	first := startNode(t, "singapore", at, "a")
	_, err := client.Open(t.Context(), client.Config{Addrs: []string{first.Addr()}, Insecure: true})
	if rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), first.Addr()+" says: ") || !strings.Contains(err.Error(), "rhumb init") {
		t.Errorf("a node without a cluster: %v", err)
	}
	initialise(t, first)
	second, last := startNode(t, "singapore", at, "b", first.Addr()), startIn(t, dir, "singapore", at, "c", first.Addr())
	awaitReady(t, first, second, last)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for voters := 0; voters < 3; <-poll.C {
		voters = 0
		for n := range last.State().Nodes() {
			if n.Voter {
				voters++
			}
		}
	}
	first.Close()
	second.Close()
	status := func(n *node.Node) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); n.State() == nil && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond) // it opens its copy of the metadata
		}
		c := open(t, "", n)
		defer c.Close()
		all := c.Status(t.Context())
		// The numbers of the nodes depend on which of them joined first.
		wrong := slices.ContainsFunc(all, func(s client.NodeStatus) bool { return (s.Err == "") != (s.Node.Addr == n.Addr()) })
		if len(all) != 3 || c.Revision() == 0 || wrong {
			t.Errorf("%d nodes at revision %d: %+v", len(all), c.Revision(), all)
		}
	}
	status(last)
	// The client asks the nodes that are gone too. That one of them cannot be reached is not why there are no operations to show.
	c := open(t, "", last)
	_, err = c.Operations(t.Context())
	if rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), "metadata") || strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("operations without a majority: %v", err)
	}
	last.Close()
	again := startIn(t, dir, "singapore", at, "c")
	status(again)
}
