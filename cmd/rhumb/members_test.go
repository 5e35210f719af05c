package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
)

// The tests of this file change who takes part in a cluster of real processes under load. No write may fail, and no
// acknowledged one may be missing afterwards.

// holdsNothing reports whether no range has a copy on a node.
func (h *holder) holdsNothing(id rhumb.NodeID) bool {
	for _, r := range h.c.Ranges() {
		if r.IsReplica(id) {
			return false
		}
	}
	return true
}

// noneFailed fails the test if a caller got an error for a write.
func (h *holder) noneFailed() {
	h.t.Helper()
	if n := h.failed.Load(); n > 0 {
		h.t.Errorf("%d writes failed", n)
	}
}

// awaitWhole waits until every range has three copies in sync.
func (h *holder) awaitWhole(most time.Duration) {
	h.t.Helper()
	await(h.t, "three copies of every range", most, func() bool {
		for _, r := range h.c.Ranges() {
			if len(r.InSync) != 3 || len(r.Replicas) != 3 {
				return false
			}
		}
		return true
	})
}

// nodeOf returns a node of a demo.
func nodeOf(l *demo.Layout, id rhumb.NodeID) demo.Node {
	return l.Nodes[slices.IndexFunc(l.Nodes, func(n demo.Node) bool { return n.ID == id })]
}

// TestDecommissionUnderLoad removes the metadata leader's node, one of four, under load: everything moves away, the operation
// is visible, and the node can be removed and its process ends.
func TestDecommissionUnderLoad(t *testing.T) {
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "4", "--latency", "none", "--load", "none", "--no-restart")
	h := holdLoad(t, l, 16)
	h.awaitProgress()
	var nodes []nodeDoc
	okJSON(t, &nodes, "node", "ls", "-o", "json")
	at := slices.IndexFunc(nodes, func(n nodeDoc) bool { return n.Leader })
	if at < 0 {
		t.Fatalf("no node leads the metadata: %+v", nodes)
	}
	victim := nodes[at]
	fails(t, exit.Precondition, "node", "rm", victim.ID)
	begin := time.Now()
	ok(t, "node", "decommission", victim.ID)
	t.Logf("%s was decommissioned within %v", victim.ID, time.Since(begin).Round(time.Millisecond))
	id := nodeID(t, victim.ID)
	if !h.holdsNothing(id) {
		t.Errorf("%s still has copies", victim.ID)
	}
	h.awaitProgress()
	var ops []operationDoc
	okJSON(t, &ops, "operation", "ls", "-o", "json")
	// The balance of copies may have begun moves.
	ops = slices.DeleteFunc(ops, func(o operationDoc) bool { return o.Kind == "move" })
	if len(ops) != 1 || ops[0].Kind != "decommission" || ops[0].State != "done" || ops[0].Done != ops[0].Total || ops[0].Total == 0 {
		t.Errorf("operations: %+v", ops)
	}
	ok(t, "node", "rm", victim.ID)
	for _, all := range []bool{false, true} {
		args := []string{"node", "ls", "-o", "json"}
		if all {
			args = append(args, "--all")
		}
		okJSON(t, &nodes, args...)
		if listed := slices.ContainsFunc(nodes, func(n nodeDoc) bool { return n.ID == victim.ID }); listed != all {
			t.Errorf("%v lists the removed node: %v", args, listed)
		}
	}
	process := nodeOf(l, id)
	await(t, "the removed node to stop", settleWait, func() bool { return gone(process.PID) })
	h.awaitProgress()
	h.end()
	h.awaitWhole(settleWait)
	h.audit()
	h.noneFailed()
	// A region of three nodes cannot lose another one.
	other := nodes[slices.IndexFunc(nodes, func(n nodeDoc) bool { return n.ID != victim.ID })].ID
	fails(t, exit.Precondition, "node", "decommission", other)
}

// nodeID parses the name of a node.
func nodeID(t *testing.T, s string) (id rhumb.NodeID) {
	t.Helper()
	if _, err := fmt.Sscanf(s, "n%d", &id); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestReplaceDeadNode kills a node for good and replaces it by a new one, under load.
func TestReplaceDeadNode(t *testing.T) {
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "4", "--latency", "none", "--load", "none", "--no-restart")
	h := holdLoad(t, l, 16)
	h.awaitProgress()
	dead := l.Nodes[1]
	if err := syscall.Kill(dead.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the node to be fenced", settleWait, func() bool {
		return slices.ContainsFunc(h.c.Nodes(), func(n rhumb.Node) bool { return n.ID == dead.ID && n.State == rhumb.NodeFenced })
	})
	begin := time.Now()
	ok(t, "node", "decommission", dead.ID.String())
	t.Logf("the copies of %s were created elsewhere within %v", dead.ID, time.Since(begin).Round(time.Millisecond))
	ok(t, "node", "rm", dead.ID.String())
	h.awaitProgress()
	h.end()
	h.awaitWhole(settleWait)
	h.audit()
	h.noneFailed()
}

// TestEmptyDiskIsRefilled kills one of three nodes, empties its disk and starts it again: within two minutes it holds all copies
// again, without a command.
func TestEmptyDiskIsRefilled(t *testing.T) {
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "3", "--latency", "none", "--load", "none", "--no-restart")
	h := holdLoad(t, l, 16)
	h.awaitProgress()
	dead := l.Nodes[1]
	args := commandLine(t, dead.PID)
	if err := syscall.Kill(dead.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the node to be gone", settleWait, func() bool { return gone(dead.PID) })
	if err := os.RemoveAll(dead.Dir); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	startProcess(t, nil, withJoin(args, l.Nodes[0].Addr)...)
	await(t, "the old identity to be given up", 2*time.Minute, func() bool {
		return slices.ContainsFunc(h.c.Nodes(), func(n rhumb.Node) bool { return n.ID == dead.ID && n.Forgotten })
	})
	h.awaitWhole(2*time.Minute - time.Since(begin))
	t.Logf("refilled within %v", time.Since(begin).Round(time.Millisecond))
	h.awaitProgress()
	h.end()
	h.audit()
	h.noneFailed()
}

// commandLine returns the arguments of a running process.
func commandLine(t *testing.T, pid int) []string {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")[1:]
}

// withJoin adds the address of a node to join.
func withJoin(args []string, addr string) []string {
	return append(slices.Clone(args), "--join", addr)
}

// awaitOperation waits until an operation is in a state, and returns its document.
func awaitOperation(t *testing.T, id, state string) (doc operationDoc) {
	t.Helper()
	await(t, id+" to be "+state, settleWait, func() bool {
		stdout, _, code := runIn(t.Context(), "", "operation", "describe", id, "-o", "json")
		return code == exit.OK && json.Unmarshal([]byte(stdout), &doc) == nil && doc.State == state
	})
	return doc
}

// TestOperationsOutliveTheirLeader moves copies between real processes under load: a paused replacement moves nothing; a cancelled one leaves
// no copy too many; the next one goes on after the metadata leader is killed with kill -9, and reaches its end.
func TestOperationsOutliveTheirLeader(t *testing.T) {
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "5", "--latency", "none", "--load", "none", "--no-restart")
	h := holdTableLoad(t, l, 8, client.TableOptions{Settings: rhumb.ClassSettings{HashSlots: 24}})
	h.awaitProgress()
	await(t, "three voters", settleWait, func() bool {
		all := h.c.Nodes()
		return len(slices.DeleteFunc(slices.Clone(all), func(n rhumb.Node) bool { return !n.Voter })) == 3
	})
	var nodes []nodeDoc
	okJSON(t, &nodes, "node", "ls", "-o", "json")
	at := slices.IndexFunc(nodes, func(n nodeDoc) bool { return n.Leader })
	if at < 0 {
		t.Fatalf("no node leads the metadata: %+v", nodes)
	}
	// A vote moves from the leader, which hands the leadership over first. Its node has no vote any more, and its copies move below.
	from, target := nodes[at], nodeOfRole(t, false)
	fails(t, exit.Usage, "voter", "move", target, from.ID)
	ok(t, "voter", "move", from.ID, target)
	voters := checkVoters(t, target, from.ID)
	okJSON(t, &nodes, "node", "ls", "-o", "json")
	at = slices.IndexFunc(nodes, func(n nodeDoc) bool { return n.Leader })
	if at < 0 || nodes[at].ID == from.ID {
		t.Fatalf("after its vote has moved, %s leads still: %+v", from.ID, nodes)
	}
	to := nodes[slices.IndexFunc(nodes, func(n nodeDoc) bool { return n.Voter && !n.Leader })]

	// One copy of a range, with the role of primary.
	var moved rhumb.RangeID
	// The balance of copies may be moving a range that is chosen, which refuses the request.
	await(t, "a copy to move", settleWait, func() bool {
		ranges := h.c.Ranges()
		at := slices.IndexFunc(ranges, func(r *rhumb.Range) bool {
			return r.IsReplica(nodeID(t, from.ID)) && !r.IsReplica(nodeID(t, to.ID))
		})
		if at < 0 {
			return false
		}
		moved = ranges[at].ID
		_, _, code := runIn(t.Context(), "", "range", "move", moved.String(), from.ID, to.ID)
		return code == exit.OK
	})
	fails(t, exit.Usage, "range", "move", moved.String(), from.ID, to.ID)

	// Paused at once, a replacement moves nothing more. Cancelled, it leaves no copy too many.
	var op operationDoc
	okJSON(t, &op, "node", "replace", from.ID, to.ID, "--no-wait")
	ok(t, "operation", "pause", op.ID)
	paused := awaitOperation(t, op.ID, "paused")
	h.awaitProgress()
	if now := awaitOperation(t, op.ID, "paused"); now.Done != paused.Done || now.Done == now.Total && now.Total > 0 {
		t.Errorf("a paused operation went from %+v to %+v", paused, now)
	}
	ok(t, "operation", "resume", op.ID)
	ok(t, "operation", "cancel", op.ID)
	awaitOperation(t, op.ID, "cancelled")
	h.awaitWhole(settleWait)

	// The next leader dies while a vote moves: the node that is to get it stands still, so the move cannot end before.
	// A stopped process is fenced after a second, while a running one could take the vote before the leader is killed.
	learner := nodes[slices.IndexFunc(nodes, func(n nodeDoc) bool { return !n.Voter && n.ID != from.ID })]
	loser := voters[slices.IndexFunc(voters, func(v voterDoc) bool { return v.Node != nodes[at].ID && v.Node != to.ID })]
	stopped := nodeOf(l, nodeID(t, learner.ID)).PID
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(stopped, syscall.SIGCONT) // if the test fails before
	okJSON(t, &op, "voter", "move", loser.Node, learner.ID, "--no-wait")
	vote := op.ID

	// The leader dies while copies move. Its own copies count as gone after replace_after, and until then ranges with too few others wait.
	ok(t, "setting", "set", "replace_after", "5s")
	okJSON(t, &op, "node", "replace", from.ID, to.ID, "--no-wait")
	if err := syscall.Kill(nodeOf(l, nodeID(t, nodes[at].ID)).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := syscall.Kill(stopped, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitOperation(t, vote, "done")
	t.Logf("the vote of %s moved to %s %v after the leader was killed", loser.Node, learner.ID, time.Since(begin).Round(time.Millisecond))
	checkVoters(t, learner.ID, loser.Node)
	done := awaitOperation(t, op.ID, "done")
	t.Logf("%s ended %v after its leader was killed, %d of %d ranges", op.ID, time.Since(begin).Round(time.Millisecond), done.Done, done.Total)
	if done.Done != done.Total || done.Total == 0 || !h.holdsNothing(nodeID(t, from.ID)) {
		t.Errorf("at the end: %+v", done)
	}
	h.awaitProgress()
	h.end()
	h.audit()
}

// nodeOfRole returns a node that votes in the metadata group, or one that does not.
func nodeOfRole(t *testing.T, voter bool) string {
	t.Helper()
	var all []voterDoc
	okJSON(t, &all, "voter", "ls", "--all", "-o", "json")
	at := slices.IndexFunc(all, func(v voterDoc) bool { return v.Voter == voter })
	if at < 0 {
		t.Fatalf("no node with voter=%v: %+v", voter, all)
	}
	return all[at].Node
}

// checkVoters checks the voters after a move: there are three, one of them leads, the new one is pinned, and the old one is not
// among them.
func checkVoters(t *testing.T, with, without string) (voters []voterDoc) {
	t.Helper()
	// The node that is asked may not have applied the end of the move yet.
	await(t, with+" to be pinned", settleWait, func() bool {
		okJSON(t, &voters, "voter", "ls", "-o", "json")
		return slices.ContainsFunc(voters, func(v voterDoc) bool { return v.Node == with && v.Voter && v.Why == "pinned by an operator" })
	})
	leads, found := 0, false
	voters = slices.DeleteFunc(voters, func(v voterDoc) bool { return !v.Voter })
	for _, v := range voters {
		if v.Leader {
			leads++
		}
		found = found || v.Node == with && v.Pinned && v.Why == "pinned by an operator"
		if v.Node == without {
			t.Errorf("%s votes still: %+v", without, voters)
		}
		if v.Leader && (v.LastIndex == 0 || v.Applied == 0 || v.Term == 0) {
			t.Errorf("the leader has no position: %+v", v)
		}
	}
	if len(voters) != 3 || leads != 1 || !found {
		t.Errorf("voters with %s: %+v", with, voters)
	}
	return voters
}
