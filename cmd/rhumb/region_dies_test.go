package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
)

// frankfurtRanges is the number of ranges whose home is frankfurt: those of the one class that the tables of a demo and the one of the test
// share.
const frankfurtRanges = 64

// halfRemoved starts three regions, a table of two copies with keys of frankfurt, and the removal of frankfurt into virginia, which is
// paused when some ranges have left the region and others have not. It returns the operation, the range of each key, and a client that
// asks the other regions.
func halfRemoved(t *testing.T) (layout *demo.Layout, op string, keys map[string]rhumb.RangeID, c *client.Client) {
	t.Helper()
	layout, _ = startDemo(t, "--regions", "frankfurt,virginia,singapore", "--nodes-per-region", "2", "--latency", "none", "--load", "none", "--no-restart")
	ok(t, "table", "create", "cargo", "--replicas", "2")
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
	table, err := c.Table(t.Context(), "cargo")
	if err != nil {
		t.Fatal(err)
	}
	keys = map[string]rhumb.RangeID{}
	for i := range 200 {
		key := fmt.Sprint("k", i)
		out, err := table.Put(t.Context(), []byte(key), []byte(key), client.PutOptions{Home: "frankfurt"})
		if err != nil {
			t.Fatal(err)
		}
		keys[key] = out.Receipt.Range
	}
	var o operationDoc
	okJSON(t, &o, "region", "rm", "frankfurt", "--into", "virginia", "--no-wait", "-o", "json")
	op = o.ID
	await(t, "the first ranges to move", settleWait, func() bool { moved, _ := copiesOf(c, layout); return len(moved) >= 3 })
	ok(t, "operation", "pause", op)
	// Nothing begins to move any more, and primaries add the copies that were made.
	await(t, "the moves that had begun", settleWait, func() bool {
		return !slices.ContainsFunc(c.Ranges(), func(r *rhumb.Range) bool { return !isSettled(r) })
	})
	return layout, op, keys, c
}

// isSettled reports whether the copies of a range are in sync, except those that are to leave: they stay for as long as the operation is
// paused.
func isSettled(r *rhumb.Range) bool {
	return !slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool {
		return !slices.Contains(r.InSync, id) && !slices.Contains(r.Leaving, id)
	})
}

// copiesOf returns the ranges of frankfurt without a copy there, and those without a copy elsewhere.
func copiesOf(c *client.Client, layout *demo.Layout) (moved, lost map[rhumb.RangeID]bool) {
	var frankfurt rhumb.RegionID
	for _, r := range c.Regions() {
		if r.Name == "frankfurt" {
			frankfurt = r.ID
		}
	}
	home := map[rhumb.NodeID]bool{}
	for _, n := range c.Nodes() {
		home[n.ID] = n.Region == frankfurt
	}
	moved, lost = map[rhumb.RangeID]bool{}, map[rhumb.RangeID]bool{}
	for _, r := range c.Ranges() {
		if r.ID.Region != frankfurt {
			continue
		}
		if !slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return home[id] }) {
			moved[r.ID] = true
		}
		if !slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return !home[id] }) {
			lost[r.ID] = true
		}
	}
	return moved, lost
}

// TestRegionDiesWhileRemoved: the region is lost for good when some ranges of a table have left it. One command gives up the rest: every
// record that had moved is there, the lost names are free, and the cluster is well.
func TestRegionDiesWhileRemoved(t *testing.T) {
	layout, op, keys, c := halfRemoved(t)
	_, lost := copiesOf(c, layout)
	if moved, _ := copiesOf(c, layout); len(lost) == 0 || len(moved) == 0 || len(c.Ranges()) != 3*frankfurtRanges {
		t.Fatalf("%d of %d ranges are in frankfurt only, and %d have moved: the test needs some of each", len(lost), len(c.Ranges()), len(moved))
	}
	killRegion(t, layout, "frankfurt")
	at := []string{"--addr", layout.Nodes[len(layout.Nodes)-1].Addr, "--insecure"}
	with := func(args ...string) []string { return append(args, at...) }
	await(t, "the region to be found dead", settleWait, func() bool {
		_, stderr, _ := runIn(t.Context(), "no\n", with("unsafe-recover", "region", "frankfurt")...)
		return strings.Contains(stderr, fmt.Sprintf("%d ranges have no copy elsewhere", len(lost))) && strings.Contains(stderr, "nothing was changed")
	})
	ok(t, with("unsafe-recover", "region", "frankfurt", "--yes")...)
	table, err := c.Table(t.Context(), "cargo")
	if err != nil {
		t.Fatal(err)
	}
	// The command went through another node than the one that this client watches.
	await(t, "the client to know", settleWait, func() bool {
		return slices.ContainsFunc(c.Regions(), func(r rhumb.Region) bool { return r.Removed })
	})
	kept := 0
	for key, id := range keys {
		_, err := table.Get(t.Context(), []byte(key), client.GetOptions{})
		switch {
		case err == nil && !lost[id]:
			kept++
			continue
		case !lost[id] || rhumb.KindOf(err) != rhumb.NotFound:
			t.Fatalf("%s of range %s, lost %v: %v", key, id, lost[id], err)
		}
		if _, err := table.Put(t.Context(), []byte(key), []byte("new"), client.PutOptions{}); err != nil {
			t.Fatalf("%s, which was lost, is not free: %v", key, err)
		}
	}
	t.Logf("%d of %d keys are left; %d ranges restarted empty", kept, len(keys), len(lost))
	var ops []operationDoc
	okJSON(t, &ops, with("operation", "ls")...)
	last := ops[len(ops)-1]
	if last.Kind != "remove-region" || last.State != "done" || !strings.Contains(last.Error, fmt.Sprintf("%d of them restart empty; tables: ", len(lost))) || !strings.Contains(last.Error, "cargo") {
		t.Errorf("the loss is not recorded: %+v", last)
	}
	for _, o := range ops {
		if o.ID == op && o.State != "cancelled" {
			t.Errorf("the removal that had begun: %+v", o)
		}
	}
	await(t, "the cluster to be well", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", with("status", "--check")...)
		return code == exit.OK
	})
}

// TestCancelledRemovalComesHome cancels the removal of a region half way. The command says how many ranges have left, and the one that it
// names brings them back, while every record stays readable.
func TestCancelledRemovalComesHome(t *testing.T) {
	layout, op, keys, c := halfRemoved(t)
	_, stderr, code := runIn(t.Context(), "", "operation", "cancel", op)
	if code != exit.OK || !strings.Contains(stderr, "these stay there; `rhumb rebalance frankfurt` moves them back") {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	before, stays := copiesOf(c, layout)
	var plan rebalanceDoc
	okJSON(t, &plan, "rebalance", "frankfurt", "--dry-run")
	if len(plan.Moves) != len(before) || !strings.Contains(plan.Moves[0].Why, "is in region virginia") {
		t.Fatalf("%d ranges have left, and the plan is %+v", len(before), plan.Moves)
	}
	// The operation goes on until all are back, which a test of the planner awaits (TestRebalanceBringsHome).
	ok(t, "rebalance", "frankfurt", "--no-wait")
	await(t, "ranges with all copies in the region again", settleWait, func() bool {
		_, home := copiesOf(c, layout)
		return len(home) > len(stays)
	})
	table, err := c.Table(t.Context(), "cargo")
	if err != nil {
		t.Fatal(err)
	}
	for key := range keys {
		if got, err := table.Get(t.Context(), []byte(key), client.GetOptions{Home: "frankfurt"}); err != nil || !got.Exists() {
			t.Fatalf("%s: %v", key, err)
		}
	}
}
