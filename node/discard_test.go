package node

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// flipByte damages the middle of the largest table of a stopped node.
func flipByte(t *testing.T, dir string) string {
	t.Helper()
	var table string
	var size int64
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && strings.HasSuffix(path, ".sst") && info.Size() > size {
			table, size = path, info.Size()
		}
		return err
	})
	if err != nil || table == "" {
		t.Fatal("no table", err)
	}
	b, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 8
	if err := os.WriteFile(table, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return table
}

// readAll reads the logs of all ranges of a node, and with them the records that the node holds.
func readAll(n *Node) {
	for _, s := range n.engine.Stores() {
		states, _ := s.Ranges()
		for _, st := range states {
			_, _ = s.Entries(st.Range, st.Trim+1, st.Last.Seq, 1<<30) // the store records damage that it meets
		}
	}
}

func status(t *testing.T, n *Node) *rhumbpb.StatusResponse {
	t.Helper()
	resp, err := clusterClient(t, n).Status(t.Context(), &rhumbpb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func quarantined(n *Node, of rhumb.NodeID) (ids []rhumb.RangeID) {
	for r := range n.State().Ranges() {
		if r.IsQuarantined(of) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// TestDamagedCopyIsReplaced flips a byte in a table of a stopped node. The node quarantines the
// affected ranges and reports them, while other nodes serve. After the copies are discarded, they
// catch up and are in sync again.
func TestDamagedCopyIsReplaced(t *testing.T) {
	nodes, table := startThree(t)
	kv := kvClient(t, nodes[0])
	value := func(i int) string {
		b := make([]byte, 2_000) // cannot be compressed
		_, _ = rand.Read(b)
		return fmt.Sprint(i) + hex.EncodeToString(b)
	}
	values := map[string]string{}
	for i := range 200 {
		name := fmt.Sprintf("key-%d", i)
		values[name] = value(i)
		put(t, kv, table.Id, name, values[name])
	}
	victim := nodes[2]
	id := victim.Identity().Node
	victim.Close()
	victim = startAgain(t, victim, nodes[0]) // flushes the log into tables
	for _, s := range victim.engine.Stores() {
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	awaitInSync(t, nodes[0], 3)
	victim.Close()
	file := flipByte(t, victim.cfg.Dirs[0])
	victim = startAgain(t, victim, nodes[0])
	await(t, "the damage is met and the copies are quarantined", func() bool {
		readAll(victim)
		return len(quarantined(nodes[0], id)) > 0
	})
	await(t, "the node says so", func() bool {
		s := status(t, victim)
		named := false
		for _, store := range s.Stores {
			for _, d := range store.Damages {
				named = named || filepath.Base(d.File) == filepath.Base(file) && d.Offset >= 0
			}
		}
		return named && s.TroubleCounts[uint32(rhumbpb.ReplicaTroubleKind_REPLICA_TROUBLE_KIND_QUARANTINED)] > 0
	})
	for name, want := range values {
		if got := get(t, kv, table.Id, name); got != want {
			t.Fatalf("%s is wrong while a copy is damaged", name)
		}
	}
	put(t, kv, table.Id, "key-0", "newer")
	values["key-0"] = "newer"

	asked := clusterClient(t, nodes[1]) // forwards the request
	discard := func(ids []rhumb.RangeID) {
		for _, r := range ids {
			if _, err := asked.DiscardReplica(t.Context(), &rhumbpb.DiscardReplicaRequest{Range: api.EncodeRangeID(r), Node: 1}); err == nil {
				t.Fatal("an intact copy was discarded")
			}
			req := &rhumbpb.DiscardReplicaRequest{Range: api.EncodeRangeID(r), Node: uint32(id)}
			await(t, "the copy is discarded", func() bool {
				_, err := asked.DiscardReplica(t.Context(), req)
				return err == nil || !isQuarantined(nodes[0], r, id)
			})
		}
	}
	await(t, "no copy is quarantined", func() bool {
		ids := quarantined(nodes[0], id)
		discard(ids)
		return len(ids) == 0
	})
	awaitInSync(t, nodes[0], 3)
	if kept, _ := filepath.Glob(filepath.Join(victim.cfg.Dirs[0], "discarded", "*", filepath.Base(file))); len(kept) == 0 {
		t.Error("the damaged table of a discarded copy is not kept")
	}
	victim.Close()
	victim = startAgain(t, victim, nodes[0]) // the damage must not reappear
	awaitInSync(t, nodes[0], 3)
	if left := quarantined(nodes[0], id); len(left) > 0 || len(victim.engine.DamagedRanges()) > 0 {
		t.Fatalf("after a restart %v are quarantined, %v damaged", left, victim.engine.DamagedRanges())
	}
	for _, s := range victim.engine.Stores() {
		states, err := s.Ranges()
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range states {
			if err := s.Compact(st.Range); err != nil {
				t.Errorf("a compaction meets the damage again: %v", err)
			}
			entries, err := s.Entries(st.Range, st.Trim+1, st.Last.Seq, 1<<30)
			if err != nil || len(entries) != int(st.Last.Seq-st.Trim) {
				t.Fatalf("range %s: %d entries of %d, %v", st.Range, len(entries), st.Last.Seq-st.Trim, err)
			}
		}
	}
	for name, want := range values {
		if got := get(t, kv, table.Id, name); !bytes.Equal([]byte(got), []byte(want)) {
			t.Fatalf("%s is wrong after the copies were replaced", name)
		}
	}
}

func isQuarantined(n *Node, id rhumb.RangeID, of rhumb.NodeID) bool {
	r, ok := n.State().Range(id)
	return ok && r.IsQuarantined(of)
}

// TestLossIsAccepted damages the only copy of some ranges. They are not served until an operator
// accepts the loss. Then they are available again, empty, in a new epoch.
func TestLossIsAccepted(t *testing.T) {
	dir := t.TempDir()
	n := startNode(t, dir, "singapore", "a")
	cc := clusterClient(t, n)
	if _, err := cc.Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	table := createTable(t, n, "flights", 1)
	value := make([]byte, 4_000)
	for i := range 100 {
		_, _ = rand.Read(value)
		put(t, kvClient(t, n), table.Id, fmt.Sprintf("key-%d", i), hex.EncodeToString(value))
	}
	if err := n.engine.Stores()[0].Flush(); err != nil {
		t.Fatal(err)
	}
	n.Close()
	flipByte(t, dir)
	n = startNode(t, dir, "singapore", "a")
	awaitReady(t, n)
	await(t, "the damage is met", func() bool {
		readAll(n)
		return len(n.engine.DamagedRanges()) > 0 || len(quarantined(n, n.Identity().Node)) > 0 // the start may detect it
	})
	n.Close()
	n = startNode(t, dir, "singapore", "a")
	awaitReady(t, n)
	id := n.Identity().Node
	await(t, "the copies are quarantined", func() bool { return len(quarantined(n, id)) > 0 })
	lost := quarantined(n, id)
	cc = clusterClient(t, n)
	for _, r := range lost {
		before, _ := n.State().Range(r)
		req := &rhumbpb.DiscardReplicaRequest{Range: api.EncodeRangeID(r), Node: uint32(id)}
		if _, err := cc.DiscardReplica(t.Context(), req); err == nil || !strings.Contains(err.Error(), "unsafe-recover") {
			t.Fatalf("the last copy was discarded without a word: %v", err)
		}
		req.AcceptLoss = true
		for range 2 { // the command can be repeated after an interruption
			if _, err := cc.DiscardReplica(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		at, _ := n.State().Range(r)
		resp, err := cc.RecoverRange(t.Context(), &rhumbpb.RecoverRangeRequest{Range: req.Range, Node: req.Node, Version: at.Version})
		if err != nil || resp.Range.Epoch <= uint64(before.Epoch) || len(resp.Range.Quarantined) > 0 {
			t.Fatalf("%v: %v", resp, err)
		}
		if _, err := cc.RecoverRange(t.Context(), &rhumbpb.RecoverRangeRequest{Range: req.Range, Node: req.Node, Version: resp.Range.Version}); err == nil {
			t.Fatal("a range with an intact copy was recovered")
		}
	}
	for i := range 100 {
		name := fmt.Sprintf("key-%d", i)
		put(t, kvClient(t, n), table.Id, name, "new")
		if got := get(t, kvClient(t, n), table.Id, name); got != "new" {
			t.Fatalf("%s is %q", name, got)
		}
	}
	n.Close()
	n = startNode(t, dir, "singapore", "a")
	awaitReady(t, n)
	if got := get(t, kvClient(t, n), table.Id, "key-1"); got != "new" || len(quarantined(n, id)) > 0 {
		t.Fatalf("after a restart key-1 is %q, %v are quarantined", got, quarantined(n, id))
	}
}
