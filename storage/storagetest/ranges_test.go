package storagetest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// twoTables creates two ranges, each in a table of its own, stops the store and returns the tables'
// files.
func twoTables(t *testing.T) (w *storagetest.World, logs []*storagetest.Log, tables []string) {
	w = storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Config = func(c *storage.Config) {
		c.Options = func(o *storage.PebbleOptions) { o.DisableAutomaticCompactions = true }
	}
	w.Start()
	for slot := range rhumb.Slot(2) {
		before := w.Files()
		l := w.Create(rhumb.RangeID{Region: 1, Slot: slot})
		for range 30 {
			w.Append(l, storagetest.Put("key", strings.Repeat("value", 200)))
		}
		if err := w.Store.Flush(); err != nil {
			t.Fatal(err)
		}
		for _, f := range w.Files() {
			if kind(f) == ".sst" && !slices.Contains(before, f) {
				tables = append(tables, f)
			}
		}
		logs = append(logs, l)
	}
	w.Stop()
	if len(tables) != 2 {
		t.Fatalf("tables are %v, want 2", tables)
	}
	return w, logs, tables
}

// TestDamagedRanges damages every part of the table that holds one of two ranges. The other range
// must be served. The damaged one must be listed once the damage was met, also after a restart, and
// never be served wrong.
func TestDamagedRanges(t *testing.T) {
	w, logs, tables := twoTables(t)
	good := w.Mem
	size := fileSize(t, good, tables[0])
	listed := 0
	for at := 0; at < size; at += size / 16 {
		w.Mem = clone(good)
		w.Damage(tables[0], func(b []byte) []byte {
			b[at] ^= 8
			return b
		})
		w.Start()
		met := readRange(w.Store, logs[0]) != nil
		if err := logs[1].Check(w.Store); err != nil && !w.Store.Short() {
			t.Errorf("byte %d: the other range: %v", at, err)
		}
		w.Restart()
		switch {
		case w.Store.Short(): // the table did not open
		case met && !w.Store.RangeDamaged(logs[0].ID):
			t.Errorf("byte %d: a restart forgot that the range is damaged; %v", at, w.Store.Damage())
		case w.Store.RangeDamaged(logs[1].ID):
			t.Errorf("byte %d: the other range counts as damaged", at)
		case met:
			listed++
		}
		w.Stop()
	}
	if listed < 5 {
		t.Errorf("damage was met and listed in only %d of 16 places: the test shows little", listed)
	}
	w.Mem = good
}

// readRange reads all of a range. A range that the store does not hold counts as damaged.
func readRange(s *storage.Store, l *storagetest.Log) error {
	if _, ok := s.State(l.ID); !ok {
		return rhumb.E("test", rhumb.Corrupt, "not held")
	}
	return l.Check(s)
}
