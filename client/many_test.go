package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// patches makes a patch of table "plain" for each name.
func patches(t *testing.T, names ...string) []rhumb.Mutation {
	var out []rhumb.Mutation
	for _, n := range names {
		out = append(out, rhumb.Mutation{Kind: rhumb.Patch, Table: 1, Name: []byte(n), Value: rhumb.EncodeRecord(nil, record(t, "n", n))})
	}
	return out
}

func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// A batch of creations asks each region once and sends each range one request; a batch of updates
// asks nobody.
func TestWriteMany(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	ctx := t.Context()
	must[Result](t)(w.table(c, "plain").Patch(ctx, []byte("first"), record(t, "a", 1), PatchOptions{})) // names are new from here on
	names := numbered("k", 100)
	for round, want := range []struct{ locates, names, writes int }{{3, 300, hashSlots}, {0, 0, hashSlots}} {
		seen := w.watch()
		for i, r := range must[[]Written](t)(c.WriteMany(ctx, patches(t, names...), BatchOptions{})) {
			home := homeOf(1, names[i])
			if r.Err != nil || !r.Applied || r.Existed != (round == 1) || r.Version.IsZero() || r.Key.Home != home || string(r.Key.Name) != names[i] || r.Receipt.Range != home {
				t.Fatalf("round %d: %s: %+v", round, names[i], r)
			}
			if searched := 2 - 2*round; r.Receipt.Searched != searched {
				t.Fatalf("round %d: %d regions were searched, want %d", round, r.Receipt.Searched, searched)
			}
		}
		if seen.locates != want.locates || seen.names != want.names || seen.writes != want.writes || seen.reads != 0 {
			t.Errorf("round %d took %d requests with %d names and %d writes, %d reads", round, seen.locates, seen.names, seen.writes, seen.reads)
		}
	}
	if total, most := w.times(); total != 1+2*hashSlots || most != 1 {
		t.Errorf("%d requests took effect, one of them %d times", total, most)
	}
}

// Each mutation goes where a call of its own would bring it.
func TestWriteManyFindsHomes(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	ctx := t.Context()
	for _, home := range []string{"singapore", "frankfurt", "virginia"} {
		must[Result](t)(tab.PutRecord(ctx, []byte("in "+home), record(t, "a", 1), PutOptions{Home: home}))
	}
	must[Result](t)(tab.PutRecord(ctx, []byte("both"), record(t, "a", 1), PutOptions{Home: "virginia"}))
	located := patches(t, "located")
	located[0].Value = rhumb.EncodeRecord(nil, rhumb.Record{{Name: "location", Value: rhumb.PointField(places[1].Location)}})
	put := rhumb.Mutation{Kind: rhumb.Put, Table: 1, Name: []byte("both"), Value: rhumb.EncodeOpaque(nil, nil)}
	mutations := slices.Concat(patches(t, "in virginia", "in singapore", "new", "in frankfurt"), located, []rhumb.Mutation{put})
	for what, c := range map[string]*Client{"a client that knows nothing": w.open("singapore"), "the one that wrote them": c} {
		want := []rhumb.RegionID{3, 1, 1, 2, 2, 1}
		for i, r := range must[[]Written](t)(c.WriteMany(ctx, mutations, BatchOptions{})) {
			if r.Err != nil || r.Key.Home.Region != want[i] {
				t.Errorf("%s: %s: %+v", what, mutations[i].Name, r)
			}
		}
	}
	// With a home, or here only, nobody else is asked: these make second records.
	for o, region := range map[BatchOptions]rhumb.RegionID{{Local: true}: 1, {Home: "virginia"}: 3} {
		for i, r := range must[[]Written](t)(c.WriteMany(ctx, mutations, o)) {
			if r.Err != nil || r.Key.Home.Region != region {
				t.Errorf("%+v: %s: %+v", o, mutations[i].Name, r)
			}
		}
	}
}

// What cannot be applied fails alone, and what no state could accept fails the call before anything
// is written.
func TestWriteManyFailures(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	ctx := t.Context()
	w.node(1).set(func(q *rhumbpb.Request) fault {
		if isWrite(q) && slices.ContainsFunc(q.Write.Mutations, func(m *rhumbpb.Mutation) bool { return string(m.Name) == "k7" }) {
			return fault{refuse: rhumb.TooLarge}
		}
		return fault{}
	})
	names := numbered("k", 50)
	out, err := c.WriteMany(ctx, patches(t, names...), BatchOptions{})
	wantKind(t, err, rhumb.TooLarge)
	for i, r := range out {
		if (r.Err == nil) != (i != 7) {
			t.Errorf("%s: %v", names[i], r.Err)
		}
	}
	if _, most := w.times(); most != 1 {
		t.Errorf("a request took effect %d times", most)
	}
	before, _ := w.times()
	conditional := patches(t, "a", "b")
	conditional[1].Cond.Kind = rhumb.IfAbsent
	unknown := patches(t, "a")
	unknown[0].Table = 9
	for what, bad := range map[string][]rhumb.Mutation{
		"none": nil, "a condition": conditional, "twice": patches(t, "a", "b", "a"), "no table": unknown,
		"a delete": {{Kind: rhumb.Delete, Table: 1, Name: []byte("a")}},
	} {
		if out, err := c.WriteMany(ctx, bad, BatchOptions{}); err == nil || out != nil {
			t.Errorf("%s: %+v, %v", what, out, err)
		}
	}
	if after, _ := w.times(); after != before {
		t.Errorf("%d requests took effect", after-before)
	}
}

// A creation does not happen without the answer of every living region; the others of its call do.
func TestWriteManyWithASilentRegion(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore", func(cfg *Config) { cfg.Timeout, cfg.AttemptTimeout = 2*time.Second, 500*time.Millisecond })
	must[Result](t)(w.table(c, "plain").PutRecord(t.Context(), []byte("here"), record(t, "a", 1), PutOptions{}))
	for _, n := range w.nodes { // no node can pass a request on to it either
		n.set(func(q *rhumbpb.Request) fault {
			return fault{drop: q.Read.GetRegion() == 3 || q.Locate.GetRegion() == 3}
		})
	}
	out, err := c.WriteMany(t.Context(), patches(t, "here", "new"), BatchOptions{})
	if err == nil || len(out) != 2 || out[0].Err != nil || out[1].Err == nil || len(w.regionsOf("new")) != 0 {
		t.Fatalf("%+v, %v, created in %v", out, err, w.regionsOf("new"))
	}
	// By the context, and not by the client's own limit, which is longer.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	out, err = c.WriteMany(ctx, patches(t, "here", "new"), BatchOptions{})
	wantKind(t, err, rhumb.DeadlineExceeded)
	if len(out) != 2 || out[0].Err != nil || out[1].Err == nil {
		t.Fatalf("%+v", out)
	}
}

// Calls of one client do not create a name twice, whatever the order in which they name it.
func TestWriteManyAtOnce(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	names := numbered("k", 40)
	reversed := slices.Clone(names)
	slices.Reverse(reversed)
	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() {
			order, location := names, &places[i%3].Location
			if i%2 == 1 {
				order = reversed
			}
			if _, err := c.WriteMany(t.Context(), patches(t, order...), BatchOptions{Location: location}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	for _, n := range names {
		if rs := w.regionsOf(n); len(rs) != 1 {
			t.Errorf("%s is in %v", n, rs)
		}
	}
	c.homes.mu.Lock()
	defer c.homes.mu.Unlock()
	if n := len(c.homes.creating); n > 0 {
		t.Errorf("%d names are still being created", n)
	}
}

// Records of another region take one round trip there, alone and in batches, once two of their
// table have been found there: the write does not wait for the answers about where they are.
func TestForeignRecordsTakeOneRoundTrip(t *testing.T) {
	w := newWorld(t, 3, 1)
	tab := w.table(w.open("virginia"), "plain")
	names := numbered("k", 40)
	must[[]Written](t)(tab.c.WriteMany(t.Context(), patches(t, names...), BatchOptions{}))
	c := w.open("singapore")
	tab = w.table(c, "plain")
	for _, n := range names[:2] {
		must[Result](t)(tab.Patch(t.Context(), []byte(n), record(t, "a", 1), PatchOptions{}))
	}
	silence := func(on bool) {
		for _, n := range w.nodes {
			n.set(func(q *rhumbpb.Request) fault { return fault{drop: on && !isWrite(q)} })
		}
	}
	silence(true)
	r := must[Result](t)(tab.Patch(t.Context(), []byte(names[2]), record(t, "a", 1), PatchOptions{}))
	if r.Key.Home.Region != 3 || !r.Existed || r.Receipt.Searched != 2 {
		t.Errorf("%+v", r)
	}
	for i, r := range must[[]Written](t)(c.WriteMany(t.Context(), patches(t, names[3:]...), BatchOptions{})) {
		if r.Key.Home.Region != 3 || !r.Existed {
			t.Errorf("%s: %+v", names[3+i], r)
		}
	}
	// A guess that is wrong costs nothing but the attempt: the record is found, or created, by what
	// the regions said meanwhile.
	silence(false)
	must[Result](t)(tab.PutRecord(t.Context(), []byte("mine"), record(t, "a", 1), PutOptions{Home: "frankfurt"}))
	if r := must[Result](t)(tab.Patch(t.Context(), []byte("mine"), record(t, "b", 1), PatchOptions{})); r.Key.Home.Region != 2 || !r.Existed {
		t.Errorf("%+v", r)
	}
	c.homes.recordSighting(1, 3)
	c.homes.recordSighting(1, 3)
	must[Result](t)(tab.PutRecord(t.Context(), []byte("other"), record(t, "a", 1), PutOptions{Home: "frankfurt"}))
	out := must[[]Written](t)(c.WriteMany(t.Context(), patches(t, "other", "new"), BatchOptions{}))
	if out[0].Key.Home.Region != 2 || !out[0].Existed || out[1].Key.Home.Region != 1 || out[1].Existed {
		t.Errorf("%+v", out)
	}
	for _, n := range append(names, "mine", "other", "new") {
		if rs := w.regionsOf(n); len(rs) != 1 {
			t.Errorf("%s is in %v", n, rs)
		}
	}
}

// No second region gets a write before the first has said that it did not apply it: one whose
// outcome is not known ends its call.
func TestGuessIsAppliedAtMostOnce(t *testing.T) {
	for name, f := range map[string]fault{"lost before": {drop: true}, "lost after": {lose: true}} {
		w := newWorld(t, 3, 1)
		c := w.open("singapore", func(cfg *Config) { cfg.Timeout, cfg.AttemptTimeout = time.Second, 200*time.Millisecond })
		tab := w.table(c, "plain")
		ctx := t.Context()
		for _, home := range []string{"frankfurt", "virginia"} { // as after the death of a region
			must[Result](t)(tab.PutRecord(ctx, []byte("k"), record(t, "a", 1), PutOptions{Home: home}))
		}
		c.homes.recordSighting(1, 3)
		c.homes.recordSighting(1, 3)
		before, _ := w.times()
		for _, n := range w.nodes {
			n.set(func(q *rhumbpb.Request) fault {
				if isWrite(q) && q.Write.Region == 3 {
					return f
				}
				return fault{}
			})
		}
		_, err := tab.Patch(ctx, []byte("k"), record(t, "b", 1), PatchOptions{})
		wantKind(t, err, rhumb.Unknown)
		c.homes.recordSighting(1, 3)
		c.homes.recordSighting(1, 3)
		_, err = c.WriteMany(ctx, patches(t, "k"), BatchOptions{})
		wantKind(t, err, rhumb.Unknown)
		after, most := w.times()
		if want := map[string]int{"lost before": 0, "lost after": 2}[name]; after-before != want || most != 1 {
			t.Errorf("%s: %d requests took effect, want %d; one of them %d times", name, after-before, want, most)
		}
	}
}

// Mutations of several tables go in one call, and a name that exists twice is noticed.
func TestWriteManyOfTables(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	plain, split := w.table(c, "plain"), w.table(c, "split")
	for _, home := range []string{"frankfurt", "virginia"} {
		must[Result](t)(plain.PutRecord(t.Context(), []byte("twice"), record(t, "a", 1), PutOptions{Home: home}))
	}
	must[Result](t)(split.PutRecord(t.Context(), []byte("far/1"), record(t, "a", 1), PutOptions{Home: "virginia"}))
	mutations := patches(t, "twice", "far/1", "far/1", "new")
	mutations[2].Table, mutations[3].Table = 2, 2
	out := must[[]Written](t)(c.WriteMany(t.Context(), mutations, BatchOptions{}))
	for i, want := range []rhumb.RegionID{0, 1, 3, 1} {
		r := out[i]
		if r.Key.Table != mutations[i].Table || r.Key.Home.Region != want && want != 0 || r.Existed != (i == 0 || i == 2) {
			t.Errorf("mutation %d: %+v", i, r)
		}
	}
	await(t, "the second record to be noticed", func() bool { return c.Metrics().Duplicates == 1 })
}
