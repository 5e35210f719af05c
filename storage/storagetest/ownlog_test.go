package storagetest_test

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// ownWorld returns a world whose store has a log of its own.
func ownWorld(t *testing.T, seed int64) *storagetest.World {
	w := storagetest.NewWorld(t, storagetest.Seed(t, seed))
	w.OwnLog = true
	return w.Start()
}

// liveSegments returns the segments with records that tables do not hold, and how many bytes of each are in
// use.
func liveSegments(t *testing.T, w *storagetest.World) map[string]int {
	t.Helper()
	used := map[string]int{}
	for _, f := range w.Files() {
		if kind(f) != ".seg" {
			continue
		}
		b, err := storagetest.ReadFile(w.Mem, f)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(strings.TrimRight(string(b), "\x00")); n > 512 {
			used[f] = n
		}
	}
	return used
}

// TestFlipsInOwnLog flips bits in the log of a store that crashed. Either the store says that it is short and
// names the file, or it serves everything that was acknowledged.
func TestFlipsInOwnLog(t *testing.T) {
	for how, kept := range map[string]int{"power loss": 0, "killed": 100} {
		t.Run(how, func(t *testing.T) {
			w := ownWorld(t, 21)
			logs := build(w)
			w.Cut(kept)
			good := w.Mem
			named, flips := 0, 0
			for file, used := range liveSegments(t, w) {
				for range 60 {
					at := w.Rand.IntN(used)
					w.Mem = clone(good)
					w.Damage(file, func(b []byte) []byte {
						b[at] ^= 1 << w.Rand.IntN(8)
						return b
					})
					o := serves(w, logs)
					if o.err != nil || o.short && !o.named(file) {
						t.Fatalf("a flip of byte %d of %s: %v, short %v, %v", at, file, o.err, o.short, o.damages)
					}
					if flips++; o.short {
						named++
					}
				}
			}
			w.Mem = good
			t.Logf("%d of %d flips made the store short", named, flips)
			if flips == 0 || named < flips/4 {
				t.Errorf("%d of %d flips made the store short: the test shows little", named, flips)
			}
		})
	}
}

// TestOwnLogReplaced damages the log, ends the recovery at each of its operations, loses power, and opens the
// store again. The store must be short and serve a prefix of the records, and its later writes must outlive
// the next crash.
func TestOwnLogReplaced(t *testing.T) {
	w := ownWorld(t, 23)
	logs := build(w)
	w.Cut(100)
	file, most := "", 0
	for f, used := range liveSegments(t, w) {
		if used > most {
			file, most = f, used
		}
	}
	w.Damage(file, func(b []byte) []byte {
		b[most-700] ^= 4
		return b
	})
	bad := w.Mem
	before := segments(t, w)
	failOpens(w, 400, 4, storage.Config{LogBytes: storagetest.LogBytes, OwnLog: true, DiskFree: plenty}, func(n int64, _ error) {
		w.Mem = w.Mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.Rand.IntN(101), RNG: w.Rand})
		o := serves(w, logs)
		if o.err != nil || !o.short || !o.named(file) {
			t.Fatalf("after operation %d failed: %v, short %v, %v", n, o.err, o.short, o.damages)
		}
		w.Start()
		l := w.Create(rhumb.RangeID{Region: 9, Slot: 9})
		w.Append(l, storagetest.Put("a", "1"))
		w.Crash(0)
		if err := l.Check(w.Store); err != nil {
			t.Fatalf("after operation %d failed: %v", n, err)
		}
		w.Stop()
		// Wherever the replacement ended, the new log is another one. A store that lost power without a log gets none before the cluster version allows it.
		if f, _, _, _ := storeFile(t, w.Mem); f == 2 {
			return
		}
		putBack(w, before)
		if o := serves(w, append(logs, l)); o.err != nil || !o.namedAs("different times") {
			t.Fatalf("after operation %d failed, with the log of before put back: %v, %v", n, o.err, o.damages)
		}
	})
	w.Mem = bad
}

// segments returns the content of the log of a store.
func segments(t *testing.T, w *storagetest.World) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, f := range w.Files() {
		if kind(f) != ".seg" {
			continue
		}
		b, err := storagetest.ReadFile(w.Mem, f)
		if err != nil {
			t.Fatal(err)
		}
		out[f] = b
	}
	return out
}

// putBack replaces the log of a stopped store.
func putBack(w *storagetest.World, log map[string][]byte) {
	for _, f := range slices.Sorted(maps.Keys(log)) {
		w.Damage(f, func([]byte) []byte { return log[f] })
	}
}

// namedAs reports whether some damage on record has a text in its description.
func (o *outcome) namedAs(what string) bool {
	return slices.ContainsFunc(o.damages, func(d storage.Damage) bool { return strings.Contains(d.What, what) })
}

// TestOwnLogPutBack puts an older copy of a log back after the store has got another log, with fewer records. The older records must not be applied to
// the newer database, and Verify and the start must report the same.
func TestOwnLogPutBack(t *testing.T) {
	segment := path.Join(storagetest.Dir, "log", "003.seg")
	for _, c := range []struct {
		name    string
		replace func(w *storagetest.World) error // what makes the store create another log
		former  bool
		killed  bool // how the store ended before the old log is put back
	}{
		{"a segment was missing", func(w *storagetest.World) error { return w.Mem.Remove(segment) }, false, false},
		{"a segment was missing, killed later", func(w *storagetest.World) error { return w.Mem.Remove(segment) }, false, true},
		{"the log was missing", func(w *storagetest.World) error { return w.Mem.RemoveAll(path.Dir(segment)) }, false, false},
		{"the database was missing", func(w *storagetest.World) error { return w.Mem.RemoveAll(path.Join(storagetest.Dir, "data")) }, false, false},
		{"a log of an earlier build", func(w *storagetest.World) error { return w.Mem.Remove(segment) }, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := ownWorld(t, 49)
			if c.former {
				w.Stop()
				if err := errors.Join(makeFormer(t, w).Close(), w.Mem.Remove(path.Join(storagetest.Dir, "SEAL"))); err != nil {
					t.Fatal(err)
				}
				w.Start()
			}
			l := w.Create(storagetest.R)
			for i := range 20 {
				w.Append(l, storagetest.Put(fmt.Sprint("key", i), "old"))
			}
			w.Cut(100)
			old := segments(t, w)
			w.Damage(segment, func(b []byte) []byte { return b })
			if err := c.replace(w); err != nil {
				t.Fatal(err)
			}
			w.Start()
			if !w.Store.Short() {
				t.Fatalf("the store is not short: %v", w.Store.Damage())
			}
			if err := w.Store.ClearShort(); err != nil {
				t.Fatal(err)
			}
			other := w.Create(rhumb.RangeID{Region: 9, Slot: 9})
			for i := range 3 {
				w.Append(other, storagetest.Put(fmt.Sprint("key", i), "new"))
			}
			if c.killed {
				w.Cut(100)
			} else {
				w.Stop()
			}
			putBack(w, old)
			rep, err := storage.Verify(storagetest.Dir, w.Mem)
			if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].What, "different times") {
				t.Errorf("verify: %v, %v; want one fault of a log of another time", err, rep.Faults)
			}
			o := serves(w, []*storagetest.Log{l, other})
			if o.err != nil || !o.short || !o.namedAs("different times") || len(rep.Faults) == 0 || o.damages[len(o.damages)-1].Fault != rep.Faults[0] {
				t.Errorf("start: %v, short %v, %v; verify: %v", o.err, o.short, o.damages, rep.Faults)
			}
		})
	}
}

// TestOwnLogFull writes several times the size of the log, in batches that need much more room in the log than
// in a memtable, and one batch that does not fit into a segment. Nothing may be lost, whenever the power
// fails.
func TestOwnLogFull(t *testing.T) {
	w := ownWorld(t, 25)
	local := func() *storage.Local { return w.Store.Local(7) }
	n := 0
	check := func() {
		t.Helper()
		for i := range n {
			if v, ok, err := local().Get(fmt.Append(nil, i%50)); err != nil || !ok || len(v) == 0 {
				t.Fatalf("key %d of %d writes: %q, %v, %v", i%50, n, v, ok, err)
			}
		}
		if v, _, err := local().Get(fmt.Append(nil, (n-1)%50)); err != nil || !strings.HasPrefix(string(v), fmt.Sprint(n-1, ".")) {
			t.Fatalf("the last of %d writes is %.20q, %v", n, v, err)
		}
	}
	for range 6 {
		for range 300 {
			size := 1
			if n%200 == 150 {
				size = storagetest.LogBytes / 4
			}
			if err := local().Set(fmt.Append(nil, n%50), fmt.Append(nil, n, ".", strings.Repeat("v", size))); err != nil {
				t.Fatal(err)
			}
			n++
		}
		check()
		w.Crash(w.Rand.IntN(101))
		check()
	}
	if w.Store.Short() || len(w.Store.Damage()) > 0 {
		t.Errorf("the store found damage: %v", w.Store.Damage())
	}
}

// TestTablesAheadOfLog flushes batches that were never synced, and cuts the power: the flush must have synced them, or tables would have records
// that the log has lost. TestFormerLog opens a store whose tables do.
func TestTablesAheadOfLog(t *testing.T) {
	w := ownWorld(t, 27)
	set := func(key string, sync bool) {
		t.Helper()
		b := w.Store.Local(7).NewBatch()
		b.Set([]byte(key), []byte("v"))
		if err := b.Commit(sync); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			if _, ok, err := w.Store.Local(7).Get([]byte(key)); err != nil || !ok {
				t.Errorf("%s is missing: %v", key, err)
			}
		}
	}
	set("synced", true)
	for i := range 20 {
		set(fmt.Sprint("unsynced", i), false)
	}
	if err := w.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Crash(0)
	expect("synced", "unsynced0", "unsynced19")
	for i := range 5 {
		set(fmt.Sprint("later", i), true)
	}
	for range 2 {
		w.Crash(0)
		expect("synced", "later0", "later4")
	}
	if w.Store.Short() {
		t.Errorf("the store is short: %v", w.Store.Damage())
	}
}

// TestOwnLogUpgrade takes a store through an upgrade: it has the log of its database until the cluster version
// allows one of its own and it starts again, also if the process dies at any operation of that start. A store
// that joined an older cluster goes back when it stops.
func TestOwnLogUpgrade(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 29))
	w.OwnLog = false
	w.Start()
	logs := build(w)
	w.OwnLog = true
	w.Restart()
	has := func() bool {
		_, err := w.Mem.Stat(path.Join(storagetest.Dir, "log"))
		return err == nil
	}
	allow := func() {
		t.Helper()
		e, err := storage.OpenEngine([]string{storagetest.Dir}, storage.Config{FS: w.Mem, MemTableBytes: 1 << 20, DiskFree: plenty})
		if err == nil {
			err = errors.Join(e.RaiseFormat(rhumb.VersionNewest), e.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if has() {
		t.Fatal("the store has a log of its own before the cluster version allows it")
	}
	w.Stop()
	allow()
	if has() {
		t.Fatal("the store has a log of its own although nobody asked for it")
	}
	room := func(string) (uint64, uint64, error) { return 1 << 30, 1 << 31, nil }
	cfg := storage.Config{LogBytes: storagetest.LogBytes, OwnLog: true, DiskFree: room}
	failOpens(w, 400, 6, cfg, func(n int64, _ error) {
		w.Mem = w.Mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.Rand.IntN(101), RNG: w.Rand})
		w.Config = func(c *storage.Config) { c.DiskFree = room }
		if o := serves(w, logs); o.err != nil || o.short || len(o.damages) > 0 {
			t.Fatalf("after operation %d failed: %v, short %v, %v", n, o.err, o.short, o.damages)
		}
		if !has() {
			t.Fatalf("after operation %d failed the store has no log of its own", n)
		}
	})
	w.Start()
	for _, l := range logs {
		w.Append(l, storagetest.Put("after", "the upgrade"))
	}
	w.Crash(0)
	for _, l := range logs {
		if err := l.Check(w.Store); err != nil {
			t.Error(err)
		}
	}
	// A store that began with a log of its own, in a cluster that does not allow it.
	w.Stop()
	w.Mem, w.Config = vfs.NewCrashableMem(), nil
	w.Start()
	l := w.Create(storagetest.R)
	w.Append(l, storagetest.Put("a", "1"))
	if err := w.Store.SetIdentity(rhumb.ClusterID{1}, 1); err != nil {
		t.Fatal(err)
	}
	if w.Crash(0); !has() {
		t.Error("a crash took the log")
	}
	w.Stop()
	if has() {
		t.Error("a clean stop kept the log, and the previous build cannot open the directory")
	}
	w.OwnLog = false
	w.Start()
	if err := l.Check(w.Store); err != nil {
		t.Error(err)
	}
}
