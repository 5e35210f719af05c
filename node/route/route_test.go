package route

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// testBinary is the build of the nodes in these tests: the newest one, so that new clusters have every feature.
var testBinary = rhumb.ThisBuild("test").String()

// build returns a catalog with two regions, of two nodes and of one, and tables of one and of two
// replicas. flights and crews share a class and a colocate byte.
func build(t *testing.T) *catalog.State {
	t.Helper()
	st := catalog.New()
	apply := func(cmd catalog.Command) {
		t.Helper()
		next, res, _ := st.Apply(place.Complete(st, cmd))
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		st = next
	}
	node := func(i byte, region string) catalog.RegisterNode {
		return catalog.RegisterNode{
			Binary: testBinary, Store: rhumb.UUID{i}, Boot: 1, Nonce: uint64(i), Region: region, Zone: string('a' + rune(i)), HasLocation: true,
			Addr: fmt.Sprintf("127.0.0.%d:1", i), HeartbeatAddr: "127.0.0.1:2", AdminAddr: "127.0.0.1:3",
		}
	}
	apply(catalog.Init{Cluster: rhumb.UUID{9}, First: node(1, "singapore")})
	apply(node(2, "singapore"))
	apply(node(3, "frankfurt"))
	settings := rhumb.DefaultClassSettings()
	settings.Replicas, settings.MinInSync, settings.HashSlots = 1, 1, 8
	apply(catalog.CreateTable{Name: "flights", Settings: settings, TableOptions: rhumb.TableOptions{Colocate: '/'}})
	apply(catalog.CreateTable{Name: "crews", Settings: settings, TableOptions: rhumb.TableOptions{Colocate: '/'}})
	apply(catalog.CreateTable{Name: "cars", Settings: settings, TableOptions: rhumb.TableOptions{Snapshot: rhumb.SnapshotOn}})
	settings.Replicas, settings.MinInSync = 2, 2
	apply(catalog.CreateTable{Name: "pairs", Settings: settings})
	return st
}

func TestNamed(t *testing.T) {
	st := build(t)
	r := Router{State: func() *catalog.State { return st }}
	flights, _ := st.TableByName("flights")
	pairs, _ := st.TableByName("pairs")
	singapore, _ := st.RegionByName("singapore")
	frankfurt, _ := st.RegionByName("frankfurt")
	seen := map[rhumb.RangeID]bool{}
	for i := range 100 {
		name := fmt.Appendf(nil, "k%d", i)
		id, err := r.Named(singapore.ID, flights.ID, name)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := st.HashBlock(singapore.ID, flights.Class)
		home := rhumb.RangeID{Region: singapore.ID, Slot: block.First + keys.HashSlot(name, '/', rhumb.BucketsDefault)}
		if d, err := r.Range(id); err != nil || d.ID != id || !d.Holds(home) {
			t.Fatalf("%s with home %s lives in %+v: %v", name, home, d, err)
		}
		seen[id] = true
	}
	if len(seen) != 8 {
		t.Errorf("100 names live in %d of 8 ranges", len(seen))
	}
	for _, tc := range []struct {
		name   string
		region rhumb.RegionID
		table  rhumb.TableID
		want   rhumb.Kind
		says   string
	}{
		{"no such table", singapore.ID, 99, rhumb.NotFound, "99"},
		{"no such region", 99, flights.ID, rhumb.NotFound, "99"},
		{"a region with too few nodes", frankfurt.ID, pairs.ID, rhumb.Unavailable, "frankfurt"},
	} {
		if _, err := r.Named(tc.region, tc.table, []byte("k")); rhumb.KindOf(err) != tc.want || !strings.Contains(fmt.Sprint(err), tc.says) {
			t.Errorf("%s: %v, want %s that says %q", tc.name, err, tc.want, tc.says)
		}
	}
}

// TestLongNameOfPublishedTable guards that a name that images cannot hold is rejected on every way
// to its range, in published tables only.
func TestLongNameOfPublishedTable(t *testing.T) {
	st := build(t)
	r := Router{State: func() *catalog.State { return st }}
	cars, _ := st.TableByName("cars")
	flights, _ := st.TableByName("flights")
	singapore, _ := st.RegionByName("singapore")
	for size, want := range map[int]rhumb.Kind{rhumb.SnapshotNameSizeMax: rhumb.Other, rhumb.SnapshotNameSizeMax + 1: rhumb.TooLarge} {
		name := bytes.Repeat([]byte("x"), size)
		id, err := r.Named(singapore.ID, cars.ID, name)
		if rhumb.KindOf(err) != want {
			t.Errorf("a name of %d bytes: %v", size, err)
		}
		if home, err := r.Named(singapore.ID, flights.ID, name); err != nil {
			t.Errorf("a name of %d bytes in a table that is not published: %v", size, err)
		} else if id.IsZero() {
			id = home
		}
		b := &rhumb.Batch{Range: id, Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Table: cars.ID, Name: name}}}
		if err := r.Check(b); rhumb.KindOf(err) != want {
			t.Errorf("a batch with a name of %d bytes: %v", size, err)
		}
	}
}

func TestBatch(t *testing.T) {
	st := build(t)
	r := Router{State: func() *catalog.State { return st }}
	id := func(name string) rhumb.TableID {
		table, ok := st.TableByName(name)
		if !ok {
			t.Fatalf("no table %s", name)
		}
		return table.ID
	}
	batch := func(at ...any) *rhumb.Batch {
		b := &rhumb.Batch{}
		for i := 0; i < len(at); i += 2 {
			b.Mutations = append(b.Mutations, rhumb.Mutation{Kind: rhumb.Put, Table: id(at[i].(string)), Name: []byte(at[i+1].(string))})
		}
		return b
	}
	for _, tc := range []struct {
		name string
		b    *rhumb.Batch
		want rhumb.Kind
	}{
		{"one", batch("flights", "x"), rhumb.Other},
		{"one aircraft, two tables", batch("flights", "9V-SKA/1", "crews", "9V-SKA/2"), rhumb.Other},
		{"two classes", batch("flights", "k", "pairs", "k"), rhumb.InvalidArgument},
		{"two slots", batch("flights", "a", "flights", "b", "flights", "c", "flights", "d"), rhumb.InvalidArgument},
	} {
		if _, err := r.Batch(1, tc.b); rhumb.KindOf(err) != tc.want || (err == nil) != (tc.want == rhumb.Other) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestClassRangeAndRegion(t *testing.T) {
	st := build(t)
	r := Router{State: func() *catalog.State { return st }}
	flights, _ := st.TableByName("flights")
	if c, err := r.Class(flights.ID); err != nil || c.ID != flights.Class {
		t.Errorf("class %v, %v", c, err)
	}
	if _, err := r.Class(99); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("class of no table: %v", err)
	}
	if _, err := r.Range(rhumb.RangeID{Region: 9, Slot: 9}); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("no range: %v", err)
	}
	if !r.SameRegion(1, 2) || r.SameRegion(1, 3) || r.SameRegion(1, 99) || r.SameRegion(99, 99) {
		t.Error("nodes 1 and 2 stand in one region, 3 in another, 99 nowhere")
	}
}
