package main

import (
	"encoding/json"
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
)

// The tests of this file take away what a removal depends on while it is in progress: the command that started it, the node that it is about, and
// the voters of a cluster with TLS and users.

// startAndKill starts an operation with a command that waits for its end, and kills the command with kill -9 when the operation is in progress. The
// operation is paused meanwhile, so that it cannot end before.
func startAndKill(t *testing.T, kind string, args ...string) (id string) {
	t.Helper()
	cmd := startProcess(t, nil, args...)
	var found operationDoc
	await(t, "the operation to begin", settleWait, func() bool {
		var ops []operationDoc
		stdout, _, code := runIn(t.Context(), "", "operation", "ls", "-o", "json")
		if code != exit.OK || json.Unmarshal([]byte(stdout), &ops) != nil {
			return false
		}
		at := slices.IndexFunc(ops, func(o operationDoc) bool { return o.Kind == kind })
		if at >= 0 {
			found = ops[at]
		}
		return at >= 0
	})
	ok(t, "operation", "pause", found.ID)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := cmd.wait(); code != -1 {
		t.Fatalf("the command ended with %d before it was killed:\n%s", code, cmd.stderr.String())
	}
	ok(t, "operation", "resume", found.ID)
	return found.ID
}

// TestOperationsOutliveTheirCommand kills the command of a decommissioning, and then the node that leaves, with kill -9 under load. The node starts
// again and leaves all the same, and counts as one that never failed. A replacement goes on without its command too.
func TestOperationsOutliveTheirCommand(t *testing.T) {
	l, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", "5", "--latency", "none", "--load", "none", "--no-restart")
	h := holdTableLoad(t, l, 8, client.TableOptions{Settings: rhumb.ClassSettings{HashSlots: 24}})
	h.awaitProgress()
	victim, old, target := l.Nodes[4], l.Nodes[3], l.Nodes[2]
	args := commandLine(t, victim.PID)
	op := startAndKill(t, "decommission", "node", "decommission", victim.ID.String())
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the node to be gone", settleWait, func() bool { return gone(victim.PID) })
	var now operationDoc
	okJSON(t, &now, "operation", "describe", op)
	if now.State != "running" {
		t.Fatalf("the operation ended before the node was killed: %+v", now)
	}
	again := startProcess(t, nil, args...)
	if done := awaitOperation(t, op, "done"); done.Done != done.Total || !h.holdsNothing(victim.ID) {
		t.Errorf("at the end: %+v", done)
	}
	if n, _ := nodeRecord(h.c, victim.ID); n.Relapses != 0 {
		t.Errorf("the node that left failed %d times", n.Relapses)
	}
	ok(t, "node", "rm", victim.ID.String())
	again.wait()

	op = startAndKill(t, "replace", "node", "replace", old.ID.String(), target.ID.String())
	awaitOperation(t, op, "done")
	if n, _ := nodeRecord(h.c, old.ID); !n.Forgotten || !h.holdsNothing(old.ID) {
		t.Errorf("the replaced node: %+v", n)
	}
	h.awaitProgress()
	h.end()
	h.awaitWhole(settleWait)
	h.audit()
	h.noneFailed()
}

// TestPausedNodeLearnsOfItsRemoval pauses a node and removes it for good. When the node goes on, the metadata group is without it, so nobody tells it.
// It asks, and its process ends.
func TestPausedNodeLearnsOfItsRemoval(t *testing.T) {
	k := startCrew(t, 4, mathrand.New(mathrand.NewPCG(1, 1)))
	victim, other := k.nodes[3], k.nodes[1]
	// The test reads in the log of another node who is a member of the metadata group.
	args := slices.Clone(other.args)
	args[slices.Index(args, "--log-level")+1] = "info"
	k.kill(other)
	witness := startProcess(t, nil, args...)
	if err := syscall.Kill(victim.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(victim.PID, syscall.SIGCONT) })
	await(t, "the paused node to be fenced", settleWait, func() bool { n, _ := nodeRecord(k.c, victim.ID); return n.State == rhumb.NodeFenced })
	ok(t, "node", "forget", victim.ID.String(), "--yes")
	await(t, "the metadata group to be without the node", settleWait, func() bool {
		var members struct {
			Msg              string
			Voters, Learners []rhumb.NodeID
		}
		for line := range strings.Lines(witness.stderr.String()) {
			if strings.Contains(line, `"metadata members"`) {
				if err := json.Unmarshal([]byte(line), &members); err != nil {
					t.Fatal(err)
				}
			}
		}
		return members.Msg != "" && !slices.Contains(append(members.Voters, members.Learners...), victim.ID)
	})
	if err := syscall.Kill(victim.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "the process of the removed node to end", settleWait, func() bool { return gone(victim.PID) })
}

// nodeRecord returns the record of a node.
func nodeRecord(c *client.Client, id rhumb.NodeID) (rhumb.Node, bool) {
	all := c.Nodes()
	at := slices.IndexFunc(all, func(n rhumb.Node) bool { return n.ID == id })
	if at < 0 {
		return rhumb.Node{}, false
	}
	return all[at], true
}

// addUser creates a user who may read and write a table, and returns what a command line needs to log in.
func (c *secureCluster) addUser(t *testing.T, name, table string) (identity []string) {
	t.Helper()
	password := filepath.Join(t.TempDir(), "password")
	must(os.WriteFile(password, []byte("correct horse\n"), 0o600))
	c.ok(t, "role", "create", name+"s")
	c.ok(t, "grant", name+"s", "--table", table, "--rights", "read,write")
	c.ok(t, "user", "create", name, "--new-password-file", password, "--role", name+"s")
	return []string{"--ca", filepath.Join(c.operator, "ca.crt"), "--user", name, "--password-file", password}
}

// dropNodes forgets nodes, so that commands no longer ask them, and the others join the first of those that are left.
func (c *secureCluster) dropNodes(gone func(*secureNode) bool) {
	c.nodes = slices.DeleteFunc(c.nodes, gone)
}

// TestSecureRegionIsRemoved removes the region of the founder of a cluster with TLS and users. A user may not do that. Afterwards users log in and keep
// their rights, the nodes of the region have stopped and cannot return, and a new node may use the name of the region.
func TestSecureRegionIsRemoved(t *testing.T) {
	c := startSecureCluster(t, "frankfurt", "frankfurt", "virginia", "virginia")
	c.ok(t, "table", "create", "notes", "--replicas", "2", "--hash-slots", "4")
	ann := c.addUser(t, "ann", "notes")
	put := func(key string) {
		t.Helper()
		await(t, key+" to be written", settleWait, func() bool {
			_, _, code := runIn(t.Context(), "", c.with(ann, "put", "notes", key, "n=1", "--home", "frankfurt")...)
			return code == exit.OK
		})
	}
	put("before")
	fails(t, exit.Auth, c.with(ann, "region", "rm", "frankfurt")...)
	fails(t, exit.Auth, c.with(ann, "operation", "ls")...)
	c.ok(t, "region", "rm", "frankfurt", "--timeout", "60s")
	leaves := func(n *secureNode) bool { return n.region == "frankfurt" }
	removed := slices.DeleteFunc(slices.Clone(c.nodes), func(n *secureNode) bool { return !leaves(n) })
	for _, n := range removed {
		await(t, n.name+" to stop", settleWait, func() bool { return gone(n.Process.Pid) })
		n.wait()
	}
	// A node that was removed stays away, although its certificate is valid still.
	c.startNode(t, removed[1])
	if code := removed[1].wait(); code == exit.OK || !strings.Contains(removed[1].stderr.String(), "removed") {
		t.Errorf("a removed node starts again: exit %d", code)
	}
	c.dropNodes(leaves)
	if out := ok(t, c.with(ann, "get", "notes", "before")...); !strings.Contains(out, "1") {
		t.Errorf("a record of the removed region: %s", out)
	}
	ok(t, c.with(ann, "put", "notes", "after", "n=2")...)
	fails(t, exit.Auth, c.with(ann, "table", "create", "mine", "--replicas", "1")...)
	c.ok(t, "user", "create", "bob", "--no-password", "--role", "anns")
	fresh := c.addNode(t, "frankfurt")
	fresh.name = "frankfurt-9"
	c.makeToken(t, fresh, false)
	c.startNode(t, fresh, "--location", "50.1,8.7")
	c.awaitReady(t)
	var regions []regionDoc
	okJSON(t, &regions, c.as("region", "ls")...)
	if at := slices.IndexFunc(regions, func(r regionDoc) bool { return r.Name == "frankfurt" }); at < 0 || regions[at].Nodes != 1 {
		t.Errorf("regions: %+v", regions)
	}
	var doc statusDoc
	okJSON(t, &doc, c.as("status")...)
	if len(doc.Regions) != 2 || slices.ContainsFunc(doc.Regions, func(r regionDoc) bool { return r.State == removedState }) {
		t.Errorf("the status lists %+v", doc.Regions)
	}
}

// TestSecureUnsafeRecoverMetadata loses two of three voters of a cluster with TLS and users for good. After `unsafe-recover metadata` on the third one,
// users, roles and rights are those that there were, and a new node joins with a token.
func TestSecureUnsafeRecoverMetadata(t *testing.T) {
	c := startSecureCluster(t, "frankfurt", "frankfurt", "frankfurt")
	c.ok(t, "table", "create", "notes", "--replicas", "3", "--hash-slots", "2")
	ann := c.addUser(t, "ann", "notes")
	await(t, "three voters and three copies", bootWait, func() bool {
		var doc statusDoc
		stdout, _, code := runIn(t.Context(), "", c.as("status", "-o", "json")...)
		return code == exit.OK && json.Unmarshal([]byte(stdout), &doc) == nil && doc.CanLose == 1
	})
	ok(t, c.with(ann, "put", "notes", "k", "n=1")...)
	survivor := c.nodes[2]
	for _, n := range c.nodes {
		must(n.Process.Kill())
		n.wait()
		if n != survivor {
			must(os.RemoveAll(n.dir))
		}
	}
	ok(t, "unsafe-recover", "metadata", "--dir", survivor.dir, "--yes")
	lost := slices.Clone(c.nodes[:2])
	c.dropNodes(func(n *secureNode) bool { return n != survivor })
	c.startNode(t, survivor)
	// Before that, ranges of a new table would be placed on them.
	await(t, "the lost nodes to be fenced", settleWait, func() bool {
		var nodes []nodeDoc
		stdout, _, code := runIn(t.Context(), "", c.as("node", "ls", "-o", "json")...)
		return code == exit.OK && json.Unmarshal([]byte(stdout), &nodes) == nil && len(nodes) == 3 &&
			!slices.ContainsFunc(nodes, func(n nodeDoc) bool { return (n.State == "fenced") == (n.Name == survivor.name) })
	})
	// Metadata can be changed again, by those who could before, and by nobody else.
	await(t, "a table to be created", bootWait, func() bool {
		_, _, code := runIn(t.Context(), "", c.as("table", "create", "new", "--replicas", "1", "--timeout", "2s")...)
		return code == exit.OK
	})
	fails(t, exit.Auth, c.with(ann, "table", "create", "mine", "--replicas", "1")...)
	if out := c.ok(t, "grant", "ls", "-o", "json"); !strings.Contains(out, "anns") {
		t.Errorf("the rights are %s", out)
	}
	ok(t, c.with(ann, "whoami")...)
	// The survivor has the only copy of each range that is left, and takes an operator's word for what the others may have had.
	var ranges []rangeDoc
	okJSON(t, &ranges, c.as("range", "ls")...)
	for _, r := range ranges {
		if len(r.Replicas) == 3 {
			c.ok(t, "unsafe-recover", "range", r.ID, "--node", survivor.name, "--yes")
		}
	}
	// Two new nodes take the places of those that were lost.
	c.ok(t, "setting", "set", "replace_after", "5s")
	for i, n := range lost {
		fresh := c.addNode(t, "frankfurt")
		fresh.name = "frankfurt-" + string(rune('7'+i))
		fresh.dir, fresh.token = filepath.Join(c.dir, fresh.name), filepath.Join(c.dir, fresh.name+".token")
		c.makeToken(t, fresh, false)
		c.startNode(t, fresh)
		await(t, n.name+" to be removed", settleWait, func() bool {
			_, _, code := runIn(t.Context(), "", c.as("node", "rm", n.name, "--force", "--yes")...)
			return code == exit.OK
		})
	}
	await(t, "the record to be written and read", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", c.with(ann, "put", "notes", "k", "more=2", "--timeout", "5s")...)
		return code == exit.OK
	})
	if out := ok(t, c.with(ann, "get", "notes", "k")...); !strings.Contains(out, "n") || !strings.Contains(out, "more") {
		t.Errorf("the record: %s", out)
	}
	await(t, "the cluster to be well", settleWait, func() bool {
		_, _, code := runIn(t.Context(), "", c.as("status", "--check")...)
		return code == exit.OK
	})
}

// moveFlag is the size of the copy that TestMoveIsPausedAndCancelled moves. It takes eight seconds whatever the size, so that there is time to
// interrupt it.
var moveFlag = flag.Int("move.mib", copyBytes>>20, "size in MiB of the copy that is moved, paused and cancelled")

// TestMoveIsPausedAndCancelled moves a large copy, pauses the move in the middle of the transfer, resumes it, cancels it in the middle, and moves
// it at last. A paused move continues where it was, a cancelled one leaves nothing behind, and every record is there in the end.
func TestMoveIsPausedAndCancelled(t *testing.T) {
	k := startCrew(t, 4, mathrand.New(mathrand.NewPCG(1, 1)))
	bytes := *moveFlag << 20
	ok(t, "table", "create", "big", "--replicas", "3", "--hash-slots", "1")
	id := k.bigRange("big")
	for _, n := range k.nodes {
		n.args = append(n.args, "--log-keep", "1MiB", "--transfer-rate", fmt.Sprintf("%dMiB", *moveFlag/8))
		before := k.life(n.ID)
		k.kill(n)
		k.start(n)
		k.awaitNewLife(n, before)
		await(t, "the cluster to be whole", settleWait, k.isHealthy)
	}
	k.fillBytes("big", bytes)
	var from rhumb.NodeID
	var to *crewNode
	for _, n := range k.nodes {
		r := k.rangeRecord(id)
		switch {
		case !r.IsReplica(n.ID):
			to = n
		case r.Primary != n.ID:
			from = n.ID
		}
	}
	record := func() *rhumb.Range { return k.rangeRecord(id) }
	begin := func() string {
		var o operationDoc
		okJSON(t, &o, "range", "move", id.String(), from.String(), to.ID.String(), "--no-wait")
		return o.ID
	}
	received := func() float64 { return scrape(t, to.AdminAddr, "rhumb_transfer_received_bytes_total") }
	op := begin()
	k.awaitCopied(to, id, float64(bytes/8))
	ok(t, "operation", "pause", op)
	if r := record(); !r.IsReplica(from) || !r.IsInSync(from) {
		t.Errorf("a paused move has removed the old copy: %+v", r)
	}
	ok(t, "operation", "resume", op)
	k.awaitCopied(to, id, float64(bytes/4))
	ok(t, "operation", "cancel", op)
	await(t, "the new copy to be removed again", settleWait, func() bool {
		r := record()
		return !r.IsReplica(to.ID) && len(r.Replicas) == 3 && len(r.InSync) == 3 && len(r.Leaving) == 0
	})
	awaitOperation(t, op, "cancelled")
	// The next one ends, with the node that receives killed once.
	before := received()
	op = begin()
	await(t, "the second copy to begin", settleWait, func() bool { return received() > before+float64(bytes/8) })
	life := k.life(to.ID)
	k.kill(to)
	k.start(to)
	k.awaitNewLife(to, life)
	done := awaitOperation(t, op, "done")
	if r := record(); !r.IsInSync(to.ID) || r.IsReplica(from) {
		t.Errorf("%+v: %+v", done, r)
	}
	var verdicts []verdictDoc
	// The range may change its primary once more, because the node that was killed is preferred: then the comparison is refused.
	await(t, "the range to be compared", settleWait, func() bool {
		stdout, _, code := runIn(t.Context(), "", "range", "verify", id.String(), "--timeout", "30s", "-o", "json")
		return code == exit.OK && json.Unmarshal([]byte(stdout), &verdicts) == nil
	})
	if len(verdicts) != 1 || verdicts[0].Result != "equal" || slices.ContainsFunc(verdicts[0].Replicas, func(r replicaVerdictDoc) bool { return int(r.Records) < bytes/(256<<10) }) {
		t.Errorf("%+v", verdicts)
	}
}

// rangeRecord returns the record of a range.
func (k *crew) rangeRecord(id rhumb.RangeID) *rhumb.Range {
	k.t.Helper()
	all := k.c.Ranges()
	at := slices.IndexFunc(all, func(r *rhumb.Range) bool { return r.ID == id })
	if at < 0 {
		k.t.Fatalf("range %s is not known", id)
	}
	return all[at]
}
