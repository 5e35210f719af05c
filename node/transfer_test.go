package node

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// startShort starts a region of three nodes whose ranges keep little log, with a table.
func startShort(t *testing.T) (nodes []*Node, table *rhumbpb.Table) {
	t.Helper()
	logKeepForTests = 256 << 10
	t.Cleanup(func() { logKeepForTests = 0 })
	return startThree(t)
}

// fill overwrites a few keys until the logs of all ranges are longer than what is kept.
func fill(t *testing.T, n *Node, table *rhumbpb.Table, round string) (want map[string]string) {
	t.Helper()
	kv := kvClient(t, n)
	want = map[string]string{}
	for i := range 120 {
		name, value := fmt.Sprintf("key-%d", i%40), round+rand.Text()+string(make([]byte, 64<<10))
		put(t, kv, table.Id, name, value)
		want[name] = value
	}
	return want
}

// copied returns how many ranges a node has received.
func copied(t *testing.T, n *Node) (sum float64) {
	t.Helper()
	families, err := n.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "rhumb_transfer_completed_total" {
			sum = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return sum
}

// TestTransferAfterTrim: a replica that returns after its part of the log is trimmed copies the ranges
// and is in sync again, while clients write; and then it serves the data alone with one other.
func TestTransferAfterTrim(t *testing.T) {
	nodes, table := startShort(t)
	away := nodes[2]
	want := fill(t, nodes[0], table, "before")
	away.Close()
	for name, value := range fill(t, nodes[0], table, "during") {
		want[name] = value
	}
	// Deleted records must be gone in the copy too.
	del(t, kvClient(t, nodes[0]), table.Id, "key-3")
	stop, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(failed)
		kv := kvClient(t, nodes[0])
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				put(t, kv, table.Id, fmt.Sprintf("load-%d", i%100), "x")
			}
		}
	}()
	again := startAgain(t, away, nodes[0])
	awaitInSync(t, nodes[0], 3)
	close(stop)
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if copied(t, again) == 0 {
		t.Fatal("nothing was copied: the logs were not trimmed")
	}
	// The copies hold the data: the node that never was away stops.
	nodes[1].Close()
	kv := kvClient(t, again)
	for name, value := range want {
		if name == "key-3" {
			continue
		}
		if got := get(t, kv, table.Id, name); got != value {
			t.Errorf("%s has %d bytes and begins with %.10q, want %d bytes and %.10q", name, len(got), got, len(value), value)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(again.cfg.Dirs[0], "transfer", "in", "*")); len(names) > 0 {
		t.Errorf("%v is left", names)
	}
}

// del deletes one key.
func del(t *testing.T, kv rhumbpb.KVClient, table uint32, name string) {
	t.Helper()
	_, err := kv.Do(t.Context(), &rhumbpb.Request{Hops: 2, Write: &rhumbpb.Write{Resolve: true, Mutations: []*rhumbpb.Mutation{{
		Kind: rhumbpb.MutationKind_MUTATION_KIND_DELETE, Table: table, Name: []byte(name),
	}}}})
	if err != nil {
		t.Fatal(err)
	}
}
