package node

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
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
func copied(t *testing.T, n *Node) float64 {
	t.Helper()
	return metric(t, n, "rhumb_transfer_completed_total")
}

// metric returns the value of a counter of a node.
func metric(t *testing.T, n *Node, name string) (sum float64) {
	t.Helper()
	families, err := n.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
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

// TestDamagedCopyHeals: blocks of the tables of one node are damaged. Its copies are quarantined, and
// replaced from the other nodes without a person.
func TestDamagedCopyHeals(t *testing.T) {
	healAfterForTests = time.Second
	t.Cleanup(func() { healAfterForTests = -1 })
	nodes, table := startShort(t)
	want := fill(t, nodes[0], table, "value")
	victim := nodes[2]
	// Damage blocks of every table file of the victim, in the middle of the files.
	stopped := victim.Identity().Node
	for _, s := range victim.engine.Stores() {
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	victim.Close()
	damaged := 0
	files, _ := filepath.Glob(filepath.Join(victim.cfg.Dirs[0], "data", "*.sst"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || len(b) < 8<<10 {
			continue
		}
		b[len(b)/2] ^= 0x10
		if err := os.WriteFile(f, b, 0o644); err != nil {
			t.Fatal(err)
		}
		damaged++
	}
	again := startAgain(t, victim, nodes[0])
	if damaged == 0 {
		t.Fatal("no table file is large enough to damage")
	}
	// Reads of the damaged blocks find the damage.
	for _, s := range again.engine.Stores() {
		states, err := s.Ranges()
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range states {
			for _, err := range s.Scan(st.Range, rhumb.TableID(table.Id), nil, nil, 1<<63, 0) {
				if err != nil {
					break
				}
			}
		}
	}
	await(t, "a copy is quarantined", func() bool {
		for r := range nodes[0].State().Ranges() {
			if r.IsQuarantined(stopped) {
				return true
			}
		}
		return false
	})
	await(t, "all are in sync, and nothing is quarantined", func() bool {
		for r := range nodes[0].State().Ranges() {
			if r.IsQuarantined(stopped) || len(r.InSync) < 3 {
				return false
			}
		}
		return true
	})
	nodes[1].Close()
	kv := kvClient(t, again)
	for name, value := range want {
		if got := get(t, kv, table.Id, name); got != value {
			t.Errorf("%s is wrong", name)
		}
	}
}

// del deletes one key.
func del(t *testing.T, kv rhumbpb.KVClient, table uint32, name string) {
	t.Helper()
	retry(t, func(ctx context.Context) error {
		_, err := kv.Do(ctx, &rhumbpb.Request{Hops: 2, Write: &rhumbpb.Write{Resolve: true, Mutations: []*rhumbpb.Mutation{{
			Kind: rhumbpb.MutationKind_MUTATION_KIND_DELETE, Table: table, Name: []byte(name),
		}}}})
		return err
	})
}

// TestImageFollowsCopy guards the image of a node whose ranges are replaced by copies: its log does not lead to the new
// positions, so the image has to read the ranges as a whole. It must show what was written, moved and deleted meanwhile, and then
// follow the log.
func TestImageFollowsCopy(t *testing.T) {
	logKeepForTests = 256 << 10
	t.Cleanup(func() { logKeepForTests = 0 })
	nodes := startRegion(t)
	id := publishedTable(t, nodes[0], "cars", 3).Id
	// A table with the same settings is in the same ranges, so that its writes trim the logs of the cars.
	filler, err := clusterClient(t, nodes[0]).CreateTable(t.Context(), &rhumbpb.CreateTableRequest{
		Name: "filler", Settings: &rhumbpb.ClassSettings{Replicas: 3, HashSlots: 8},
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitInSync(t, nodes[0], 3)
	kv := kvClient(t, nodes[0])
	drive := func(name string, at rhumb.Point, speed int64) {
		write(t, kv, &rhumbpb.Mutation{Kind: rhumbpb.MutationKind_MUTATION_KIND_PUT, Table: id, Name: []byte(name), Value: car(t, at.Lat, at.Lon, speed)})
	}
	here, there := rhumb.Point{Lat: 1.3, Lon: 103.8}, rhumb.Point{Lat: 1.4, Lon: 103.9}
	for i := range 8 {
		drive(fmt.Sprintf("car%d", i), here, int64(i))
	}
	away := nodes[2]
	awaitImage(t, away, "before the node is away", shows("cars", here, map[string]int64{"car0": 0, "car1": 1, "car2": 2, "car3": 3, "car4": 4, "car5": 5, "car6": 6, "car7": 7}))
	away.Close()
	// Changed, moved away, deleted, and new; the fill pushes all of it out of the logs.
	drive("car0", here, 100)
	for i := 1; i < 6; i++ {
		drive(fmt.Sprintf("car%d", i), there, int64(i))
	}
	write(t, kv, &rhumbpb.Mutation{Kind: rhumbpb.MutationKind_MUTATION_KIND_DELETE, Table: id, Name: []byte("car6")})
	drive("car8", here, 8)
	for range 2 {
		fill(t, nodes[0], filler.Table, "during")
	}
	again := startAgain(t, away, nodes[0])
	awaitInSync(t, nodes[0], 3)
	if copied(t, again) == 0 {
		t.Fatal("nothing was copied: the logs were not trimmed")
	}
	awaitImage(t, again, "after the copy", shows("cars", here, map[string]int64{"car0": 100, "car7": 7, "car8": 8}))
	drive("car7", there, 7)
	drive("car1", here, 1)
	awaitImage(t, again, "after further writes", shows("cars", here, map[string]int64{"car0": 100, "car1": 1, "car8": 8}))
}
