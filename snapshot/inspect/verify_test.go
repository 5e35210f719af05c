package inspect

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestVerifyWhole guards that nothing is found in images that are whole: live and stopped, rolled, with commits that were
// given up, and opened again.
func TestVerifyWhole(t *testing.T) {
	for seed := range uint64(2) {
		w := newWorld(t, seed)
		for round := range 30 {
			w.commit(1+w.rng.IntN(400), 50<<(round/5))
			if round%7 == 0 {
				wantClean(t, w.dir)
			}
			if round%10 == 9 {
				check(t, w.p.Close())
				wantClean(t, w.dir)
				w.open()
			}
		}
		if r := wantClean(t, w.dir); r.Records == 0 || r.Tables != 4 || r.Files != 6 {
			t.Errorf("%+v", r)
		}
	}
}

// TestVerifyKept guards that nothing is found in shards that were rolled with the layout of their base kept: all values
// changed, half of them after the closed timestamp, some grew, keys came and went, and a commit was given up.
func TestVerifyKept(t *testing.T) {
	w := newWorld(t, 1)
	w.short = true // the place of a long value would be much to waste
	w.commit(2000, 400)
	roll := func() {
		w.roll()
		wantClean(t, w.dir)
	}
	change := func() *snapshot.Commit {
		changed := map[*snapshot.Table][]snapshot.Record{}
		for _, table := range w.tables {
			for rec := range table.All() {
				rec.Key.Name, rec.Value = slices.Clone(rec.Key.Name), slices.Clone(rec.Value)
				changed[table] = append(changed[table], rec)
			}
		}
		c := w.p.Begin()
		for table, records := range changed {
			for i, rec := range records {
				w.hlc++
				rec.HLC = w.hlc
				switch {
				case i%60 == 7:
					check(t, c.Delete(table, rec.Key, rec.HLC))
				case i%60 == 8:
					rec.Value = append(rec.Value, make([]byte, 100)...)
					fallthrough
				default:
					check(t, c.Put(table, rec))
				}
			}
		}
		for i := range 100 {
			w.hlc++
			check(t, c.Put(w.tables[2], snapshot.Record{Key: format.Key{Name: fmt.Appendf(nil, "new/%d/%d", w.hlc, i)}, HLC: w.hlc, Value: w.value()}))
		}
		return c
	}
	_, err := w.p.Begin().Publish(snapshot.CommitInfo{Closed: w.hlc}) // what was deleted goes with the next roll
	check(t, err)
	roll()
	before := w.p.Stats()
	for range 3 {
		change().Discard()
		_, err := change().Publish(snapshot.CommitInfo{Closed: w.hlc - 200})
		check(t, err)
		wantClean(t, w.dir)
		roll()
	}
	if after := w.p.Stats(); after.Kept-before.Kept != after.Rolls-before.Rolls {
		t.Errorf("%d of %d rolls kept the layout, want all", after.Kept-before.Kept, after.Rolls-before.Rolls)
	}
}

// TestVerifyNothing guards what is said of what is no image.
func TestVerifyNothing(t *testing.T) {
	dir := t.TempDir()
	if _, err := Verify(t.Context(), dir, VerifyOptions{}); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("an empty directory: %v", err)
	}
	check(t, os.WriteFile(filepath.Join(dir, "root"), make([]byte, format.RootSize), 0o600))
	if r, err := Verify(t.Context(), dir, VerifyOptions{}); err != nil || len(r.Faults) != 1 || r.Faults[0].File != "root" {
		t.Errorf("a root of zeros: %+v, %v", r, err)
	}
}

// TestVerifyTruncated guards that a file that is cut short is named.
func TestVerifyTruncated(t *testing.T) {
	w := newWorld(t, 3)
	w.commit(200, 100)
	w.commit(200, 100)
	check(t, w.p.Close())
	files, err := filepath.Glob(filepath.Join(w.dir, "seg.*"))
	check(t, err)
	check(t, os.Truncate(files[0], 9000))
	r, err := Verify(t.Context(), w.dir, VerifyOptions{})
	if err != nil || len(r.Faults) == 0 || r.Faults[0].File != filepath.Base(files[0]) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestCutShort guards that a file that is cut short while it is looked at is an error of those who look, and no signal.
func TestCutShort(t *testing.T) {
	w := newWorld(t, 4)
	for range 4 {
		w.commit(200, 100)
	}
	check(t, w.p.Close())
	im, err := Open(w.dir)
	check(t, err)
	defer im.Close()
	table := &im.Tables[1]
	shard := table.Shards[0]
	heap, _ := shard.Head.Find(format.SectionHeap)
	check(t, os.Truncate(filepath.Join(w.dir, shard.File), int64(heap.Offset)))
	if faults, _ := im.verifyShard(table, shard, true); len(faults) != 1 || faults[0].File != shard.File || !strings.Contains(faults[0].What, "truncated") {
		t.Errorf("verify: %v", faults)
	}
	if err := im.saveShard(table, shard, io.Discard); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), shard.File) {
		t.Errorf("save: %v", err)
	}
}

// TestMemory guards that neither Verify nor Save holds a segment in memory.
func TestMemory(t *testing.T) {
	w := newWorld(t, 6)
	c := w.p.Begin()
	const size = 32 << 20
	for n := range uint64(512) {
		check(t, c.Put(w.tables[1], snapshot.Record{Key: format.Key{Number: n}, Value: make([]byte, size/512)}))
	}
	_, err := c.Publish(snapshot.CommitInfo{})
	check(t, err)
	check(t, w.p.Close())
	for name, run := range map[string]func() error{
		"verify": func() error { _, err := Verify(t.Context(), w.dir, VerifyOptions{Deep: true}); return err },
		"save":   func() error { _, err := Save(t.Context(), w.dir, filepath.Join(t.TempDir(), "copy"), nil); return err },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		check(t, run())
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > size/2 {
			t.Errorf("%s took %d bytes for an image with %d in one segment", name, n, size)
		}
	}
}
