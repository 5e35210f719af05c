package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// damagedKeys is the number of records that the tests of damaged disks write.
const damagedKeys = 40

// stoppedRegion holds the directories and the table of a stopped region of three nodes.
type stoppedRegion struct {
	dirs  []string
	table uint32
}

// writeRegion starts a region of three nodes and writes a value for every key. Then it calls stop,
// which returns the directories to continue with.
func writeRegion(t *testing.T, value string, stop func(nodes []*Node) []string) stoppedRegion {
	t.Helper()
	nodes, table := startThree(t)
	putAll(t, nodes[0], table.Id, value)
	return stoppedRegion{table: table.Id, dirs: stop(nodes)}
}

// closeAll closes nodes concurrently and returns their directories.
func closeAll(nodes []*Node) (dirs []string) {
	var closing sync.WaitGroup
	for _, n := range nodes {
		closing.Go(n.Close)
		dirs = append(dirs, n.cfg.Dirs[0])
	}
	closing.Wait()
	return dirs
}

// start starts all nodes again.
func (r *stoppedRegion) start(t *testing.T) (nodes []*Node) {
	t.Helper()
	var join []string
	for i, dir := range r.dirs {
		n := startNode(t, dir, "singapore", string(rune('a'+i)), join...)
		nodes, join = append(nodes, n), append(join, n.Addr())
	}
	awaitReady(t, nodes...)
	return nodes
}

func putAll(t *testing.T, n *Node, table uint32, value string) {
	t.Helper()
	kv := kvClient(t, n)
	var writing sync.WaitGroup
	for i := range damagedKeys {
		writing.Go(func() { put(t, kv, table, fmt.Sprintf("key-%d", i), value) })
	}
	writing.Wait()
}

// checkAll fails unless every record has its value when read through each of the nodes.
func checkAll(t *testing.T, nodes []*Node, table uint32, value string) {
	t.Helper()
	for i := range damagedKeys {
		name := fmt.Sprintf("key-%d", i)
		if got := get(t, kvClient(t, nodes[i%len(nodes)]), table, name); got != value {
			t.Errorf("%s is %q, acknowledged was %q", name, got, value)
		}
	}
}

// checkHealthy fails if a node other than the damaged one is short or has a quarantined replica.
func checkHealthy(t *testing.T, nodes []*Node, damaged rhumb.NodeID) {
	t.Helper()
	st := nodes[0].State()
	for d := range st.Nodes() {
		if d.Short != (d.ID == damaged) {
			t.Errorf("%s is short: %v, want %v", d.ID, d.Short, d.ID == damaged)
		}
	}
	for r := range st.Ranges() {
		if len(r.Quarantined) > 0 {
			t.Errorf("range %s has quarantined replicas %v", r.ID, r.Quarantined)
		}
	}
}

// TestRolledBackDisk guards rule P and the lives of nodes. All nodes lose power, and the disk of
// one has the contents of an earlier life afterwards. Nothing acknowledged is lost, the node is
// marked short, and it catches up.
func TestRolledBackDisk(t *testing.T) {
	old := filepath.Join(t.TempDir(), "old")
	r := writeRegion(t, "first", func(nodes []*Node) []string {
		dirs := closeAll(nodes)
		if err := os.CopyFS(old, os.DirFS(dirs[1])); err != nil {
			t.Fatal(err)
		}
		return dirs
	})
	nodes := r.start(t)
	damaged := nodes[1].Identity().Node
	putAll(t, nodes[0], r.table, "second")
	closeAll(nodes)
	r.dirs[1] = old
	nodes = r.start(t)
	checkAll(t, nodes, r.table, "second")
	checkHealthy(t, nodes, damaged)
	awaitInSync(t, nodes[0], 3)
	putAll(t, nodes[2], r.table, "third")
	checkAll(t, nodes, r.table, "third")
}

// TestDamagedLog guards that a flipped byte in the synced log of one node is detected at its start,
// and that the other nodes replace the lost part of the log.
func TestDamagedLog(t *testing.T) {
	images := t.TempDir()
	r := writeRegion(t, "acknowledged", func(nodes []*Node) (dirs []string) {
		for i, n := range nodes { // the disks at the moment of the power failure
			dir := filepath.Join(images, fmt.Sprint(i))
			if err := os.CopyFS(dir, os.DirFS(n.cfg.Dirs[0])); err != nil {
				t.Fatal(err)
			}
			dirs = append(dirs, dir)
		}
		closeAll(nodes)
		return dirs
	})
	flipInLog(t, r.dirs[1], 2_000)
	nodes := r.start(t)
	checkAll(t, nodes, r.table, "acknowledged")
	checkHealthy(t, nodes, nodes[1].Identity().Node)
	if damage := nodes[1].engine.Damage(); len(damage) == 0 || damage[0].SetAside == "" {
		t.Errorf("the damage is not named: %+v", damage)
	}
	awaitInSync(t, nodes[0], 3)
	putAll(t, nodes[1], r.table, "later")
	checkAll(t, nodes, r.table, "later")
}

// flipInLog changes one byte of the newest log of a stopped node, a few bytes before its end.
func flipInLog(t *testing.T, dir string, before int) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "data", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("logs %v, %v", logs, err)
	}
	file := logs[len(logs)-1]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	end := len(bytes.TrimRight(b, "\x00"))
	if end < 2*before {
		t.Fatalf("%s holds %d bytes", file, end)
	}
	b[end-before] ^= 0xff
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
