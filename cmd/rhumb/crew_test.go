package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
)

// clockSuffix is what the name of the file with the error of a node's clock has after the node's directory.
const clockSuffix = ".clock"

// withClockFile adds the file with the error of the clock to the arguments of a node.
func withClockFile(args []string) []string {
	at := slices.Index(args, "--dir")
	if len(args) < 2 || args[1] != "start" || at < 0 || at+1 == len(args) {
		return args
	}
	return append(slices.Clone(args), "--clock-error-file", args[at+1]+clockSuffix)
}

// crew holds the nodes of a demo that the test kills and restarts itself, because it changes their
// disks and clocks in between.
type crew struct {
	t       *testing.T
	c       *client.Client
	cluster *bench.Cluster
	nodes   []*crewNode
	random  *rand.Rand
}

type crewNode struct {
	demo.Node
	args []string
}

// startCrew starts a demo of one region that does not restart nodes.
func startCrew(t *testing.T, nodes int, random *rand.Rand) *crew {
	t.Helper()
	layout, _ := startDemo(t, "--regions", "singapore", "--nodes-per-region", fmt.Sprint(nodes), "--latency", "none", "--load", "none", "--no-restart", "--cuts")
	k := &crew{t: t, random: random, cluster: &bench.Cluster{LatencyFile: layout.LatencyFile}}
	var addrs []string
	for _, n := range layout.Nodes {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.PID))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		k.nodes = append(k.nodes, &crewNode{Node: n, args: words[1:]})
		k.cluster.Nodes = append(k.cluster.Nodes, bench.ClusterNode{ID: n.ID, Region: n.Region, Addr: n.Addr, AdminAddr: n.AdminAddr})
		addrs = append(addrs, n.Addr)
	}
	var err error
	k.c, err = client.Open(t.Context(), client.Config{Addrs: addrs, Insecure: true, Timeout: callTimeout, ConnectTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.c.Close)
	return k
}

// draw returns a random node.
func (k *crew) draw() *crewNode { return k.nodes[k.random.IntN(len(k.nodes))] }

// kill ends a node with kill -9.
func (k *crew) kill(n *crewNode) {
	k.t.Helper()
	if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
		k.t.Fatal(err)
	}
	await(k.t, "the node to be gone", settleWait, func() bool { return gone(n.PID) })
}

// gone reports whether a process has ended, reaped or not, and released its files. The first thread of a killed process may be a
// zombie while others still hold its locks.
func gone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return true
	}
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	_, after, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(after, "Z") && len(threads) <= 1
}

// start restarts a node on its directory.
func (k *crew) start(n *crewNode) {
	k.t.Helper()
	p := startProcess(k.t, nil, n.args...)
	n.PID = p.Process.Pid
}

// life returns the life of a node in the catalog.
func (k *crew) life(id rhumb.NodeID) rhumb.BootSeq {
	for _, n := range k.c.Nodes() {
		if n.ID == id {
			return n.Boot
		}
	}
	return 0
}

// isHealthy reports whether all nodes are live and all replicas are in sync.
func (k *crew) isHealthy() bool {
	for _, n := range k.c.Nodes() {
		if n.State != rhumb.NodeLive {
			return false
		}
	}
	for _, r := range k.c.Ranges() {
		if len(r.InSync) < len(r.Replicas) {
			return false
		}
	}
	return true
}

// crewFault injects a fault into a crew, heals it after a while, and returns a description of it.
type crewFault struct {
	name string
	run  func(k *crew, hold time.Duration) (what string)
}

// passingFaults returns the faults that do not change a disk.
func passingFaults() (out []crewFault) {
	for _, kind := range []bench.FaultKind{bench.FaultPause, bench.FaultOneWay, bench.FaultRing, bench.FaultBridge, bench.FaultHalfOpen} {
		out = append(out, crewFault{string(kind), func(k *crew, hold time.Duration) string { return k.strike(kind, hold) }})
	}
	return append(out, crewFault{"kill", (*crew).killOne}, crewFault{"kill-all", (*crew).killAll}, crewFault{"clock", (*crew).stepClock})
}

// diskFaults returns the faults that make one disk lose acknowledged data.
func diskFaults() []crewFault {
	return []crewFault{{"flip", (*crew).flipBit}, {"roll-back", (*crew).rollBack}, {"empty", (*crew).emptyDisk}}
}

// strike injects a fault that package bench implements.
func (k *crew) strike(kind bench.FaultKind, hold time.Duration) string {
	k.t.Helper()
	before := k.cluster.Withheld(k.t.Context())
	f, err := k.cluster.Strike(kind, k.random)
	if err != nil {
		k.t.Fatal(err)
	}
	time.Sleep(hold)
	if kind != bench.FaultPause && k.cluster.Withheld(k.t.Context()) == before {
		k.t.Errorf("%s: the links withheld nothing", f.What)
	}
	if err := f.Heal(); err != nil {
		k.t.Fatal(err)
	}
	return f.What
}

// killOne kills a node and restarts it on its disk.
func (k *crew) killOne(hold time.Duration) string {
	n := k.draw()
	before := k.life(n.ID)
	k.kill(n)
	time.Sleep(hold)
	k.start(n)
	k.awaitNewLife(n, before)
	return "kill " + n.ID.String()
}

// killAll kills all nodes at once and restarts them.
func (k *crew) killAll(time.Duration) string {
	before := map[rhumb.NodeID]rhumb.BootSeq{}
	for _, n := range k.nodes {
		before[n.ID] = k.life(n.ID)
		k.kill(n)
	}
	for _, n := range k.nodes {
		k.start(n)
	}
	for _, n := range k.nodes {
		k.awaitNewLife(n, before[n.ID])
	}
	return "kill all"
}

// awaitNewLife waits until a restarted node is in a new life.
func (k *crew) awaitNewLife(n *crewNode, before rhumb.BootSeq) {
	k.t.Helper()
	await(k.t, "the node to begin a new life", settleWait, func() bool { return k.life(n.ID) > before })
}

// clockSteps lists the errors of a wrong clock.
var clockSteps = []time.Duration{100 * time.Millisecond, 2 * time.Second, time.Minute, time.Hour}

// stepClock sets the clock of one node ahead or back, and then right again.
func (k *crew) stepClock(hold time.Duration) string {
	k.t.Helper()
	n, step := k.draw(), clockSteps[k.random.IntN(len(clockSteps))]
	if k.random.IntN(2) == 0 {
		step = -step
	}
	k.setClock(n, step)
	time.Sleep(hold)
	k.setClock(n, 0)
	return fmt.Sprintf("clock of %s %v", n.ID, step)
}

// setClock renames a whole file into place, so that the node never reads half of it.
func (k *crew) setClock(n *crewNode, wrong time.Duration) {
	k.t.Helper()
	part := n.Dir + clockSuffix + ".part"
	if err := os.WriteFile(part, fmt.Appendf(nil, "offset=%v", wrong), 0o600); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(part, n.Dir+clockSuffix); err != nil {
		k.t.Fatal(err)
	}
}

// flipBit changes one bit in the largest log of a killed node.
func (k *crew) flipBit(hold time.Duration) string {
	k.t.Helper()
	n := k.draw()
	k.kill(n)
	file, at := k.flipLogBit(n)
	time.Sleep(hold)
	k.start(n)
	return fmt.Sprintf("bit of byte %d of %s of %s", at, file, n.ID)
}

// flipLogBit returns the file and the offset of the changed byte.
func (k *crew) flipLogBit(n *crewNode) (file string, at int) {
	k.t.Helper()
	logs, err := filepath.Glob(filepath.Join(n.Dir, "data", "*.log"))
	if err != nil || len(logs) == 0 {
		k.t.Fatalf("%d logs in %s: %v", len(logs), n.Dir, err)
	}
	var text []byte
	for _, name := range logs {
		b, err := os.ReadFile(name)
		if err != nil {
			k.t.Fatal(err)
		}
		if len(b) > len(text) {
			file, text = name, b
		}
	}
	used := len(text)
	for used > 1 && text[used-1] == 0 { // logs are recycled and may end in zeros
		used--
	}
	at = k.random.IntN(used)
	text[at] ^= 1 << k.random.IntN(8)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		k.t.Fatal(err)
	}
	return filepath.Base(file), at
}

// rollBack restores the disk of a node to its state some seconds before.
func (k *crew) rollBack(hold time.Duration) string {
	k.t.Helper()
	n := k.draw()
	image := filepath.Join(k.t.TempDir(), "image")
	before := k.life(n.ID)
	k.kill(n)
	if err := os.CopyFS(image, os.DirFS(n.Dir)); err != nil {
		k.t.Fatal(err)
	}
	k.start(n)
	k.awaitNewLife(n, before)
	await(k.t, "the cluster to be whole", settleWait, k.isHealthy)
	time.Sleep(hold)
	k.kill(n)
	if err := os.RemoveAll(n.Dir); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Rename(image, n.Dir); err != nil {
		k.t.Fatal(err)
	}
	k.start(n)
	return "roll-back of " + n.ID.String()
}

// emptyDisk removes everything from the disk of a node.
func (k *crew) emptyDisk(hold time.Duration) string {
	k.t.Helper()
	n := k.draw()
	k.kill(n)
	if err := os.RemoveAll(n.Dir); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Mkdir(n.Dir, 0o700); err != nil {
		k.t.Fatal(err)
	}
	time.Sleep(hold)
	k.start(n)
	return "empty " + n.ID.String()
}
