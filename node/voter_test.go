package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta"
)

// copyOf returns a copy of a running node's directory: the contents of the disk after a power
// failure.
func copyOf(t *testing.T, n *Node) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(n.cfg.Dirs[0])); err != nil {
		t.Fatal(err)
	}
	return to
}

// tables creates tables, so that the metadata log grows.
func tables(t *testing.T, n *Node, prefix string, count int) {
	t.Helper()
	for i := range count {
		createTable(t, n, fmt.Sprint(prefix, i), 3)
	}
}

// metadata returns the state of a node's metadata replica.
func metadata(t *testing.T, n *Node) (s raftmeta.Status) {
	t.Helper()
	if m := n.member.Load(); m != nil {
		var err error
		if s, err = m.group.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// awaitVoters waits until each of the nodes has a vote and may use it.
func awaitVoters(t *testing.T, nodes ...*Node) {
	t.Helper()
	await(t, "all vote", func() bool {
		for _, n := range nodes {
			if s := metadata(t, n); s.Silent || s.Short || s.Floor != 0 || len(s.Voters) != len(nodes) || !slices.Contains(s.Voters, n.Identity().Node) {
				return false
			}
		}
		return true
	})
}

// TestVoterLosesItsEnd damages the log of one of three nodes after a power failure, while the
// others continue. The node reports it at its start and has its vote back after it has caught up.
func TestVoterLosesItsEnd(t *testing.T) {
	nodes, table := startThree(t)
	awaitVoters(t, nodes...)
	put(t, kvClient(t, nodes[0]), table.Id, "k", "v")
	tables(t, nodes[0], "t", 4)
	dir := copyOf(t, nodes[1])
	nodes[1].Close()
	flipMiddle(t, dir)
	nodes[1] = startNode(t, dir, "singapore", "b", nodes[0].Addr())
	awaitReady(t, nodes[1])
	if len(nodes[1].engine.Damage()) == 0 {
		t.Fatal("nothing was damaged")
	}
	awaitVoters(t, nodes...)
	nodes[2].Close()
	tables(t, nodes[0], "more", 2) // needs the vote of the damaged node
	if got := get(t, kvClient(t, nodes[0]), table.Id, "k"); got != "v" {
		t.Errorf("k is %q", got)
	}
}

// flipMiddle changes a byte in the middle of the newest log of a store.
func flipMiddle(t *testing.T, dir string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "data", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal("no log", err)
	}
	path := slices.Max(logs)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := len(b)
	for end > 0 && b[end-1] == 0 {
		end--
	}
	b[end/2] ^= 0xff
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestVoterRolledBack stops all nodes and starts one of them from an older copy of its disk. The
// metadata contains every decision, and all nodes vote again.
func TestVoterRolledBack(t *testing.T) {
	nodes, _ := startThree(t)
	awaitVoters(t, nodes...)
	old := copyOf(t, nodes[2])
	tables(t, nodes[0], "later", 5)
	for _, n := range nodes {
		n.Close()
	}
	var again []*Node
	for i, dir := range []string{nodes[0].cfg.Dirs[0], nodes[1].cfg.Dirs[0], old} {
		var join []string
		for _, n := range again {
			join = append(join, n.Addr())
		}
		again = append(again, startNode(t, dir, "singapore", string(rune('a'+i)), join...))
	}
	awaitReady(t, again...)
	awaitVoters(t, again...)
	for i := range 5 {
		if _, ok := again[2].State().TableByName(fmt.Sprint("later", i)); !ok {
			t.Errorf("table later%d is lost", i)
		}
	}
	if d, _ := again[0].State().Node(again[2].Identity().Node); d == nil || d.State != rhumb.NodeLive {
		t.Errorf("the node that was rolled back: %+v", d)
	}
}
