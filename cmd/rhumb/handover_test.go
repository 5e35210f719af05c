package main

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/exit"
)

// TestHandoversUnderLoad moves primaries between real processes under load: by `range handover`, by draining the node that
// leads the metadata and taking it back, and by `node failback`. No write fails, none is lost, and the
// metrics show that the ranges were handed over and that nobody was elected.
func TestHandoversUnderLoad(t *testing.T) {
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "3", "--latency", "none", "--load", "none", "--no-restart")
	cluster := &bench.Cluster{}
	for _, n := range l.Nodes {
		cluster.Nodes = append(cluster.Nodes, bench.ClusterNode{ID: n.ID, Region: n.Region, Addr: n.Addr, AdminAddr: n.AdminAddr})
	}
	h := holdLoad(t, l, 16)
	h.awaitProgress()
	h.awaitWhole(settleWait)
	ok(t, "status", "--wait", "--timeout", settleWait.String())
	ok(t, "setting", "set", "failback", "manual")
	// Now nothing but this test moves primaries. Each handover goes to another node than the one before.
	var moved handoverDoc
	for range 10 {
		r := h.c.Ranges()[0]
		to := r.InSync[slices.IndexFunc(r.InSync, func(id rhumb.NodeID) bool { return id != r.Primary })]
		okJSON(t, &moved, "range", "handover", r.ID.String(), "--to", to.String(), "-o", "json")
		if moved.From != r.Primary.String() || moved.To != to.String() || moved.Epoch <= uint64(r.Epoch) {
			t.Errorf("the range %+v was handed over as %+v", r, moved)
		}
		// The watch of this client may lag after the command's.
		await(t, "the handover to be seen", settleWait, func() bool {
			now := h.c.Ranges()[0]
			return now.Primary == to && now.Preferred == to && uint64(now.Epoch) >= moved.Epoch
		})
	}
	// The node is the primary since the last handover: nothing happens, and the command says so.
	var again handoverDoc
	okJSON(t, &again, "range", "handover", moved.Range, "--to", moved.To, "-o", "json")
	if again != (handoverDoc{Range: moved.Range, From: moved.To, To: moved.To, Epoch: moved.Epoch}) {
		t.Errorf("a handover to the primary: %+v after %+v", again, moved)
	}
	fails(t, exit.NotFound, "range", "handover", "1/99999", "--to", "n1")
	// The argument has the right form, and no such region.
	fails(t, exit.NotFound, "range", "move", "atlantis/0", "n1", "n2")
	fails(t, exit.Usage, "range", "move", "atlantis", "n1", "n2")
	fails(t, exit.Usage, "status", "--timeout", "-1s")
	fails(t, exit.NotFound, "range", "handover", moved.Range, "--to", "n9")
	fails(t, exit.Usage, "setting", "set", "failback", "sometimes")

	var nodes []nodeDoc
	okJSON(t, &nodes, "node", "ls", "-o", "json")
	at := slices.IndexFunc(nodes, func(n nodeDoc) bool { return n.Leader })
	if at < 0 {
		t.Fatalf("no node leads the metadata: %+v", nodes)
	}
	victim := nodeID(t, nodes[at].ID)
	had := h.primariesOf(victim)
	if had == 0 {
		t.Fatalf("%s is primary of no range", victim)
	}
	// The leader of the metadata drains as any other node does, and leads on.
	begin := time.Now()
	ok(t, "node", "drain", victim.String())
	t.Logf("%d ranges were handed over within %v", had, time.Since(begin).Round(time.Millisecond))
	await(t, "the drained node to be primary of nothing", settleWait, func() bool { return h.primariesOf(victim) == 0 })
	h.awaitProgress()
	ok(t, "node", "drain", victim.String(), "--undo")
	h.awaitWhole(settleWait)
	if n := h.primariesOf(victim); n != 0 {
		t.Errorf("%d ranges went back with failback at manual", n)
	}
	// The other way round, for all ranges that the node had before.
	var back failbackDoc
	okJSON(t, &back, "node", "failback", victim.String(), "-o", "json")
	if back.Moved != had || len(back.Blocked) > 0 {
		t.Errorf("%+v went back of %d", back, had)
	}
	// The metadata of this client follows that of the leader.
	await(t, "the node to be primary of its ranges again", settleWait, func() bool { return h.primariesOf(victim) == had })
	ok(t, "setting", "set", "failback", "never")
	fails(t, exit.Precondition, "node", "failback", victim.String())
	h.awaitProgress()
	// An election would move the ranges too, with a longer pause.
	if n := cluster.Sum(t.Context(), "rhumb_host_handovers_total"); int(n) != 10+2*had {
		t.Errorf("primaries handed over %v ranges, want %d", n, 10+2*had)
	}

	// The setting concerns fail-back only: a node that stops hands over whatever it says.
	//
	// A process that is stopped hands over before it ends.
	process := nodeOf(l, victim)
	if err := syscall.Kill(process.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, "the stopped node to end", settleWait, func() bool { return gone(process.PID) })
	// A node that is down is named, and the wait has an end.
	if _, stderr, code := runIn(t.Context(), "", "status", "--wait", "--timeout", "3s"); code != exit.Unavailable || !strings.Contains(stderr, victim.String()+" is not ready") {
		t.Errorf("status --wait with a node down: exit %d, %s", code, stderr)
	}
	h.awaitProgress()
	h.end()
	h.audit()
	h.noneFailed()
	t.Logf("%d writes, the longest took %v", h.total(), time.Duration(h.gap.Load()).Round(time.Millisecond))
}

// primariesOf counts the ranges that a node is primary of.
func (h *holder) primariesOf(id rhumb.NodeID) (count int) {
	for _, r := range h.c.Ranges() {
		if r.Primary == id {
			count++
		}
	}
	return count
}
