package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/upgrade"
	"github.com/rhumbdb/rhumb/demo"
)

var (
	upgradeNodes = flag.Int("upgrade.nodes", 3, "nodes of TestRollingUpgrade, 3 to 9")
	upgradeSteps = flag.Int("upgrade.steps", 0, "random exchanges of programs in TestRollingUpgrade, before the version is finalized")
	upgradeSeed  = flag.Uint64("upgrade.seed", 1, "seed of the random exchanges")
	// The previous release can be built once and used many times.
	upgradeFrom = flag.String("upgrade.from", "", "program of the previous release; built from the history by default")
)

// noHistory is the exit code of previous.sh where the history of the previous release is missing.
const noHistory = 3

// buildPrevious builds the previous release from the history of this repository.
func buildPrevious(t *testing.T) string {
	t.Helper()
	if *upgradeFrom != "" {
		return *upgradeFrom
	}
	program := filepath.Join(t.TempDir(), "rhumb")
	build := exec.CommandContext(t.Context(), "../../deploy/release/previous.sh", program)
	text, err := build.CombinedOutput()
	if build.ProcessState != nil && build.ProcessState.ExitCode() == noHistory {
		t.Skipf("the history of the previous release is missing here, as in a shallow clone: %s", text)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return program
}

// upgradeNode is a node whose program the test exchanges. Its directory and addresses stay.
type upgradeNode struct {
	*process
	id      string
	args    []string
	addr    string
	program string // the path
}

// upgradeCluster is a cluster of real processes, some of which run the previous release.
type upgradeCluster struct {
	t        *testing.T
	old, now string
	nodes    []*upgradeNode
	load     *holder
}

// run runs a command against the cluster.
func (u *upgradeCluster) run(args ...string) (stdout, stderr string, code int) {
	u.t.Helper()
	var addrs []string
	for _, n := range u.nodes {
		addrs = append(addrs, n.addr)
	}
	return runIn(u.t.Context(), "", append(args, "--insecure", "--timeout", "10s", "--addr", strings.Join(addrs, ","))...)
}

// report returns the document of `rhumb upgrade status`.
func (u *upgradeCluster) report() (r upgrade.Report) {
	u.t.Helper()
	stdout, stderr, code := u.run("upgrade", "status", "-o", "json")
	if code != exit.OK || json.Unmarshal([]byte(stdout), &r) != nil {
		u.t.Fatalf("upgrade status: exit %d\n%s%s", code, stdout, stderr)
	}
	return r
}

// startNode starts a node with a program.
func (u *upgradeCluster) startNode(n *upgradeNode, program string) {
	u.t.Helper()
	n.program = program
	n.process = startProgram(u.t, program, nil, n.args...)
}

// exchange stops a node, as systemctl does, and starts it with another program. It returns when the node is
// ready and every copy is in sync again.
func (u *upgradeCluster) exchange(n *upgradeNode, program string) {
	u.t.Helper()
	begin := time.Now()
	if err := n.Process.Signal(syscall.SIGTERM); err != nil {
		u.t.Fatal(err)
	}
	if code := n.wait(); code != exit.OK {
		u.t.Fatalf("%s ended with code %d\n%s", n.id, code, n.stderr.String())
	}
	stopped := time.Since(begin)
	u.startNode(n, program)
	u.awaitReady()
	u.load.awaitHealthy()
	u.load.awaitProgress()
	u.t.Logf("%s now runs the %s program; stopped after %v, whole after %v; leader %s", n.id, u.nameOf(program), stopped.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond), u.leader())
}

func (u *upgradeCluster) nameOf(program string) string {
	if program == u.old {
		return "previous"
	}
	return "new"
}

// awaitReady waits until every node serves.
func (u *upgradeCluster) awaitReady() {
	u.t.Helper()
	await(u.t, "all nodes to be ready", bootWait, func() bool {
		stdout, _, _ := u.run("node", "ls", "-o", "json")
		return strings.Count(stdout, `"ready":true`) == len(u.nodes)
	})
}

// leader returns the node that leads the metadata group.
func (u *upgradeCluster) leader() (id string) {
	u.t.Helper()
	await(u.t, "a metadata leader", settleWait, func() bool {
		stdout, _, _ := u.run("status", "-o", "json")
		var doc struct {
			MetadataLeader string `json:"metadata_leader"`
		}
		id = ""
		if json.Unmarshal([]byte(stdout), &doc) == nil {
			id = doc.MetadataLeader
		}
		return id != ""
	})
	return id
}

// pick returns a node that leads, or one that does not.
func (u *upgradeCluster) pick(leads bool) *upgradeNode {
	u.t.Helper()
	leader := u.leader()
	for _, n := range u.nodes {
		if (n.id == leader) == leads {
			return n
		}
	}
	u.t.Fatalf("no node is wanted: the leader is %s", leader)
	return nil
}

// startPrevious starts a cluster of the previous release and a load on it.
func startPrevious(t *testing.T, count int) *upgradeCluster {
	t.Helper()
	now, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	u := &upgradeCluster{t: t, old: buildPrevious(t), now: now}
	base := t.TempDir()
	layout := &demo.Layout{}
	for i := range count {
		n := &upgradeNode{id: fmt.Sprintf("n%d", i+1), addr: freeAddr(t)}
		dir := filepath.Join(base, n.id)
		n.args = []string{
			"start", "--region", "frankfurt", "--zone", string(rune('a' + i%3)), "--dir", dir, "--insecure", "--addr", n.addr,
			"--gossip-addr", freeAddr(t), "--heartbeat-addr", freeAddr(t), "--admin-addr", freeAddr(t), "--snapshot-dir", dir + "-images", "--memory", "256MiB",
		}
		if i > 0 {
			n.args = append(n.args, "--join", u.nodes[0].addr)
		}
		u.nodes = append(u.nodes, n)
		u.startNode(n, u.old)
		if i == 0 {
			await(t, "the cluster to be made", bootWait, func() bool {
				_, _, code := runIn(t.Context(), "", "init", "--addr", n.addr, "--insecure")
				return code == exit.OK
			})
		}
		await(t, "the node to join", bootWait, func() bool {
			stdout, _, _ := runIn(t.Context(), "", "node", "ls", "--addr", u.nodes[0].addr, "--insecure", "-o", "json")
			return strings.Count(stdout, `"voter":`) == i+1
		})
		layout.Nodes = append(layout.Nodes, demo.Node{Addr: n.addr})
	}
	u.awaitReady()
	u.load = holdLoad(t, layout, 24)
	u.load.awaitProgress()
	return u
}

// TestRollingUpgrade guards that nodes of this build and of the previous release serve one cluster, and that every
// node can go back until the version is finalized. Under load it exchanges the program of followers and of the
// metadata leader, forward, back and forward again, finalizes, and starts a node with the previous release, which
// is refused. No write fails, and none that was acknowledged is missing.
func TestRollingUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	u := startPrevious(t, min(max(*upgradeNodes, 3), 9))
	h := u.load
	if r := u.report(); r.Version != 1 || r.Next != 0 {
		t.Fatalf("a cluster of the previous release: %+v", r)
	}
	// A minority of new followers under an old leader, then a new node in the place of the leader.
	first := u.pick(false)
	u.exchange(first, u.now)
	if r := u.report(); r.Next != 2 || len(r.Held(nil)) != len(u.nodes)-1 {
		t.Fatalf("after one node: %+v", r)
	}
	u.exchange(u.pick(true), u.now)
	if _, stderr, code := u.run("upgrade", "finalize", "--yes"); code == exit.OK || !strings.Contains(stderr, "cannot be finalized") {
		t.Fatalf("finalized with old nodes: exit %d, %s", code, stderr)
	}
	// One node goes back, on a directory that the new program wrote.
	u.exchange(first, u.old)
	u.wander(*upgradeSteps)
	for _, n := range u.nodes {
		if n.program == u.old {
			u.exchange(n, u.now)
		}
	}
	// What the new program adds waits for the version.
	if _, stderr, code := u.run("table", "create", "plans"); code != exit.OK {
		t.Fatal(stderr)
	}
	if _, stderr, code := u.run("table", "drop", "plans", "--yes"); code == exit.OK || !strings.Contains(stderr, "upgrade finalize") {
		t.Errorf("a feature of version 2 at version 1: exit %d, %s", code, stderr)
	}
	if r := u.report(); !r.Ready {
		t.Fatalf("all nodes are new: %+v", r)
	}
	stdout, stderr, code := u.run("upgrade", "finalize", "--yes", "-o", "json")
	var r upgrade.Report
	if code != exit.OK || json.Unmarshal([]byte(stdout), &r) != nil || r.Version != 2 || len(r.Waiting(2)) != 0 {
		t.Fatalf("finalize: exit %d\n%s%s", code, stdout, stderr)
	}
	if _, stderr, code := u.run("table", "drop", "plans", "--yes"); code != exit.OK {
		t.Errorf("a feature of version 2 at version 2: exit %d, %s", code, stderr)
	}
	h.awaitProgress()
	u.refusesPrevious(u.pick(false))
	h.end()
	h.audit()
	t.Logf("%d writes, %d failed; longest time of a caller without an answer %v", h.total(), h.failed.Load(), time.Duration(h.gap.Load()).Round(time.Millisecond))
	if h.failed.Load() > 0 {
		t.Errorf("%d writes failed", h.failed.Load())
	}
}

// wander exchanges random programs, so that the cluster passes through mixes: in six of ten steps towards the new
// program, else back. It prefers the leader in half of them. These are about the weights of etcd's mixed tests.
func (u *upgradeCluster) wander(steps int) {
	u.t.Helper()
	random := rand.New(rand.NewPCG(*upgradeSeed, 0))
	for range steps {
		to := u.now
		if random.IntN(10) >= 6 {
			to = u.old
		}
		n := u.nodes[random.IntN(len(u.nodes))]
		if random.IntN(2) == 0 {
			n = u.pick(true)
		}
		u.exchange(n, to)
	}
}

// refusesPrevious starts a node with the previous release after the version was finalized: on its own
// directory, and with an empty one as a new node. Both are refused with a reason. The node then returns with the
// new program.
func (u *upgradeCluster) refusesPrevious(n *upgradeNode) {
	t := u.t
	t.Helper()
	if err := n.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.wait()
	p := startProgram(t, u.old, nil, n.args...)
	if code := p.wait(); code == exit.OK || !strings.Contains(p.stderr.String(), "use the binary that wrote the store, or a newer one") {
		t.Errorf("the previous release on a directory of version 2: exit %d\n%s", code, p.stderr.String())
	}
	u.startNode(n, u.now)
	u.awaitReady()
	dir := t.TempDir()
	p = startProgram(t, u.old, nil, "start", "--region", "frankfurt", "--zone", "z", "--dir", dir, "--insecure", "--addr", freeAddr(t), "--gossip-addr", freeAddr(t),
		"--heartbeat-addr", freeAddr(t), "--admin-addr", freeAddr(t), "--snapshot-dir", dir+"-images", "--memory", "256MiB", "--join", u.nodes[0].addr)
	await(t, "the newcomer to say why it cannot join", settleWait, func() bool {
		return strings.Contains(p.stderr.String(), "install release "+rhumb.VersionNewest.Release())
	})
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait()
}
