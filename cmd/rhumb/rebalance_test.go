package main

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/demo"
)

// joinerWait bounds how long a node that joins may take until its region is balanced.
const joinerWait = 2 * time.Minute

// within reports whether a condition comes true in time.
func within(most time.Duration, cond func() bool) bool {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if cond() {
			return true
		}
	}
	return cond()
}

// TestRebalanceAfterJoin starts a fourth node in a region of three, under load. The plan names copies for it, the
// operation moves them, no write fails, and afterwards the plan is empty and every range has three copies.
func TestRebalanceAfterJoin(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	base := t.TempDir()
	l := &demo.Layout{}
	for _, n := range startSolo(t, base) {
		l.Nodes = append(l.Nodes, demo.Node{Addr: n.addr})
	}
	with := func(args ...string) []string { return append(args, "--addr", l.Nodes[0].Addr, "--insecure") }
	h := holdLoad(t, l, 8)
	h.awaitProgress()
	n := &soloNode{dir: filepath.Join(base, "new"), addr: freeAddr(t), gossip: freeAddr(t), admin: freeAddr(t)}
	n.start(t, "d", l.Nodes[0].Addr)
	await(t, "the new node to be in its cluster", newcomerWait, func() bool { return isReady(n.admin) })
	begin := time.Now()
	var plan rebalanceDoc
	okJSON(t, &plan, with("rebalance", "--dry-run")...)
	copies := func() (count int) {
		for _, r := range h.c.Ranges() {
			if r.IsReplica(4) {
				count++
			}
		}
		return count
	}
	// The cluster may have begun by itself.
	if len(plan.Moves)+plan.Moving+copies() == 0 {
		t.Errorf("nothing is planned for an empty node: %+v", plan)
	}
	for _, m := range plan.Moves {
		if m.To != "n4" || m.Why == "" {
			t.Errorf("planned is %+v; only the new node should get copies", m)
		}
	}
	if len(plan.Regions) != 1 || plan.Regions[0].Region != "frankfurt" || plan.Regions[0].MostAfter > plan.Regions[0].Most {
		t.Errorf("the regions of the plan are %+v", plan.Regions)
	}
	ok(t, with("rebalance", "--no-wait")...)
	var ops []operationDoc
	over := func() bool {
		ops = nil
		okJSON(t, &ops, with("operation", "ls", "--all")...)
		return slices.ContainsFunc(ops, func(o operationDoc) bool { return o.Kind == "rebalance" && o.State == "done" && o.Done == o.Total })
	}
	if !within(joinerWait, over) {
		t.Fatalf("the operation does not end: %+v", ops)
	}
	t.Logf("%d copies moved to the new node within %v of its start; the plan had %d", copies(), time.Since(begin).Round(100*time.Millisecond), len(plan.Moves))
	await(t, "an empty plan", joinerWait, func() bool {
		okJSON(t, &plan, with("rebalance", "frankfurt", "--dry-run")...)
		return len(plan.Moves) == 0 && plan.Moving == 0
	})
	// Ranges under load weigh more than others, so a node with few of them may weigh as much as one
	// with many.
	if ranges, got := len(h.c.Ranges()), copies(); got == 0 || got == ranges || plan.Regions[0].Least < plan.Regions[0].Most/2 {
		t.Errorf("the new node has copies of %d of %d ranges, and the nodes weigh %+v", got, ranges, plan.Regions[0])
	}
	h.awaitProgress()
	h.end()
	h.awaitWhole(settleWait)
	h.audit()
	h.noneFailed()
}
