package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
)

// killRegion kills every node of a region at once.
func killRegion(t *testing.T, l *demo.Layout, region string) {
	t.Helper()
	for _, n := range l.Nodes {
		if n.Region == region {
			if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRegionIsLost kills the home region of two tables under load. The one that survives a region continues in another
// region with every acknowledged write; the other one reports that it is unavailable.
func TestRegionIsLost(t *testing.T) {
	layout, _ := startDemo(t, "--regions", "frankfurt,virginia,singapore", "--nodes-per-region", "2", "--latency", "none", "--load", "none", "--no-restart")
	ok(t, "table", "create", "survives", "--survive", "region", "--hash-slots", "4")
	ok(t, "table", "create", "local", "--replicas", "2", "--hash-slots", "4")
	var addrs []string
	for _, n := range layout.Nodes {
		if n.Region != "frankfurt" {
			addrs = append(addrs, n.Addr)
		}
	}
	c, err := client.Open(t.Context(), client.Config{Addrs: addrs, Insecure: true, Timeout: 20 * time.Second, ConnectTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	table, err := c.Table(t.Context(), "survives")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, code := runIn(t.Context(), "", "put", "local", "k", "n=1", "--home", "frankfurt"); code != exit.OK {
		t.Fatalf("a write of the local table ended with %d", code)
	}
	// The home of all keys is the region that is lost.
	const callers = 8
	var acked [callers]atomic.Int64
	var longest atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan struct{}, callers)
	for i := range callers {
		go func() {
			defer func() { done <- struct{}{} }()
			last := time.Now()
			for n := int64(1); ctx.Err() == nil; n++ {
				_, err := table.Put(ctx, fmt.Appendf(nil, "k%d", i), fmt.Append(nil, n), client.PutOptions{Home: "frankfurt"})
				if err == nil {
					acked[i].Store(n)
					longest.Store(max(longest.Load(), int64(time.Since(last))))
					last = time.Now()
				}
			}
		}()
	}
	progress := func() {
		t.Helper()
		for i := range callers {
			before := acked[i].Load()
			await(t, "every caller to write", settleWait, func() bool { return acked[i].Load() > before+1 })
		}
	}
	progress()
	plan := planOf(t, "frankfurt")
	longest.Store(0)
	killRegion(t, layout, "frankfurt")
	progress()
	await(t, "both nodes to be fenced", settleWait, func() bool {
		fenced := 0
		for _, n := range c.Nodes() {
			if n.State == rhumb.NodeFenced {
				fenced++
			}
		}
		return fenced == 2
	})
	plan.expect(t, c, time.Duration(longest.Load()))
	t.Logf("the longest pause of a caller was %v", time.Duration(longest.Load()).Round(time.Millisecond))
	// The region that is lost had all copies of the other table.
	local, err := c.Table(t.Context(), "local")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	_, err = local.Get(short, []byte("k"), client.GetOptions{Home: "frankfurt"})
	cancel()
	if kind := rhumb.KindOf(err); kind != rhumb.Unavailable && kind != rhumb.DeadlineExceeded {
		t.Errorf("a read of the local table: %v", err)
	}
	progress()
	stop()
	for range callers {
		<-done
	}
	await(t, "the region to be called dead", settleWait, func() bool {
		return slices.ContainsFunc(c.Regions(), func(r rhumb.Region) bool { return r.Name == "frankfurt" && r.Dead })
	})
	for i := range callers {
		got, err := table.Get(t.Context(), fmt.Appendf(nil, "k%d", i), client.GetOptions{Home: "frankfurt"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := got.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		if _, err := fmt.Sscan(string(b), &n); err != nil || n < acked[i].Load() {
			t.Errorf("k%d holds %q, and %d was acknowledged (%v)", i, b, acked[i].Load(), err)
		}
		// Without a home the record is found too: the region is dead, its ranges of this table are not.
		if found, err := table.Get(t.Context(), fmt.Appendf(nil, "k%d", i), client.GetOptions{}); err != nil || !found.Exists() {
			t.Errorf("k%d is not found without its home: %v", i, err)
		}
	}
}

// TestRemoveRegion removes the region in which all records have their home, under load: no write fails, every record is found
// under its key, the nodes of the region end, and its name is free.
func TestRemoveRegion(t *testing.T) {
	layout, _ := startDemo(t, "--regions", "frankfurt,virginia", "--nodes-per-region", "3", "--latency", "none", "--load", "none", "--no-restart")
	ok(t, "table", "create", "papers", "--regions", "virginia", "--hash-slots", "2")
	h := holdTableLoad(t, layout, 8, client.TableOptions{Settings: rhumb.ClassSettings{HashSlots: 8}})
	ok(t, "put", "load", "there", "n=7", "--home", "frankfurt")
	h.awaitProgress()
	// Tables that are confined to a region keep it.
	_, stderr, code := runIn(t.Context(), "", "region", "rm", "virginia")
	if code != exit.Precondition || !strings.Contains(stderr, "papers") {
		t.Errorf("a region with a confined table: exit %d, %s", code, stderr)
	}
	begin := time.Now()
	ok(t, "region", "rm", "frankfurt")
	t.Logf("the region was removed within %v", time.Since(begin).Round(time.Millisecond))
	for _, n := range layout.Nodes {
		if n.Region == "frankfurt" {
			await(t, "a node of the region to stop", settleWait, func() bool { return gone(n.PID) })
		}
	}
	h.awaitProgress()
	h.end()
	h.audit()
	h.noneFailed()
	var regions []regionDoc
	okJSON(t, &regions, "region", "ls")
	if len(regions) != 2 || regions[0].State != "removed" || regions[0].Into != "virginia" || regions[0].Nodes != 0 || regions[1].Copies == 0 {
		t.Errorf("regions: %+v", regions)
	}
	if out := ok(t, "get", "load", "there"); !strings.Contains(out, "7") {
		t.Errorf("a record of the removed region: %s", out)
	}
	ok(t, "region", "add", "frankfurt")
	// The last region with nodes stays.
	fails(t, exit.Precondition, "region", "rm", "virginia")
	await(t, "the cluster to be well", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", "status", "--check")
		return code == exit.OK
	})
}

// TestRegionIsGivenUp loses a region and a majority of the voters for good, as docs/runbooks/region-lost.md has it: the metadata is recovered
// from a survivor, the region is given up with what only it had, and its names can be used again.
func TestRegionIsGivenUp(t *testing.T) {
	layout, _ := startDemo(t, "--regions", "frankfurt,virginia", "--nodes-per-region", "2", "--latency", "none", "--load", "none", "--no-restart")
	ok(t, "table", "create", "local", "--replicas", "2", "--hash-slots", "2")
	ok(t, "put", "local", "lost", "n=1", "--home", "frankfurt")
	ok(t, "put", "local", "kept", "n=2", "--home", "virginia")
	fails(t, exit.Precondition, "region", "rm", "frankfurt", "--force", "--yes")
	var nodes []nodeDoc
	okJSON(t, &nodes, "node", "ls")
	voters := 0
	for _, n := range nodes {
		if n.Voter && n.Region == "frankfurt" {
			voters++
		}
	}
	// Two of three voters may be in either region; the test takes that of the majority.
	victim, stays := "frankfurt", "virginia"
	if voters < 2 {
		victim, stays = stays, victim
	}
	lostKey, keptKey := "lost", "kept"
	if victim == "virginia" {
		lostKey, keptKey = keptKey, lostKey
	}
	args := map[string][]string{}
	for _, n := range layout.Nodes {
		args[n.Dir] = commandLine(t, n.PID)
	}
	killRegion(t, layout, victim)
	survivors := slices.DeleteFunc(slices.Clone(layout.Nodes), func(n demo.Node) bool { return n.Region == victim })
	// Stop the survivors, choose the one with the longest log, and make it the only voter.
	best, term, last := survivors[0], uint64(0), uint64(0)
	for _, n := range survivors {
		if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		// A zombie may hold its lock for a moment.
		await(t, "a survivor to stop", settleWait, func() bool {
			_, _, code := runIn(t.Context(), "", "unsafe-recover", "metadata", "--dir", n.Dir, "--show")
			return code == exit.OK
		})
		var s recoverDoc
		okJSON(t, &s, "unsafe-recover", "metadata", "--dir", n.Dir, "--show")
		if s.Term > term || s.Term == term && s.Last > last {
			best, term, last = n, s.Term, s.Last
		}
	}
	ok(t, "unsafe-recover", "metadata", "--dir", best.Dir, "--yes")
	startProcess(t, nil, args[best.Dir]...)
	for _, n := range survivors {
		if n.Dir != best.Dir {
			startProcess(t, nil, args[n.Dir]...)
		}
	}
	at := []string{"--addr", survivors[0].Addr, "--insecure"}
	await(t, "the region to be found dead", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", append([]string{"region", "rm", victim, "--force", "--yes"}, at...)...)
		return code == exit.OK
	})
	if out := ok(t, append([]string{"get", "local", keptKey, "--home", stays}, at...)...); !strings.Contains(out, "int64") {
		t.Errorf("the record of the other region: %s", out)
	}
	// The name of the lost record is free, and nobody has to be asked for it.
	fails(t, exit.NotFound, append([]string{"get", "local", lostKey}, at...)...)
	ok(t, append([]string{"put", "local", lostKey, "n=3", "--if-absent"}, at...)...)
	var ops []operationDoc
	okJSON(t, &ops, append([]string{"operation", "ls"}, at...)...)
	if len(ops) == 0 || ops[len(ops)-1].Kind != "remove-region" || !strings.Contains(ops[len(ops)-1].Error, "by force: ") || !strings.Contains(ops[len(ops)-1].Error, "local") {
		t.Errorf("the loss is not recorded: %+v", ops)
	}
}

// TestTwoRegionsAndAWitness loses one of two regions with data. A third region has a witness only: it votes, so the other region goes on with
// every acknowledged write, and it passes requests on without ever holding a copy.
func TestTwoRegionsAndAWitness(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	base := t.TempDir()
	// Nodes of a demo know the addresses of the demo only, so the cluster is made by hand. Two zones in each region with data, so that
	// replicas have a reason to be on both nodes.
	var nodes []*soloNode
	for i, region := range []string{"frankfurt", "frankfurt", "virginia", "virginia", "singapore"} {
		n := &soloNode{dir: filepath.Join(base, fmt.Sprint(i)), addr: freeAddr(t), gossip: freeAddr(t), region: region}
		join := ""
		if i > 0 {
			join = nodes[0].addr
		}
		if region == "singapore" {
			n.flags = []string{"--witness"}
		}
		n.start(t, string(rune('a'+i%2)), join)
		nodes = append(nodes, n)
		if i == 0 {
			await(t, "the cluster to be made", bootWait, func() bool {
				_, _, code := runIn(t.Context(), "", "init", "--addr", n.addr, "--insecure")
				return code == exit.OK
			})
		}
	}
	// Commands go to the region that stays.
	at := []string{"--addr", nodes[2].addr, "--insecure"}
	with := func(args ...string) []string { return append(args, at...) }
	var witness nodeDoc
	await(t, "the witness to vote", settleWait, func() bool {
		var nodes []nodeDoc
		stdout, _, code := runIn(t.Context(), "", with("node", "ls", "-o", "json")...)
		if code != exit.OK || json.Unmarshal([]byte(stdout), &nodes) != nil {
			return false
		}
		voters := 0
		for _, n := range nodes {
			if n.Voter {
				voters++
			}
			if n.Witness {
				witness = n
			}
		}
		return len(nodes) == 5 && voters == 3 && witness.Voter && witness.Ready
	})
	// A table that needs a third region with data would be refused here.
	ok(t, with("table", "create", "survives", "--survive", "region", "--replicas", "4", "--min-in-sync", "2", "--hash-slots", "4")...)
	// The node that is asked may not have applied the change of voters yet.
	await(t, "the reason of the vote", settleWait, func() bool {
		var votes []voterDoc
		okJSON(t, &votes, with("voter", "ls", "-o", "json")...)
		return slices.ContainsFunc(votes, func(v voterDoc) bool { return v.Witness && v.Why == "witness of region singapore" })
	})

	// A client that knows the witness only reads, writes and inserts through it, and no range gets a copy there.
	through := []string{"--addr", nodes[4].addr, "--insecure"}
	// Its copy of the metadata may be a moment behind.
	await(t, "the witness to know the table", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", append([]string{"put", "survives", "first", "n=1"}, through...)...)
		return code == exit.OK
	})
	ok(t, append([]string{"insert", "survives", "n=2"}, through...)...)
	if out := ok(t, append([]string{"get", "survives", "first", "-o", "json"}, through...)...); strings.Contains(out, `"node": "`+witness.ID+`"`) {
		t.Errorf("the witness answered itself: %s", out)
	}
	var ranges []rangeDoc
	okJSON(t, &ranges, with("range", "ls", "-o", "json")...)
	fails(t, exit.Usage, with("range", "move", ranges[0].ID, ranges[0].Replicas[0], witness.ID)...)

	c, err := client.Open(t.Context(), client.Config{Addrs: []string{nodes[3].addr, nodes[4].addr}, Insecure: true, Timeout: 20 * time.Second, ConnectTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	table, err := c.Table(t.Context(), "survives")
	if err != nil {
		t.Fatal(err)
	}
	put := func(n int) {
		t.Helper()
		for i := range 8 {
			if _, err := table.Put(t.Context(), fmt.Appendf(nil, "k%d", i), fmt.Append(nil, n), client.PutOptions{Home: "frankfurt"}); err != nil {
				t.Fatalf("write %d of k%d: %v", n, i, err)
			}
		}
	}
	for n := range 20 {
		put(n)
	}
	// Both nodes of the region at once, the founder of the cluster among them, which usually leads the metadata. The witness and the other
	// region elect a leader, which fences the two nodes one after the other. Only then may the in-sync sets be in one region.
	for _, n := range nodes[:2] {
		if err := n.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	put(20)
	t.Logf("all keys of the lost region were written again after %v", time.Since(begin).Round(time.Millisecond))
	for n := 21; n < 40; n++ {
		put(n)
	}
	for i := range 8 {
		got, err := table.Get(t.Context(), fmt.Appendf(nil, "k%d", i), client.GetOptions{Home: "frankfurt"})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := got.Bytes(); err != nil || string(b) != "39" {
			t.Errorf("k%d holds %q: %v", i, b, err)
		}
	}
	for _, r := range c.Ranges() {
		if slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return id.String() == witness.ID }) {
			t.Errorf("range %s has a copy on the witness: %v", r.ID, r.Replicas)
		}
	}
}
