package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// TestScanOfRanges divides a range into three and reads them together: pages of any size have each record once and in order, and say which
// ranges they cover.
func TestScanOfRanges(t *testing.T) {
	w := newSplitWorld(t, func(*Config) {})
	w.eventually(func() error { _, err := w.putAt(1, "a0", "0", rhumb.RequestID{}); return err })
	names := []string{"a0"}
	put := func(from, to int) {
		for i := from; i < to; i++ {
			name := fmt.Sprintf("%c%d", 'a'+rune(i%3), i)
			w.eventually(func() error { _, err := w.putAt(1, name, name, rhumb.RequestID{}); return err })
			names = append(names, name)
		}
		slices.Sort(names)
	}
	put(1, 100)
	ranges := []rhumb.RangeID{testRange}
	// leftOut is set if a page did not cover one of the ranges.
	leftOut := false
	read := func(h *Host, q rhumb.ScanQuery) (got []string, ends []rhumb.Slot) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		q.Ranges, q.Table = ranges, testTable
		for more := true; more; {
			var page rhumb.ScanPage
			w.eventually(func() (err error) { page, _, err = h.Scan(ctx, q); return err })
			for _, it := range page.Items {
				if v, _ := rhumb.DecodeOpaque(it.Value); string(v) != string(it.Key.Name) && string(it.Key.Name) != "a0" {
					t.Fatalf("%s has the value %q", it.Key.Name, v)
				}
				got = append(got, string(it.Key.Name))
				q.After, q.AfterHome = it.Key.Name, it.Key.Home
			}
			leftOut = leftOut || slices.Contains(page.Ends, 0)
			if more, ends = page.More, page.Ends; more && len(page.Items) == 0 {
				t.Fatal("an empty page is not the last")
			}
		}
		return got, ends
	}
	check := func() {
		t.Helper()
		for _, c := range []struct {
			prefix       string
			limit, bytes int
		}{{"", 1000, 1 << 20}, {"", 7, 1 << 20}, {"b", 3, 1 << 20}, {"c1", 1, 1 << 20}, {"", 1000, 20}, {"x", 5, 1 << 20}} {
			var want []string
			for _, n := range names {
				if strings.HasPrefix(n, c.prefix) {
					want = append(want, n)
				}
			}
			var got []string
			var ends []rhumb.Slot
			// The node leaves out a range while it has no lease of it, which a busy machine may delay.
			w.eventually(func() error {
				leftOut = false
				got, ends = read(w.hosts[1], rhumb.ScanQuery{Prefix: []byte(c.prefix), Limit: c.limit, BytesMax: c.bytes})
				if leftOut {
					return rhumb.Ef("test", rhumb.Unavailable, "%+v: a range of %v is left out", c, ranges)
				}
				return nil
			})
			if !slices.Equal(got, want) {
				t.Fatalf("%+v: %v, want %v", c, got, want)
			}
			for i, end := range ends {
				next := testRange.Slot + splitSlots
				if i+1 < len(ranges) {
					next = ranges[i+1].Slot
				}
				if end != next {
					t.Fatalf("range %s ends before slot %d, want %d", ranges[i], end, next)
				}
			}
		}
	}
	check()
	for _, at := range []rhumb.Slot{testRange.Slot + 40, testRange.Slot + 10} {
		ranges = append(ranges, w.reserve(at))
		slices.SortFunc(ranges, rhumb.RangeID.Compare)
		w.eventually(func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.child.Birth != 0 {
				return rhumb.E("test", rhumb.Unavailable, "not complete")
			}
			return nil
		})
		check()
		put(len(names), len(names)+50)
		check()
	}
	// The token of a record in the middle, with a home below and above its own.
	middle := names[len(names)/2]
	q := rhumb.ScanQuery{Limit: 5, BytesMax: 1 << 20, After: []byte(middle)}
	if got, _ := read(w.hosts[1], q); got[0] != middle {
		t.Errorf("after a lower home %s follows, want %s", got[0], middle)
	}
	q.AfterHome = rhumb.RangeID{Region: testRange.Region, Slot: testRange.Slot + splitSlots}
	if got, _ := read(w.hosts[1], q); got[0] != names[len(names)/2+1] {
		t.Errorf("after a higher home %s follows, want the next name", got[0])
	}
	// What a node does not serve is left out, and the page says so.
	if got, ends := read(w.hosts[2], rhumb.ScanQuery{Limit: 5, BytesMax: 1 << 20}); len(got) != 0 || slices.Max(ends) != 0 {
		t.Errorf("a secondary returns %v of %v", got, ends)
	}
	ranges = []rhumb.RangeID{{Region: 9, Slot: 9}, testRange}
	if got, ends := read(w.hosts[1], rhumb.ScanQuery{Limit: 1000, BytesMax: 1 << 20}); len(got) == 0 || ends[0] != 0 || ends[1] != testRange.Slot+10 {
		t.Errorf("with an unknown range there are %d records, and the ends are %v", len(got), ends)
	}
}

// TestScanWhileDivided guards the moment in which the store has divided a range and the host has not learned it: a page would lack the records
// of the new range and claim to cover them.
func TestScanWhileDivided(t *testing.T) {
	w := newWideWorld(t, 1, testRange.Slot+splitSlots-1, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) {
		c.HomeIn = func(_ rhumb.RangeID, _ rhumb.TableID, name []byte) rhumb.RangeID { return splitHome(string(name)) }
	})
	w.eventually(func() error { _, err := w.putAt(1, "a0", "0", rhumb.RequestID{}); return err })
	for i := range 50 {
		if _, err := w.putAt(1, fmt.Sprint("a", i), "0", rhumb.RequestID{}); err != nil {
			t.Fatal(err)
		}
	}
	q := rhumb.ScanQuery{Range: testRange, Table: testTable, Limit: 100, BytesMax: 1 << 20}
	if page, _, err := w.hosts[1].Scan(t.Context(), q); err != nil || len(page.Items) != 50 {
		t.Fatalf("%d records, %v", len(page.Items), err)
	}
	s := w.hosts[1].cfg.Engine.Store(testRange)
	st, _ := s.State(testRange)
	b := s.NewBatch()
	if _, err := b.Split(testRange, storage.Split{At: testRange.Slot + 32, Seq: st.Commit}); err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(); err != nil {
		t.Fatal(err)
	}
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	for _, ranges := range [][]rhumb.RangeID{nil, {testRange}} {
		q.Ranges = ranges
		if page, _, err := w.hosts[1].Scan(t.Context(), q); rhumb.KindOf(err) != rhumb.Unavailable {
			t.Errorf("ranges %v: %d records up to slot %s, and up to %v, %v", ranges, len(page.Items), page.Last, page.Ends, err)
		}
	}
}
