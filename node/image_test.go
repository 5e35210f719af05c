package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

const imageFeatures = rhumb.SnapshotOn | rhumb.SnapshotSpatial | rhumb.SnapshotOrdered

// imageLeash and imageOverdueMax differ from the defaults.
const (
	imageLeash      = 90 * time.Second
	imageOverdueMax = 96 << 20
)

// TestImageLimitsReachTheImage guards that the leash and the bound of overdue files in the
// configuration apply to the image.
func TestImageLimitsReachTheImage(t *testing.T) {
	n := startNode(t, t.TempDir(), "singapore", "a")
	if _, err := clusterClient(t, n).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	publishedTable(t, n, "cars", 1)
	want := map[string]float64{"rhumb_snapshot_leash_seconds": imageLeash.Seconds(), "rhumb_snapshot_overdue_most_bytes": imageOverdueMax}
	retry(t, func(context.Context) error {
		all, err := n.metrics.Gather()
		if err != nil {
			return err
		}
		got := map[string]float64{}
		for _, f := range all {
			if _, ok := want[f.GetName()]; ok {
				got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("the image has %v, want %v", got, want)
		}
		return nil
	})
}

func publishedTable(t *testing.T, n *Node, name string, replicas uint32) *rhumbpb.Table {
	t.Helper()
	resp, err := clusterClient(t, n).CreateTable(t.Context(), &rhumbpb.CreateTableRequest{
		Name: name, Settings: &rhumbpb.ClassSettings{Replicas: replicas, HashSlots: 8}, Snapshot: uint32(imageFeatures),
	})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Table
}

func write(t *testing.T, kv rhumbpb.KVClient, m *rhumbpb.Mutation) (resp *rhumbpb.Response) {
	t.Helper()
	retry(t, func(ctx context.Context) (err error) {
		resp, err = kv.Do(ctx, &rhumbpb.Request{Hops: 2, Write: &rhumbpb.Write{Resolve: true, Mutations: []*rhumbpb.Mutation{m}}})
		return err
	})
	return resp
}

func car(t *testing.T, lat, lon float64, speed int64) []byte {
	t.Helper()
	r, err := rhumb.NewRecord(
		rhumb.Field{Name: "location", Value: rhumb.PointField(rhumb.Point{Lat: lat, Lon: lon})},
		rhumb.Field{Name: "speed", Value: rhumb.Int64Field(speed)},
	)
	if err != nil {
		t.Fatal(err)
	}
	return rhumb.EncodeRecord(nil, r)
}

// imageDir returns the directory of a node's image.
func imageDir(n *Node) string {
	return publish.ImageDir(n.cfg.Snapshot.Dir, n.engine.Identity().Cluster, n.engine.Identity().Node)
}

// awaitImage waits until the image of a node fulfils a condition.
func awaitImage(t *testing.T, n *Node, what string, cond func(v reader.View) error) {
	t.Helper()
	awaitView(t, n, what, (*reader.Client).Lock, cond)
}

// awaitView waits until a view of a node's image fulfils a condition.
func awaitView(t *testing.T, n *Node, what string, lock func(*reader.Client) (reader.View, error), cond func(v reader.View) error) {
	t.Helper()
	retry(t, func(context.Context) error {
		c, err := reader.Attach(imageDir(n), reader.Options{})
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		defer c.Close()
		v, err := lock(c)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		defer v.Unlock()
		if err := cond(v); err != nil {
			return fmt.Errorf("%s, in the image of %s: %w", what, n.engine.Identity().Node, err)
		}
		return nil
	})
}

// shows returns the condition that exactly the named cars are near a place, and that the table has
// the speed of each.
func shows(table string, at rhumb.Point, speeds map[string]int64) func(v reader.View) error {
	return func(v reader.View) error {
		t, err := v.Table(table)
		if err != nil {
			return err
		}
		near := map[string]bool{}
		for it, err := range t.Radius(at, 1000) {
			if err != nil {
				return err
			}
			near[string(it.Name)] = true
		}
		if len(near) != len(speeds) {
			return fmt.Errorf("near %v are %v, want %v", at, near, speeds)
		}
		for name, want := range speeds {
			it, err := t.Get([]byte(name))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			f, _, err := rhumb.RecordField(it.Value, "speed")
			if err != nil || f.Int64() != want || !near[name] {
				return fmt.Errorf("%s has speed %v (%v), near %v", name, f, err, near)
			}
		}
		return nil
	}
}

// TestImage guards that every node with a replica of a table publishes it, as primary and as
// secondary: puts, moves, deletes, keys that the server names, and a restart.
func TestImage(t *testing.T) {
	nodes := startRegion(t)
	a, b, c := nodes[0], nodes[1], nodes[2]
	id := publishedTable(t, a, "cars", 3).Id
	kv := kvClient(t, a)
	put := func(name string, lat, lon float64, speed int64) {
		write(t, kv, &rhumbpb.Mutation{Kind: rhumbpb.MutationKind_MUTATION_KIND_PUT, Table: id, Name: []byte(name), Value: car(t, lat, lon, speed)})
	}
	here, there := rhumb.Point{Lat: 1.3, Lon: 103.8}, rhumb.Point{Lat: 1.4, Lon: 103.9}
	for i := range 30 {
		put(fmt.Sprintf("car%d", i), there.Lat, there.Lon, int64(i))
	}
	put("car1", here.Lat, here.Lon, 11)
	put("car2", here.Lat, here.Lon, 12)
	put("car2", here.Lat, here.Lon, 13)
	put("car3", here.Lat, here.Lon, 14)
	write(t, kv, &rhumbpb.Mutation{Kind: rhumbpb.MutationKind_MUTATION_KIND_DELETE, Table: id, Name: []byte("car3")})
	for _, n := range []*Node{a, b, c} {
		awaitImage(t, n, "after the writes", shows("cars", here, map[string]int64{"car1": 11, "car2": 13}))
	}

	named := write(t, kv, &rhumbpb.Mutation{Kind: rhumbpb.MutationKind_MUTATION_KIND_INSERT, Table: id, Value: car(t, 0, 0, 77)})
	key := rhumb.ShardKey{Home: rhumb.RangeID{Region: rhumb.RegionID(named.Receipt.Home), Slot: rhumb.Slot(named.Receipt.Slot)}, Sequence: beSequence(named)}
	for _, n := range []*Node{a, b, c} {
		awaitImage(t, n, "a key that the server named", func(v reader.View) error {
			t, err := v.Table("cars")
			if err != nil {
				return err
			}
			_, err = t.GetShardKey(key)
			return err
		})
	}

	c.Close()
	put("car1", there.Lat, there.Lon, 21)
	c = startAgain(t, c, a)
	awaitImage(t, c, "after a restart", shows("cars", here, map[string]int64{"car2": 13}))

	// A table that is created in the class after the ranges have a history is read from storage.
	late := publishedTable(t, a, "late", 3).Id
	write(t, kv, &rhumbpb.Mutation{Kind: rhumbpb.MutationKind_MUTATION_KIND_PUT, Table: late, Name: []byte("x"), Value: car(t, here.Lat, here.Lon, 1)})
	for _, n := range []*Node{a, b, c} {
		awaitImage(t, n, "a later table", shows("late", here, map[string]int64{"x": 1}))
		awaitImage(t, n, "the first table", shows("cars", here, map[string]int64{"car2": 13}))
	}
}

func beSequence(resp *rhumbpb.Response) (seq uint64) {
	for _, b := range resp.Outcome.Names[0] {
		seq = seq<<8 | uint64(b)
	}
	return seq
}

// TestImageBrokenDir guards that a node serves although its image cannot be created, and creates it
// as soon as possible.
func TestImageBrokenDir(t *testing.T) {
	n := startNode(t, t.TempDir(), "singapore", "a")
	if _, err := clusterClient(t, n).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	dir := n.cfg.Snapshot.Dir
	if err := os.WriteFile(dir, []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := publishedTable(t, n, "cars", 1).Id
	kv := kvClient(t, n)
	here := rhumb.Point{Lat: 1.3, Lon: 103.8}
	write(t, kv, &rhumbpb.Mutation{Kind: rhumbpb.MutationKind_MUTATION_KIND_PUT, Table: id, Name: []byte("car"), Value: car(t, here.Lat, here.Lon, 5)})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	awaitImage(t, n, "once the folder can be made", shows("cars", here, map[string]int64{"car": 5}))
	t.Logf("after %v", time.Since(start))
}
