package client

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// fill puts 1,200 records into all regions of table "plain", "a/0" in all three, and returns what a
// scan must give.
func fill(t *testing.T, w *world) []string {
	t.Helper()
	var want []string
	put := func(region rhumb.RegionID, name string) {
		id := homeOf(region, name)
		if w.records[id] == nil {
			w.records[id] = map[recordKey]stored{}
		}
		w.clock++
		w.records[id][recordKey{1, name}] = stored{rhumb.EncodeOpaque(nil, []byte(name)), rhumb.Version{HLC: rhumb.Timestamp(w.clock), Node: 1}}
		want = append(want, name+"@"+id.String())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range 1200 {
		put(rhumb.RegionID(i%3+1), fmt.Sprintf("%c/%d", 'a'+i%7, i))
	}
	for r := range 3 {
		put(rhumb.RegionID(r+1), "a/00")
	}
	slices.SortFunc(want, func(a, b string) int { // by name, then home
		return strings.Compare(strings.Replace(a, "@", "\x00", 1), strings.Replace(b, "@", "\x00", 1))
	})
	return want
}

func collect(t *testing.T, tab *Table, o ScanOptions, most int) (got []string, last rhumb.Item) {
	t.Helper()
	for it, err := range tab.Scan(t.Context(), o) {
		if err != nil {
			t.Fatal(err)
		}
		if it.Version.IsZero() || len(it.Value) == 0 || it.Key.Table != tab.Info().ID {
			t.Fatalf("%+v", it)
		}
		got = append(got, string(it.Key.Name)+"@"+it.Key.Home.String())
		last = it
		if len(got) == most {
			break
		}
	}
	return got, last
}

// TestScanFindsOwnInsert guards that a client finds by a scan what it inserted, although the insert
// opened a range that the watch delivers later than the answer.
func TestScanFindsOwnInsert(t *testing.T) {
	w := newWorld(t, 1, 1)
	blocks, ranges := w.meta.Blocks, w.meta.Ranges
	w.mu.Lock()
	w.meta.Blocks, w.meta.Ranges = blocks[:1], ranges[:hashSlots] // the node has no range for inserts yet
	w.mu.Unlock()
	c := w.open("")
	tab := w.table(c, "plain")
	w.mu.Lock()
	w.meta.Blocks, w.meta.Ranges = blocks, ranges // now it has, but the watch says nothing
	w.mu.Unlock()
	var announced sync.WaitGroup
	announced.Go(func() {
		await(t, "the insert is answered", func() bool { return c.Metrics().Local == 1 })
		w.change(func(*api.Metadata) {})
	})
	put := must[Result](t)(tab.Insert(t.Context(), []byte("x"), InsertOptions{}))
	var found []rhumb.Key
	for it, err := range tab.Scan(t.Context(), ScanOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, it.Key)
	}
	if len(found) != 1 || found[0].Home != put.Key.Home || !bytes.Equal(found[0].Name, put.Key.Name) {
		t.Errorf("the scan found %v, want %v", found, put.Key)
	}
	announced.Wait()
}

// A scan returns every record once, ordered by name, over all ranges and nodes; its parts put
// together are the same.
func TestScan(t *testing.T) {
	w := newWorld(t, 3, 2)
	want := fill(t, w)
	tab := w.table(w.open("singapore"), "plain")
	if got, _ := collect(t, tab, ScanOptions{}, -1); !slices.Equal(got, want) {
		t.Fatalf("got %d records, want %d in order", len(got), len(want))
	}
	for _, step := range []int{1, 7, 100, 1000} {
		var got []string
		from := ""
		for len(got) < len(want) && (step > 1 || len(got) < 40) {
			part, last := collect(t, tab, ScanOptions{After: from, Limit: step}, -1)
			if len(part) == 0 {
				break
			}
			got = append(got, part...)
			from = ScanToken(last)
		}
		if !slices.Equal(got, want[:len(got)]) || len(got) < 40 {
			t.Fatalf("resumed every %d: %d records of %d, out of order or missing", step, len(got), len(want))
		}
	}
	var prefixed []string
	for _, s := range want {
		if s[:2] == "c/" {
			prefixed = append(prefixed, s)
		}
	}
	if got, _ := collect(t, tab, ScanOptions{Prefix: []byte("c/")}, -1); !slices.Equal(got, prefixed) {
		t.Fatalf("prefix: %d records, want %d", len(got), len(prefixed))
	}
	got, _ := collect(t, tab, ScanOptions{Region: "frankfurt"}, -1)
	if len(got) != 401 {
		t.Fatalf("one region: %d records", len(got))
	}
	if got, _ := collect(t, tab, ScanOptions{Local: true}, -1); len(got) != 401 {
		t.Fatalf("here: %d records", len(got))
	}
	if got, _ := collect(t, tab, ScanOptions{}, 5); !slices.Equal(got, want[:5]) {
		t.Fatalf("a scan that is left early gave %v", got)
	}
	if got, _ := collect(t, w.table(tab.c, "split"), ScanOptions{}, -1); len(got) != 0 {
		t.Fatalf("an empty table gave %v", got)
	}
}

// TestScanOfNodes guards scans with a limit, whose pages a node merges: they have the same records when nodes leave ranges out, know nothing of
// such pages, or end them early, and they take a request for each node and not for each range.
func TestScanOfNodes(t *testing.T) {
	w := newWorld(t, 3, 2)
	want := fill(t, w)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	check := func(when string, limit int) (requests uint64) {
		t.Helper()
		before := c.Metrics().Requests
		if got, _ := collect(t, tab, ScanOptions{Limit: limit}, -1); !slices.Equal(got, want[:limit]) {
			t.Fatalf("%s, limit %d: %d records, out of order or missing", when, limit, len(got))
		}
		from := ""
		for at := 0; at < 60; {
			got, last := collect(t, tab, ScanOptions{After: from, Limit: 7}, -1)
			if !slices.Equal(got, want[at:at+7]) {
				t.Fatalf("%s: after %d records %v, want %v", when, at, got, want[at:at+7])
			}
			at, from = at+7, ScanToken(last)
		}
		return c.Metrics().Requests - before
	}
	if n := check("whole", 100); n > 10*6+6 {
		t.Errorf("10 scans of 6 nodes took %d requests", n)
	}
	w.mu.Lock()
	w.refused = map[rhumb.RangeID]bool{homeOf(1, "a/0"): true, homeOf(3, "a/7"): true}
	w.mu.Unlock()
	check("without two ranges", 100)
	check("without two ranges", 1000)
	w.mu.Lock()
	w.older = true
	w.mu.Unlock()
	check("older nodes", 100)
}

// TestScanOwnItems guards that the records of a range that was merged with another one are returned once, and that what a node did not read is
// read by other cursors.
func TestScanOwnItems(t *testing.T) {
	item := func(slot rhumb.Slot) rhumb.Item {
		return rhumb.Item{Key: rhumb.Key{Home: rhumb.RangeID{Region: 1, Slot: slot}}}
	}
	slots := func(c *cursor) (out []rhumb.Slot) {
		var items []rhumb.Item
		for slot := range rhumb.Slot(12) {
			items = append(items, item(slot))
		}
		for _, it := range c.ownItems(items) {
			out = append(out, it.Key.Home.Slot)
		}
		return out
	}
	if got := slots(&cursor{id: rhumb.RangeID{Region: 1, Slot: 3}, last: 5}); !slices.Equal(got, []rhumb.Slot{3, 4, 5}) {
		t.Errorf("a range from 3 to 5 has the records of %v", got)
	}
	c := &cursor{group: []slotSpan{{1, 2}, {4, 4}, {7, 9}, {10, 11}}}
	if got := slots(c); !slices.Equal(got, []rhumb.Slot{1, 2, 4, 7, 8, 9, 10, 11}) {
		t.Errorf("a group has the records of %v", got)
	}
	var rest []slotSpan
	// The first range was merged with others, the second is not served, the third was split.
	c.cover(&page{ends: []uint32{7, 0, 9, 12}}, func(first, last rhumb.Slot) { rest = append(rest, slotSpan{first, last}) })
	if !slices.Equal(c.group, []slotSpan{{1, 2}, {7, 8}, {10, 11}}) || !slices.Equal(rest, []slotSpan{{4, 4}, {9, 9}}) {
		t.Errorf("the group is %v, the rest %v", c.group, rest)
	}
}

// A prefix that holds the colocate byte is looked for in one slot of each region only.
func TestScanOfOneSlot(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "split")
	for i := range 5 {
		must[Result](t)(tab.Put(t.Context(), fmt.Appendf(nil, "SWISS-42/%d", i), nil, PutOptions{Home: places[i%3].Name}))
	}
	before := c.Metrics().Requests
	got, _ := collect(t, tab, ScanOptions{Prefix: []byte("SWISS-42/0")}, -1)
	if len(got) != 1 {
		t.Fatal(got)
	}
	got, _ = collect(t, tab, ScanOptions{Prefix: []byte("SWISS-42/")}, -1)
	if n := c.Metrics().Requests - before; len(got) != 5 || n != 3+3 {
		t.Fatalf("%v with %d requests", got, n)
	}
}

// A scan outlasts a range that moves, and ends with the error of one that fails.
func TestScanFaults(t *testing.T) {
	w := newWorld(t, 3, 1)
	want := fill(t, w)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	w.nodes[1].set(first(3, func(q *rhumbpb.Request) bool { return q.Scan != nil }, fault{lose: true, cut: true}))
	if got, _ := collect(t, tab, ScanOptions{}, -1); !slices.Equal(got, want) {
		t.Fatalf("%d records of %d", len(got), len(want))
	}
	w.nodes[1].set(func(*rhumbpb.Request) fault { return fault{refuse: rhumb.Corrupt} })
	var last error
	for _, err := range tab.Scan(t.Context(), ScanOptions{}) {
		last = err
	}
	wantKind(t, last, rhumb.Corrupt)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range tab.Scan(ctx, ScanOptions{}) {
		last = err
	}
	wantKind(t, last, rhumb.Canceled)
}
