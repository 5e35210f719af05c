package client

import (
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
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

// TestCreateWhileARegionIsDead guards that names can be created while a region is dead, without asking it, that the receipt
// says so, that nobody claims to know what only that region could tell, and that the second home of a name is noticed
// once the region is back.
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
	await(t, "the news", func() bool { return c.meta.isDead(3) && other.meta.isDead(3) })

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
