package storagetest_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// disks returns n directories for an engine in memory.
func disks(n int) (dirs []string) {
	for i := range n {
		dirs = append(dirs, fmt.Sprintf("/disk%d/rhumb", i))
	}
	return dirs
}

func openEngine(t *testing.T, fs vfs.FS, dirs []string) *storage.Engine {
	t.Helper()
	e, err := storage.OpenEngine(dirs, storage.Config{FS: fs, MemTableBytes: 1 << 20, DiskFree: func(string) (uint64, uint64, error) { return 1, 1, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func closeEngine(t *testing.T, e *storage.Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestEngine guards that ranges are spread evenly, are found again after a restart, and may be
// placed on a disk that was added later.
func TestEngine(t *testing.T) {
	fs := vfs.NewMem()
	e := openEngine(t, fs, disks(2))
	logs := map[rhumb.RangeID]*storagetest.Log{}
	place := map[rhumb.RangeID]string{}
	add := func(e *storage.Engine, slots ...rhumb.Slot) {
		for _, slot := range slots {
			l := &storagetest.Log{ID: rhumb.RangeID{Region: 1, Slot: slot}}
			logs[l.ID] = l
			s := e.Store(l.ID)
			place[l.ID] = s.Dir()
			b := s.NewBatch()
			b.CreateRange(storage.RangeState{Range: l.ID})
			b.Append(l.ID, l.Add(1, 1, storagetest.Put("a", fmt.Sprint(slot))), storage.Commit{})
			if err := b.Apply(); err != nil {
				t.Fatal(err)
			}
			if err := b.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(e *storage.Engine) {
		t.Helper()
		states, err := e.Ranges()
		if err != nil || len(states) != len(logs) {
			t.Fatalf("%d ranges, want %d: %v", len(states), len(logs), err)
		}
		for id, l := range logs {
			s := e.Store(id)
			if s.Dir() != place[id] {
				t.Errorf("range %s is in %s, was in %s", id, s.Dir(), place[id])
			}
			if err := l.Check(s); err != nil {
				t.Error(err)
			}
		}
	}
	add(e, 1, 2, 3, 4)
	if err := e.SetIdentity(rhumb.UUID{1}, 5); err != nil {
		t.Fatal(err)
	}
	if err := e.SetHLCCeiling(1000); err != nil {
		t.Fatal(err)
	}
	if err := e.SetHLCCeiling(900); err != nil {
		t.Fatal(err)
	}
	first := e.Identity()
	count := map[string]int{}
	for _, dir := range place {
		count[dir]++
	}
	if len(count) != 2 || count[e.Stores()[0].Dir()] != 2 {
		t.Errorf("ranges are spread as %v", count)
	}
	check(e)
	closeEngine(t, e)

	e = openEngine(t, fs, disks(3)) // a disk joins
	id := e.Identity()
	if id.Store != first.Store || id.Boot != first.Boot+1 || id.Node != 5 || id.Fresh {
		t.Errorf("identity is %+v, was %+v", id, first)
	}
	if c, err := e.HLCCeiling(); c != 1000 || err != nil {
		t.Errorf("the clock's ceiling is %d, want 1000: %v", c, err)
	}
	add(e, 5, 6)
	if got := place[rhumb.RangeID{Region: 1, Slot: 5}]; got != e.Stores()[2].Dir() {
		t.Errorf("a new range goes to %s, want the empty disk", got)
	}
	check(e)
	if n, err := e.BumpBoot(0); n != id.Boot+1 || err != nil {
		t.Errorf("bumped boot is %d, want %d: %v", n, id.Boot+1, err)
	}
	drop := rhumb.RangeID{Region: 1, Slot: 1}
	b := e.Store(drop).NewBatch()
	b.DropRange(drop)
	if err := b.Apply(); err != nil {
		t.Fatal(err)
	}
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	delete(logs, drop)
	check(e)
	closeEngine(t, e)

	cfg := storage.Config{FS: fs}
	for name, dirs := range map[string][]string{"a directory is missing": disks(2), "the order is changed": {disks(3)[0], disks(3)[2], disks(3)[1]}, "none": {}} {
		if _, err := storage.OpenEngine(dirs, cfg); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%s: %v, want invalid_argument", name, err)
		}
	}
	other := openEngine(t, fs, []string{"/other0", "/other1"})
	closeEngine(t, other)
	if _, err := storage.OpenEngine([]string{"/other0", disks(3)[1]}, cfg); rhumb.KindOf(err) == rhumb.Other || err == nil {
		t.Errorf("disks of two nodes: %v", err)
	}
	if _, err := storage.OpenEngine([]string{"/fresh", "/other1"}, cfg); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("an empty first disk: %v, want corrupt", err)
	}
	e = openEngine(t, fs, disks(3))
	check(e)
	closeEngine(t, e)
}

// TestMetrics registers and gathers the metrics of two stores before and after they are closed.
func TestMetrics(t *testing.T) {
	e := openEngine(t, vfs.NewMem(), disks(2))
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(e.Collectors()...)
	families, err := reg.Gather()
	if err != nil || len(families) < 10 {
		t.Errorf("%d families: %v", len(families), err)
	}
	closeEngine(t, e)
	if _, err := reg.Gather(); err != nil {
		t.Errorf("after close: %v", err)
	}
}

// TestVerifyRefuses guards that Verify rejects a directory without a store, and a store in use.
func TestVerifyRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := storage.Verify(filepath.Join(dir, "none"), nil); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("no store: %v, want not_found", err)
	}
	s, err := storage.Open(storage.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := storage.Verify(dir, nil); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("a store in use: %v, want unavailable", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if rep, err := storage.Verify(dir, nil); err != nil || len(rep.Faults) > 0 {
		t.Errorf("an empty store: %+v %v", rep, err)
	}
}
