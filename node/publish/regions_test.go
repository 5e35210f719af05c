package publish

import (
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// TestImageNamesWhatItLacks guards that an image names, for each table, the regions with ranges
// that its node does not hold, even after a region is added, and that a saved image does too.
func TestImageNamesWhatItLacks(t *testing.T) {
	w := newWorld(t, Policy{})
	for i, region := range []string{"there", "elsewhere", "here"} {
		id := rhumb.UUID{byte(3 + i)}
		w.apply(catalog.RegisterNode{Cluster: rhumb.UUID{1}, Store: id, Boot: 1, Nonce: uint64(2 + i), Region: region, Zone: "b", HasLocation: true, Location: rhumb.Point{Lat: float64(10 * (i + 1))}})
	}
	settings := rhumb.DefaultClassSettings()
	settings.Replicas, settings.MinInSync, settings.HashSlots = 1, 1, hashSlots
	create := func(name string, shardSize int64, homes map[rhumb.RegionID][]rhumb.NodeID) {
		t.Helper()
		settings.ShardSize = shardSize
		c := catalog.CreateTable{Name: name, Settings: settings, TableOptions: rhumb.TableOptions{Snapshot: rhumb.SnapshotOn}}
		for _, region := range []rhumb.RegionID{1, 2, 3} {
			place := catalog.Placement{Region: region}
			for _, n := range homes[region] {
				place.Replicas = append(place.Replicas, []rhumb.NodeID{n})
			}
			c.Placements = append(c.Placements, place)
		}
		w.apply(c)
		w.driver.CatalogChanged()
	}
	create("cars", 32<<20, map[rhumb.RegionID][]rhumb.NodeID{1: {1, 1, 1, 1}, 2: {2, 2, 2, 2}, 3: {3, 3, 3, 3}})
	create("roads", 64<<20, map[rhumb.RegionID][]rhumb.NodeID{1: {1, 1, 1, 4}, 2: {2, 2, 2, 2}, 3: {3, 3, 3, 3}}) // not all of its own region
	dir := ImageDir(w.root, rhumb.UUID{1}, testNode)
	says := func(dir, table string, want ...string) bool {
		names, known, err := inspect.Lacks(dir, table)
		return err == nil && known && slices.Equal(names, want)
	}
	await(t, "the image names what it lacks", func() bool {
		return says(dir, "cars", "there", "elsewhere") && says(dir, "roads", "here", "there", "elsewhere")
	})
	if _, known, err := inspect.Lacks(dir, "none"); known || err != nil {
		t.Errorf("of a table that is not there: %v, %v", known, err)
	}
	if _, err := w.driver.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"copy", "copy" + inspect.FileSuffix} {
		path := t.TempDir() + "/" + name
		if _, err := inspect.Save(t.Context(), dir, path, nil); err != nil {
			t.Fatal(err)
		}
		saved, done, err := inspect.OpenSaved(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if !says(saved, "cars", "there", "elsewhere") {
			t.Errorf("%s does not name what it lacks", name)
		}
		done()
	}
}
