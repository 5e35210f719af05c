package place

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// testBinary is the build of the nodes in these tests: the newest one, so that new clusters have every feature.
var testBinary = rhumb.ThisBuild("test").String()

// spec is one node of a test topology.
type spec struct {
	region, zone string
	lat          float64
}

// build makes a state with these nodes, numbered from 1.
func build(t testing.TB, nodes ...spec) *catalog.State {
	t.Helper()
	s := catalog.New()
	for i, n := range nodes {
		r := catalog.RegisterNode{
			Binary: testBinary, Store: rhumb.UUID{byte(i + 1)}, Boot: 1, Region: n.region, Zone: n.zone, Location: rhumb.Point{Lat: n.lat}, HasLocation: true,
		}
		var cmd catalog.Command = r
		if i == 0 {
			cmd = catalog.Init{Cluster: rhumb.UUID{7}, First: r}
		}
		s = apply(t, s, cmd)
	}
	return s
}

func apply(t testing.TB, s *catalog.State, cmd catalog.Command) *catalog.State {
	t.Helper()
	next, res, _ := s.Apply(cmd)
	if err := res.Err(); err != nil {
		t.Fatal(err)
	}
	for _, item := range res.Items {
		if err := item.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return next
}

// three gives three regions of three nodes in three zones: 1 to 3, 4 to 6, 7 to 9.
func three() []spec {
	var out []spec
	for i, region := range []string{"fra", "iad", "sin"} {
		for _, zone := range []string{"a", "b", "c"} {
			out = append(out, spec{region, zone, float64(10 * i)})
		}
	}
	return out
}

func settings(replicas, slots int) rhumb.ClassSettings {
	c := rhumb.DefaultClassSettings()
	c.Replicas, c.MinInSync, c.HashSlots = replicas, min(2, replicas), slots
	return c
}

// count counts roles over all ranges.
func count(s *catalog.State) (preferred, replicas map[rhumb.NodeID]int) {
	l := measureLoad(s)
	return l.primaries, l.replicas
}

// TestPlacementIsEven places a class on three equal regions: each node is the primary of a third of its region's slots.
func TestPlacementIsEven(t *testing.T) {
	s := build(t, three()...)
	s = apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 60)}))
	preferred, replicas := count(s)
	for n := range s.Nodes() {
		if preferred[n.ID] != 20 || replicas[n.ID] != 60 {
			t.Errorf("%s is primary of %d and holds %d, want 20 and 60", n.ID, preferred[n.ID], replicas[n.ID])
		}
	}
}

// TestPlacementRules draws topologies: replicas lie in the home region, in as many zones as there can be, and roles differ
// by little between nodes.
func TestPlacementRules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var nodes []spec
		for region := range rapid.IntRange(1, 3).Draw(rt, "regions") {
			for range rapid.IntRange(1, 6).Draw(rt, "nodes") {
				zone := fmt.Sprintf("z%d", rapid.IntRange(0, 3).Draw(rt, "zone"))
				nodes = append(nodes, spec{fmt.Sprintf("r%d", region), zone, float64(10 * region)})
			}
		}
		s := build(t, nodes...)
		c := settings(rapid.IntRange(1, 4).Draw(rt, "replicas"), 24)
		cmd := Complete(s, catalog.CreateClass{Settings: c})
		s, res, _ := s.Apply(cmd)
		if res.Failure != nil {
			if len(cmd.(catalog.CreateClass).Placements) != 0 {
				rt.Fatal(res.Failure)
			}
			return
		}
		for r := range s.Ranges() {
			zones := map[string]bool{}
			for _, id := range r.Replicas {
				n, _ := s.Node(id)
				zones[n.Zone] = true
			}
			if want := min(c.Replicas, zonesOf(s, r.ID.Region)); len(zones) != want {
				rt.Fatalf("range %s lies in %d zones, want %d: %v", r.ID, len(zones), want, r.Replicas)
			}
		}
		preferred, _ := count(s)
		for region := range s.Regions() {
			var counts []int
			for _, n := range newPool(s, region.ID, c).nodes {
				counts = append(counts, preferred[n.ID])
			}
			if slices.Max(counts)-slices.Min(counts) > 1 {
				rt.Fatalf("primaries in %s: %v", region.Name, counts)
			}
		}
	})
}

func zonesOf(s *catalog.State, in rhumb.RegionID) int {
	zones := map[string]bool{}
	for _, n := range newPool(s, in, settings(1, 1)).nodes {
		zones[n.Zone] = true
	}
	return len(zones)
}

// TestComplete fills in what is open and leaves alone what is not, or what nothing fits.
func TestComplete(t *testing.T) {
	s := build(t, three()...)
	s = apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 2)}))
	own := []rhumb.NodeID{4, 6, 5}
	tests := []struct {
		name string
		cmd  catalog.Command
		ok   func(catalog.Command) bool
	}{
		{"slot", catalog.OpenSlot{Node: 4, Class: 1}, func(c catalog.Command) bool {
			r := c.(catalog.OpenSlot).Replicas
			return len(r) == 3 && r[0] == 4
		}},
		{"chosen slot", catalog.OpenSlot{Node: 4, Class: 1, Replicas: own}, func(c catalog.Command) bool {
			return slices.Equal(c.(catalog.OpenSlot).Replicas, own)
		}},
		{"slot of nobody", catalog.OpenSlot{Node: 99, Class: 1}, func(c catalog.Command) bool { return c.(catalog.OpenSlot).Replicas == nil }},
		{"slot of no class", catalog.OpenSlot{Node: 1, Class: 9}, func(c catalog.Command) bool { return c.(catalog.OpenSlot).Replicas == nil }},
		{"known class", catalog.CreateTable{Name: "x", Settings: settings(3, 2)}, func(c catalog.Command) bool { return c.(catalog.CreateTable).Placements == nil }},
		{"too many replicas", catalog.CreateClass{Settings: settings(4, 2)}, func(c catalog.Command) bool { return c.(catalog.CreateClass).Placements == nil }},
		{"bad settings", catalog.CreateClass{Settings: settings(3, 0)}, func(c catalog.Command) bool { return c.(catalog.CreateClass).Placements == nil }},
		{"regions", catalog.EnsureRegionBlocks{Class: 1}, func(c catalog.Command) bool { return c.(catalog.EnsureRegionBlocks).Placements == nil }},
		{"batch", catalog.Batch{Commands: []catalog.Command{catalog.OpenSlot{Node: 4, Class: 1}}}, func(c catalog.Command) bool {
			return len(c.(catalog.Batch).Commands[0].(catalog.OpenSlot).Replicas) == 3
		}},
		{"other", catalog.FenceNode{Node: 1, Boot: 1}, func(c catalog.Command) bool { return c == catalog.FenceNode{Node: 1, Boot: 1} }},
	}
	for _, tt := range tests {
		if got := Complete(s, tt.cmd); !tt.ok(got) {
			t.Errorf("%s: got %+v", tt.name, got)
		}
	}
}

// TestMissingBlocks brings a class to a region that has got enough nodes, and does nothing twice.
func TestMissingBlocks(t *testing.T) {
	s := build(t, three()[:5]...)
	s = apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 2)}))
	if got := MissingBlocks(s); got != nil {
		t.Fatalf("with two nodes in iad: %+v", got)
	}
	s = apply(t, s, catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{99}, Boot: 1, Region: "iad", Zone: "c"})
	for _, cmd := range MissingBlocks(s) {
		s = apply(t, s, cmd)
	}
	if s.RangeCount() != 4 || MissingBlocks(s) != nil {
		t.Fatalf("%d ranges, still missing %+v", s.RangeCount(), MissingBlocks(s))
	}
}
