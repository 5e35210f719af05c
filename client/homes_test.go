package client

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

var (
	nearFrankfurt = rhumb.Point{Lat: 47.4, Lon: 8.5}   // Zürich
	nearVirginia  = rhumb.Point{Lat: 40.6, Lon: -73.8} // New York
)

// Get asks here, then everywhere else, and remembers where it was.
func TestGetSearches(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	ctx := t.Context()
	must[Result](t)(tab.Put(ctx, []byte("k"), nil, PutOptions{Home: "virginia"}))
	got := must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{}))
	if got.Key.Home != homeOf(3, "k") || got.Receipt.Searched != 2 || got.Receipt.Region != 3 {
		t.Fatalf("%+v", got)
	}
	before := c.Metrics()
	got = must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{}))
	after := c.Metrics()
	if got.Receipt.Searched != 0 || after.Searches != before.Searches || after.HomesKnown != before.HomesKnown+1 || after.Requests != before.Requests+1 {
		t.Fatalf("the home was not remembered: %+v %+v", got.Receipt, after)
	}
	_, err := tab.Get(ctx, []byte("k"), GetOptions{Local: true})
	wantKind(t, err, rhumb.NotFound)
	_, err = tab.Get(ctx, []byte("k"), GetOptions{Home: "frankfurt"})
	wantKind(t, err, rhumb.NotFound)
	if got := must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{Home: "virginia"})); got.Receipt.Searched != 0 {
		t.Fatal("a read with a home searched")
	}
	// The remembered record goes, another is made elsewhere: the search finds it.
	other := w.table(w.open("frankfurt"), "plain")
	must[Result](t)(other.Delete(ctx, []byte("k"), DeleteOptions{}))
	must[Result](t)(other.Put(ctx, []byte("k"), nil, PutOptions{}))
	if got := must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{})); got.Key.Home.Region != 2 {
		t.Fatalf("found at %s", got.Key.Home)
	}
}

// Put writes here, and the record here comes before any elsewhere afterwards.
func TestPutWritesHere(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	ctx := t.Context()
	must[Result](t)(tab.Put(ctx, []byte("k"), nil, PutOptions{Home: "virginia"}))
	must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{}))
	must[Result](t)(tab.Put(ctx, []byte("k"), nil, PutOptions{}))
	if got := must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{})); got.Key.Home.Region != 1 {
		t.Fatalf("found at %s", got.Key.Home)
	}
	if rs := w.regionsOf("k"); !slices.Equal(rs, []rhumb.RegionID{1, 3}) {
		t.Fatal(rs)
	}
}

// A region that does not answer makes a miss unknown: not found would be a guess.
func TestSearchNeedsAllRegions(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore", func(cfg *Config) { cfg.Timeout = time.Second })
	tab := w.table(c, "plain")
	w.nodes[1].set(func(*rhumbpb.Request) fault { return fault{refuse: rhumb.Unavailable} })
	_, err := tab.Get(t.Context(), []byte("k"), GetOptions{})
	wantKind(t, err, rhumb.Unavailable)
	_, err = tab.GetMany(t.Context(), [][]byte{[]byte("k")}, GetOptions{})
	wantKind(t, err, rhumb.Unavailable)
	_, err = tab.Patch(t.Context(), []byte("k"), record(t, "a", 1), PatchOptions{})
	wantKind(t, err, rhumb.Unavailable)
	if rs := w.regionsOf("k"); len(rs) != 0 {
		t.Fatal("a patch created what may exist in the region that did not answer")
	}
	must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{Home: "virginia"}))
	must[Got](t)(tab.Get(t.Context(), []byte("k"), GetOptions{})) // a hit elsewhere is an answer all the same
}

// Conditional writes and deletes act on the record that exists, wherever it is.
func TestWritesFindTheRecord(t *testing.T) {
	w := newWorld(t, 3, 1)
	ctx := t.Context()
	for _, known := range []bool{false, true} {
		c := w.open("singapore")
		tab := w.table(c, "plain")
		at := must[Result](t)(tab.Put(ctx, []byte("k"), nil, PutOptions{Home: "virginia"}))
		if known {
			must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{}))
		}
		_, err := tab.Put(ctx, []byte("k"), nil, PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}})
		wantKind(t, err, rhumb.ConditionFailed)
		if got := rhumb.CurrentOf(err); got != at.Version {
			t.Fatalf("the error tells version %s of a record of version %s", got, at.Version)
		}
		r := must[Result](t)(tab.Put(ctx, []byte("k"), []byte("2"), PutOptions{If: rhumb.Condition{Kind: rhumb.IfVersion, Version: at.Version}}))
		if r.Key.Home != homeOf(3, "k") {
			t.Fatalf("written at %s", r.Key.Home)
		}
		_, err = tab.Delete(ctx, []byte("k"), DeleteOptions{If: rhumb.Condition{Kind: rhumb.IfVersion, Version: at.Version}})
		wantKind(t, err, rhumb.ConditionFailed)
		_, err = tab.Delete(ctx, []byte("k"), DeleteOptions{Local: true, If: rhumb.Condition{Kind: rhumb.IfPresent}})
		wantKind(t, err, rhumb.ConditionFailed)
		del := must[Result](t)(tab.Delete(ctx, []byte("k"), DeleteOptions{}))
		if !del.Existed || del.Key.Home.Region != 3 {
			t.Fatalf("%+v", del)
		}
		_, err = tab.Put(ctx, []byte("k"), nil, PutOptions{If: rhumb.Condition{Kind: rhumb.IfPresent}})
		wantKind(t, err, rhumb.ConditionFailed)
		if got := rhumb.CurrentOf(err); !got.IsZero() {
			t.Fatalf("the error tells version %s of a record that does not exist", got)
		}
		if rs := w.regionsOf("k"); len(rs) != 0 {
			t.Fatal(rs)
		}
	}
	tab := w.table(w.open("singapore"), "plain")
	r := must[Result](t)(tab.Put(ctx, []byte("k"), nil, PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}}))
	if r.Key.Home.Region != 1 || r.Receipt.Searched != 2 {
		t.Fatalf("%+v", r)
	}
}

// What is remembered may be old: a condition that fails there is tried where the record is.
func TestOldMemory(t *testing.T) {
	w := newWorld(t, 3, 1)
	ctx := t.Context()
	tab := w.table(w.open("singapore"), "plain")
	other := w.table(w.open("frankfurt"), "plain")
	must[Result](t)(tab.Put(ctx, []byte("k"), nil, PutOptions{Home: "virginia"}))
	must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{}))
	must[Result](t)(other.Delete(ctx, []byte("k"), DeleteOptions{}))
	must[Result](t)(other.Put(ctx, []byte("k"), nil, PutOptions{}))
	r := must[Result](t)(tab.Put(ctx, []byte("k"), nil, PutOptions{If: rhumb.Condition{Kind: rhumb.IfPresent}}))
	if r.Key.Home.Region != 2 {
		t.Fatalf("%+v", r)
	}
	must[Result](t)(other.Delete(ctx, []byte("k"), DeleteOptions{}))
	must[Result](t)(other.Put(ctx, []byte("k"), nil, PutOptions{Home: "singapore"}))
	if del := must[Result](t)(tab.Delete(ctx, []byte("k"), DeleteOptions{})); del.Key.Home.Region != 1 || !del.Existed {
		t.Fatalf("%+v", del)
	}
}

// Patch acts on the record that exists, else creates it nearest to its location, else here.
func TestPatch(t *testing.T) {
	w := newWorld(t, 3, 1)
	ctx := t.Context()
	newer := rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"seq"}}
	for _, tc := range []struct {
		name   string
		r      rhumb.Record
		o      PatchOptions
		region rhumb.RegionID
	}{
		{"no location", record(t, "a", 1), PatchOptions{}, 1},
		{"field", record(t, "location", nearFrankfurt), PatchOptions{}, 2},
		{"option", record(t, "location", nearFrankfurt), PatchOptions{Location: &nearVirginia}, 3},
		{"newer", record(t, "location", nearFrankfurt, "seq", 1), PatchOptions{WriteOptions: WriteOptions{If: newer}}, 2},
		{"home", record(t, "location", nearFrankfurt), PatchOptions{WriteOptions: WriteOptions{Home: "virginia"}}, 3},
		{"local", record(t, "location", nearFrankfurt), PatchOptions{WriteOptions: WriteOptions{Local: true}}, 1},
	} {
		c := w.open("singapore")
		tab := w.table(c, "plain")
		r := must[Result](t)(tab.Patch(ctx, []byte(tc.name), tc.r, tc.o))
		if r.Key.Home != homeOf(tc.region, tc.name) || !r.Applied || r.Existed {
			t.Errorf("%s: %+v", tc.name, r)
		}
		// It is found there ever after, whoever looks and wherever it moves.
		for _, from := range []string{"singapore", "virginia"} {
			tab := w.table(w.open(from), "plain")
			r := must[Result](t)(tab.Patch(ctx, []byte(tc.name), record(t, "b", 2, "location", nearVirginia), PatchOptions{}))
			if r.Key.Home.Region != tc.region || !r.Existed {
				t.Errorf("%s again from %s: %+v", tc.name, from, r)
			}
		}
		if rs := w.regionsOf(tc.name); len(rs) != 1 {
			t.Errorf("%s is in %v", tc.name, rs)
		}
	}
	tab := w.table(w.open("frankfurt"), "plain")
	r := must[Result](t)(tab.Patch(ctx, []byte("newer"), record(t, "seq", 1), PatchOptions{WriteOptions: WriteOptions{If: newer}}))
	if r.Applied {
		t.Error("a patch that is not newer was applied")
	}
	_, err := tab.Patch(ctx, []byte("nowhere"), record(t, "seq", 1), PatchOptions{WriteOptions: WriteOptions{If: rhumb.Condition{Kind: rhumb.IfPresent}}})
	wantKind(t, err, rhumb.ConditionFailed)
}

// Calls of one client that create one name with different locations make one record, and none of
// their fields is lost.
func TestPatchesRaceToCreate(t *testing.T) {
	w := newWorld(t, 3, 1)
	tab := w.table(w.open("singapore"), "plain")
	const names, each = 10, 6
	at := []rhumb.Point{nearFrankfurt, nearVirginia, {Lat: 1, Lon: 103}}
	var work sync.WaitGroup
	for i := range names * each {
		work.Go(func() {
			r := rhumb.Record{{Name: fmt.Sprintf("f%d", i/names), Value: rhumb.Int64Field(1)}, {Name: "location", Value: rhumb.PointField(at[i%3])}}
			if _, err := tab.Patch(t.Context(), fmt.Append(nil, i%names), r, PatchOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	for i := range names {
		name := fmt.Sprint(i)
		if rs := w.regionsOf(name); len(rs) != 1 {
			t.Fatalf("%s is in %v", name, rs)
		}
		got := must[Got](t)(tab.Get(t.Context(), []byte(name), GetOptions{}))
		if r, _ := got.Record(); len(r) != each+1 {
			t.Fatalf("%s has %v", name, r)
		}
	}
}

// Two clients in different regions whose patches create one name near one location merge into one
// record.
func TestClientsRaceToCreate(t *testing.T) {
	w := newWorld(t, 3, 1)
	a, b := w.table(w.open("singapore"), "plain"), w.table(w.open("virginia"), "plain")
	var work sync.WaitGroup
	const n = 30
	for i := range n {
		for field, tab := range map[string]*Table{"a": a, "b": b} {
			work.Go(func() {
				r := rhumb.Record{{Name: field, Value: rhumb.Int64Field(1)}, {Name: "location", Value: rhumb.PointField(nearFrankfurt)}}
				if _, err := tab.Patch(t.Context(), fmt.Append(nil, i), r, PatchOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	work.Wait()
	for i := range n {
		got := must[Got](t)(a.Get(t.Context(), fmt.Append(nil, i), GetOptions{}))
		if r, _ := got.Record(); len(r) != 3 || got.Key.Home.Region != 2 {
			t.Fatalf("%d: %v at %s", i, r, got.Key.Home)
		}
	}
}

// A batch goes where its first mutation belongs, whole or not at all.
func TestBatch(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "split")
	ctx := t.Context()
	id := tab.Info().ID
	at := rhumb.EncodeRecord(nil, record(t, "location", nearVirginia, "seq", 1))
	mutations := []rhumb.Mutation{
		{Kind: rhumb.Patch, Table: id, Name: []byte("SWR8"), Value: at, Cond: rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"seq"}}},
		{Kind: rhumb.Put, Table: id, Name: []byte("SWR8/1"), Value: rhumb.EncodeOpaque(nil, nil)},
	}
	r := must[BatchResult](t)(c.Batch(ctx, mutations, BatchOptions{}))
	if !r.Applied || r.Receipt.Range.Region != 3 || len(r.Existed) != 2 {
		t.Fatalf("%+v", r)
	}
	r = must[BatchResult](t)(c.Batch(ctx, mutations, BatchOptions{}))
	if r.Applied || len(r.Existed) != 2 {
		t.Fatalf("played again: %+v", r)
	}
	got := must[Got](t)(tab.Get(ctx, []byte("SWR8/1"), GetOptions{}))
	if got.Key.Home.Region != 3 {
		t.Fatalf("%+v", got)
	}
	mutations[1].Name = []byte("other")
	for tab.slotOf('/', []byte("other")) == tab.slotOf('/', []byte("SWR8")) {
		mutations[1].Name = append(mutations[1].Name, 'x')
	}
	_, err := c.Batch(ctx, mutations, BatchOptions{})
	wantKind(t, err, rhumb.InvalidArgument)
	mutations[1].Table = 77
	_, err = c.Batch(ctx, mutations, BatchOptions{})
	wantKind(t, err, rhumb.NotFound)
	mutations[1] = rhumb.Mutation{Kind: rhumb.Insert, Table: id, Value: rhumb.EncodeOpaque(nil, nil)}
	_, err = c.Batch(ctx, mutations, BatchOptions{})
	wantKind(t, err, rhumb.InvalidArgument)
	ins := must[BatchResult](t)(c.Batch(ctx, []rhumb.Mutation{mutations[1], mutations[1]}, BatchOptions{Home: "frankfurt"}))
	if len(ins.Names) != 2 || ins.Receipt.Range.Region != 2 {
		t.Fatalf("%+v", ins)
	}
	_, err = c.Batch(ctx, []rhumb.Mutation{
		{Kind: rhumb.Delete, Table: id, Name: []byte("gone")},
		{Kind: rhumb.Put, Table: id, Name: []byte("gone/1"), Value: rhumb.EncodeOpaque(nil, nil)},
	}, BatchOptions{})
	wantKind(t, err, rhumb.NotFound)
}

// Local never leaves the region, even where another region's node serves a range of it.
func TestLocalRefusesRemotePrimary(t *testing.T) {
	w := newWorld(t, 2, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	w.move(homeOf(1, "k"), 2)
	await(t, "the client knows", func() bool { return c.Revision() == 2 })
	_, err := tab.Put(t.Context(), []byte("k"), nil, PutOptions{Local: true})
	wantKind(t, err, rhumb.Unavailable)
	_, err = tab.Get(t.Context(), []byte("k"), GetOptions{Local: true})
	wantKind(t, err, rhumb.Unavailable)
	if w.nodes[1].asked != 0 {
		t.Fatal("a node of another region was asked")
	}
	r := must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{}))
	if r.Receipt.Region != 2 || c.Metrics().Remote != 1 {
		t.Fatalf("%+v", r.Receipt)
	}
}

func TestGetMany(t *testing.T) {
	w := newWorld(t, 3, 2)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	ctx := t.Context()
	var names [][]byte
	for i := range 60 {
		name := fmt.Appendf(nil, "n%d", i)
		names = append(names, name)
		if i%4 < 3 {
			must[Result](t)(tab.Put(ctx, name, name, PutOptions{Home: places[i%4].Name}))
		}
	}
	for range 2 { // the second time, homes are remembered
		got := must[[]Got](t)(tab.GetMany(ctx, names, GetOptions{}))
		for i, g := range got {
			if g.Exists() != (i%4 < 3) || g.Exists() && (string(g.Key.Name) != string(names[i]) || g.Key.Home.Region != rhumb.RegionID(i%4+1)) {
				t.Fatalf("%d: %+v", i, g)
			}
		}
	}
	got := must[[]Got](t)(tab.GetMany(ctx, names, GetOptions{Local: true}))
	for i, g := range got {
		if g.Exists() != (i%4 == 0) {
			t.Fatalf("%d: %+v", i, g)
		}
	}
	if got := must[[]Got](t)(tab.GetMany(ctx, nil, GetOptions{})); len(got) != 0 {
		t.Fatal(got)
	}
	_, err := tab.GetMany(ctx, make([][]byte, rhumb.BatchOpsMax+1), GetOptions{})
	wantKind(t, err, rhumb.TooLarge)
}

// The least recently used home is forgotten first, and never are more remembered than
// Config.HomesMax.
func TestHomesBound(t *testing.T) {
	h := newHomes(3)
	for i := range 5 {
		h.put(1, fmt.Append(nil, i), 2)
		h.get(1, []byte("0"))
	}
	if h.size() != 3 {
		t.Fatalf("%d are remembered", h.size())
	}
	for name, want := range map[string]bool{"0": true, "1": false, "2": false, "3": true, "4": true} {
		if _, ok := h.get(1, []byte(name)); ok != want {
			t.Errorf("%s: %t", name, ok)
		}
	}
	if _, ok := h.get(2, []byte("0")); ok {
		t.Error("a home of another table")
	}
	h.forget(1, []byte("0"), 2)
	h.forget(1, []byte("3"), 1)
	if _, ok := h.get(1, []byte("0")); !ok || h.size() != 2 {
		t.Error("forget forgot the region it was to keep")
	}
}

// TestConfinedTableIsUsedFromElsewhere guards that a client in a region in which a table has no records reads and writes it without naming a
// home: its writes go to the nearest region that has the table. A call that names the other region says why it fails.
func TestConfinedTableIsUsedFromElsewhere(t *testing.T) {
	w := newWorld(t, 3, 1)
	// The table has slots in Frankfurt and Virginia only.
	w.change(func(m *api.Metadata) {
		m.Classes = slices.Clone(m.Classes)
		m.Classes[0].Settings.Regions = rhumb.NewRegionSet("frankfurt", "virginia")
		m.Blocks = slices.DeleteFunc(slices.Clone(m.Blocks), func(b rhumb.Block) bool { return b.Region == 1 && b.Node == rhumb.NoNode })
	})
	c := w.open("singapore")
	tab := w.table(c, "plain")
	ctx := t.Context()
	near := c.regionFor(tab)
	if near == 1 {
		t.Fatal("the region without slots is chosen")
	}
	want := []rhumb.RegionID{near}
	must[Result](t)(tab.Put(ctx, []byte("put"), nil, PutOptions{}))
	must[Result](t)(tab.Patch(ctx, []byte("patch"), record(t, "a", 1), PatchOptions{}))
	if out, err := c.WriteMany(ctx, []rhumb.Mutation{
		{Kind: rhumb.Put, Table: tab.info.ID, Name: []byte("many"), Value: rhumb.EncodeOpaque(nil, nil)},
		{Kind: rhumb.Patch, Table: tab.info.ID, Name: []byte("many patch"), Value: rhumb.EncodeRecord(nil, record(t, "a", 1))},
	}, BatchOptions{}); err != nil || out[0].Err != nil || out[1].Err != nil {
		t.Fatal(out, err)
	}
	for _, name := range []string{"put", "patch", "many", "many patch"} {
		if rs := w.regionsOf(name); !slices.Equal(rs, want) {
			t.Errorf("%s is in %v, want %v", name, rs, want)
		}
		must[Got](t)(tab.Get(ctx, []byte(name), GetOptions{}))
	}
	got, err := tab.GetMany(ctx, [][]byte{[]byte("put"), []byte("absent")}, GetOptions{})
	if err != nil || !got[0].Exists() || got[1].Exists() {
		t.Errorf("%+v, %v", got, err)
	}
	must[Result](t)(tab.Delete(ctx, []byte("put"), DeleteOptions{}))
	if rs := w.regionsOf("put"); len(rs) != 0 {
		t.Errorf("a deleted record is in %v", rs)
	}
	_, err = tab.Put(ctx, []byte("k"), nil, PutOptions{Home: "singapore"})
	wantKind(t, err, rhumb.InvalidArgument)
}
