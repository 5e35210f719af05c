package client

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// setDead says in the metadata whether a region is dead.
func (w *world) setDead(id rhumb.RegionID, dead bool) {
	w.change(func(m *api.Metadata) {
		m.Regions = slices.Clone(m.Regions)
		for i := range m.Regions {
			if m.Regions[i].ID == id {
				m.Regions[i].Dead = dead
			}
		}
	})
}

// TestCreateWhileARegionIsDead guards that names can be created while a region is dead, without
// asking it, that the receipt says so, that nobody claims to know what only that region could tell,
// and that the second home of a name is noticed once the region is back.
func TestCreateWhileARegionIsDead(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	ctx := t.Context()
	must[Result](t)(tab.Put(ctx, []byte("k"), nil, PutOptions{Home: "virginia"}))
	w.setDead(3, true)
	w.node(3).server.Stop()
	other := w.open("frankfurt") // remembers nothing
	otherTab := w.table(other, "plain")
	await(t, "the news", func() bool { return c.meta.isDead(3, 0) && other.meta.isDead(3, 0) })

	_, err := otherTab.Get(ctx, []byte("k"), GetOptions{})
	wantKind(t, err, rhumb.Unavailable)
	_, err = otherTab.Put(ctx, []byte("k"), nil, PutOptions{If: rhumb.Condition{Kind: rhumb.IfPresent}})
	wantKind(t, err, rhumb.Unavailable)
	made := must[Result](t)(otherTab.Put(ctx, []byte("k"), nil, PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}}))
	if made.Key.Home.Region != 2 || !slices.Equal(made.Receipt.Unasked, []rhumb.RegionID{3}) || made.Receipt.Searched != 1 {
		t.Fatalf("%+v", made)
	}
	fresh := must[Result](t)(otherTab.Patch(ctx, []byte("new"), rhumb.Record{}, PatchOptions{}))
	if fresh.Key.Home.Region != 2 || !slices.Equal(fresh.Receipt.Unasked, []rhumb.RegionID{3}) {
		t.Fatalf("%+v", fresh)
	}

	w.node(3).listen(w.node(3).addr)
	w.setDead(3, false)
	third := w.open("singapore")
	thirdTab := w.table(third, "plain")
	if got := must[Got](t)(thirdTab.Get(ctx, []byte("k"), GetOptions{})); !got.Exists() || len(got.Receipt.Unasked) > 0 {
		t.Fatalf("%+v", got)
	}
	var twice []rhumb.RegionID
	for it, err := range thirdTab.Duplicates(ctx, ScanOptions{}) {
		if err != nil || string(it.Key.Name) != "k" {
			t.Fatalf("%+v: %v", it, err)
		}
		twice = append(twice, it.Key.Home.Region)
	}
	if !slices.Equal(twice, []rhumb.RegionID{2, 3}) {
		t.Errorf("the name is listed in regions %v", twice)
	}
	await(t, "the second home to be noticed", func() bool { return third.Metrics().Duplicates == 1 })
}

// TestHomeDead guards that the class of a record is that of the range that holds its home, which is not the first slot of the range for most
// names. A table that survives the loss of a region is read although its region is dead.
func TestHomeDead(t *testing.T) {
	m := newMetadata()
	m.applyUpdate(&api.Metadata{
		Full: true, Revision: 1, Regions: []rhumb.Region{{ID: 1, Name: "frankfurt", Dead: true}},
		Classes: []rhumb.Class{{ID: 1, Settings: rhumb.ClassSettings{Survival: rhumb.SurviveRegion}}, {ID: 2}},
		Ranges: []*rhumb.Range{
			{ID: rhumb.RangeID{Region: 1, Slot: 0}, Last: 63, Class: 1}, {ID: rhumb.RangeID{Region: 1, Slot: 64}, Last: 127, Class: 2},
		},
	})
	for slot, dead := range map[rhumb.Slot]bool{0: false, 1: false, 63: false, 64: true, 127: true} {
		if got := m.isHomeDead(rhumb.RangeID{Region: 1, Slot: slot}); got != dead {
			t.Errorf("slot %d is dead: %v", slot, got)
		}
	}
}

// TestWriteFromADeadRegion guards that a caller whose own region is dead patches and deletes records elsewhere, and does not wait for a region
// in which it would have expected them.
func TestWriteFromADeadRegion(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("virginia", func(cfg *Config) { cfg.Timeout, cfg.AttemptTimeout = time.Hour, time.Hour })
	far := w.open("frankfurt")
	for _, name := range []string{"patched", "deleted"} {
		must[Result](t)(w.table(far, "plain").PutRecord(t.Context(), []byte(name), record(t, "a", 1), PutOptions{Home: "frankfurt"}))
	}
	w.node(3).set(func(*rhumbpb.Request) fault { return fault{drop: true} })
	w.setDead(3, true)
	await(t, "the news", func() bool { return c.meta.isDead(3, 0) })
	tab := w.table(c, "plain")
	patched := must[Result](t)(tab.Patch(t.Context(), []byte("patched"), record(t, "b", 2), PatchOptions{}))
	deleted := must[Result](t)(tab.Delete(t.Context(), []byte("deleted"), DeleteOptions{}))
	if patched.Key.Home.Region != 2 || deleted.Key.Home.Region != 2 {
		t.Errorf("patched in region %d, deleted in region %d", patched.Key.Home.Region, deleted.Key.Home.Region)
	}
}

// TestGetManyWithoutARegion guards that a read of many names answers with what the living regions
// have, at once where metadata knows that a region is dead and as soon as it learns so where it
// does not yet, and that it says which names are unknown because of which region.
func TestGetManyWithoutARegion(t *testing.T) {
	const unwatched = time.Hour // a call that waits for the region would never end
	w := newWorld(t, 3, 1)
	long := func(cfg *Config) { cfg.Timeout, cfg.AttemptTimeout = unwatched, unwatched }
	c, fresh := w.open("singapore", long), w.open("singapore", long)
	tab, freshTab := w.table(c, "plain"), w.table(fresh, "plain")
	names := [][]byte{[]byte("here"), []byte("far"), []byte("gone"), []byte("new")}
	for i, home := range []string{"singapore", "frankfurt", "virginia"} {
		must[Result](t)(tab.Put(t.Context(), names[i], nil, PutOptions{Home: home}))
	}
	must[[]Got](t)(tab.GetMany(t.Context(), names, GetOptions{})) // c remembers where they are
	asked := make(chan struct{}, 100)
	w.node(3).set(func(*rhumbpb.Request) fault {
		asked <- struct{}{}
		return fault{drop: true}
	})

	// What the others have does not wait for the silent region.
	must[[]Got](t)(freshTab.GetMany(t.Context(), names[:2], GetOptions{}))
	for len(asked) > 0 {
		<-asked
	}
	check := func(what string, got []Got, err error) {
		t.Helper()
		wantKind(t, err, rhumb.Unavailable)
		if err != nil && !strings.Contains(err.Error(), "virginia") {
			t.Errorf("%s: the error does not name the region: %v", what, err)
		}
		for i, g := range got {
			if found := i < 2; g.Exists() != found || slices.Equal(g.Receipt.Unasked, []rhumb.RegionID{3}) == found {
				t.Errorf("%s: name %s: %+v", what, names[i], g)
			}
		}
		if len(got) != len(names) {
			t.Errorf("%s: %d results", what, len(got))
		}
	}
	type result struct {
		got []Got
		err error
	}
	results := make(chan result, 1)
	go func() {
		got, err := freshTab.GetMany(t.Context(), names, GetOptions{})
		results <- result{got, err}
	}()
	<-asked // it waits for the region
	w.change(func(m *api.Metadata) {
		m.Nodes = slices.Clone(m.Nodes)
		m.Nodes[2].State = rhumb.NodeFenced
		m.Regions = slices.Clone(m.Regions)
		m.Regions[2].Dead = true
	})
	r := <-results
	check("a region that dies", r.got, r.err)
	await(t, "the news", func() bool { return c.meta.isDead(3, 0) })
	for what, tab := range map[string]*Table{"remembered": tab, "new": freshTab} {
		got, err := tab.GetMany(t.Context(), names, GetOptions{})
		check(what, got, err)
	}
	// A record that is remembered in a dead region is unknown, and stays remembered: it is not
	// created a second time.
	for range 2 {
		_, err := tab.Get(t.Context(), []byte("gone"), GetOptions{})
		wantKind(t, err, rhumb.Unavailable)
	}
	if region, _ := c.homes.get(1, []byte("gone")); region != 3 {
		t.Errorf("the record is remembered in region %s", region)
	}
}
