package storagetest_test

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// build fills a store so that it has every kind of file, with data in tables and in the log.
func build(w *storagetest.World) []*storagetest.Log {
	var logs []*storagetest.Log
	for slot := range rhumb.Slot(2) {
		l := w.Create(rhumb.RangeID{Region: 1, Slot: slot})
		logs = append(logs, l)
		for i := range 40 {
			w.Append(l, storagetest.Put(fmt.Sprint("key", i%10), strings.Repeat(fmt.Sprint(i), 50)))
		}
	}
	if err := w.Store.Flush(); err != nil {
		w.Fatal(err)
	}
	for _, l := range logs {
		l.Commit = 35
		for i := range 20 { // two blocks of the log and more: damage in the first is followed by what proves that it was synced
			w.Append(l, storagetest.Put(fmt.Sprint("key", i%10), strings.Repeat(fmt.Sprint(i), 2000)))
		}
	}
	return logs
}

// serves opens a damaged store and asks it for everything. It gives the error that the damage leads to, and an error
// of another kind when something wrong was served.
func serves(w *storagetest.World, logs []*storagetest.Log) error {
	if err := w.Open(); err != nil {
		return err
	}
	defer func() {
		_ = w.Store.Close()
		w.Store = nil
	}()
	for _, l := range logs {
		if err := l.Check(w.Store); err != nil {
			return err
		}
	}
	return nil
}

// kind names the kind of a file: its name without numbers.
func kind(file string) string {
	base := path.Base(file)
	switch {
	case strings.HasSuffix(base, ".sst"), strings.HasSuffix(base, ".log"):
		return path.Ext(base)
	case strings.HasPrefix(base, "MANIFEST"), strings.HasPrefix(base, "OPTIONS"):
		return base[:strings.Index(base, "-")]
	}
	return base
}

// TestDamageAfterClose is the promise of the seal: after a clean stop, a flipped bit or a cut in any file is found, by
// the next start or by the read that meets it, and named; verification finds it, too. Nothing wrong is served.
func TestDamageAfterClose(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	logs := build(w)
	w.Stop()
	good := w.Mem
	seal, err := storagetest.ReadFile(good, storagetest.Dir+"/SEAL")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, file := range w.Files() {
		k := kind(file)
		size := fileSize(t, good, file)
		// LOCK and OWNER say nothing about data; the marker files of the database hold nothing but their names.
		if k == "LOCK" || k == "OWNER" || size == 0 {
			continue
		}
		if k == ".log" && !strings.Contains(string(seal), path.Base(file)) {
			continue // what it held is in tables
		}
		seen[k] = true
		for _, d := range damages(w, size) {
			t.Run(fmt.Sprintf("%s/%s", k, d.name), func(t *testing.T) {
				w.Mem = clone(good)
				w.TB = t
				w.Damage(file, d.change)
				rep, err := storage.Verify(storagetest.Dir, w.Mem)
				if err != nil || !slices.ContainsFunc(rep.Faults, func(f storage.Fault) bool { return strings.Contains(f.String(), path.Base(file)) }) {
					t.Errorf("verification does not name %s: %v %v", file, rep.Faults, err)
				}
				if k == ".sst" && strings.HasPrefix(d.name, "flip in the first") && !slices.ContainsFunc(rep.Faults, func(f storage.Fault) bool { return f.Offset >= 0 }) {
					t.Errorf("verification gives no offset: %v", rep.Faults)
				}
				err = serves(w, logs)
				if err == nil && k == ".sst" && strings.HasPrefix(d.name, "flip in the last") {
					return // a block that only points to data or saves reads, gone with a compaction before a read needed it
				}
				checkFound(t, err, file)
			})
		}
	}
	for _, want := range []string{".sst", ".log", "MANIFEST", "OPTIONS", "STORE", "SEAL"} {
		if !seen[want] {
			t.Errorf("no file of kind %s was damaged; the store has %v", want, w.Files())
		}
	}
	w.TB, w.Mem = t, good
}

// checkFound demands that damage led to Corrupt, or to Incompatible where a version was damaged, and names the file.
func checkFound(t *testing.T, err error, file string) {
	t.Helper()
	switch rhumb.KindOf(err) {
	case rhumb.Corrupt, rhumb.Incompatible:
	default:
		t.Errorf("damage of %s leads to %v, want corrupt", file, err)
		return
	}
	if !strings.Contains(err.Error(), path.Base(file)) {
		t.Errorf("the error does not name %s: %v", path.Base(file), err)
	}
}

type damage struct {
	name   string
	change func([]byte) []byte
}

// damages are the ways in which a file of a size is damaged.
func damages(w *storagetest.World, size int) []damage {
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte {
			b[at] ^= 1 << w.Rand.IntN(8)
			return b
		}
	}
	out := []damage{
		{"cut to half", func(b []byte) []byte { return b[:len(b)/2] }},
		{"cut by one byte", func(b []byte) []byte { return b[:len(b)-1] }},
		{"emptied", func([]byte) []byte { return nil }},
	}
	for i := range 4 {
		at := i*size/4 + w.Rand.IntN(max(1, size/4))
		out = append(out, damage{fmt.Sprintf("flip in the %s quarter at %d", []string{"first", "second", "third", "last"}[i], at), flip(at)})
	}
	return out
}

// TestDamageAfterCrash flips bits in a store that a crash interrupted. What was not the end of a log or manifest is
// found; in no case is anything served that never was a state of the store.
func TestDamageAfterCrash(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 2)).Start()
	logs := build(w)
	w.Cut(0)
	good := w.Mem
	files := w.Files()
	live := liveLog(files)
	for _, file := range files {
		k := kind(file)
		size := fileSize(t, good, file)
		if k == "LOCK" || k == "OWNER" || k == "OPTIONS" || size == 0 {
			continue
		}
		for _, d := range damages(w, size) {
			t.Run(fmt.Sprintf("%s/%s", k, d.name), func(t *testing.T) {
				w.Mem = clone(good)
				w.TB = t
				w.Damage(file, d.change)
				err := serves(w, logs)
				if file == live && strings.Contains(d.name, "first quarter") && rhumb.KindOf(err) != rhumb.Corrupt {
					t.Errorf("damage in the middle of a log leads to %v, want corrupt", err)
				}
				if err == nil || rhumb.KindOf(err) == rhumb.Corrupt || rhumb.KindOf(err) == rhumb.Incompatible {
					return
				}
				// The end of a log is lost: that is what a crash before the last sync leaves, and no wrong answer.
				if k != ".log" || prefixOf(w, logs) != nil {
					t.Errorf("damage of %s: wrong answers: %v", file, err)
				}
			})
		}
	}
	w.TB, w.Mem = t, good
}

// liveLog gives the newest log file; older ones may be flushed and of no more use.
func liveLog(files []string) (live string) {
	for _, f := range files {
		if kind(f) == ".log" {
			live = max(live, f)
		}
	}
	return live
}

// prefixOf checks that a store is what it was some batches ago.
func prefixOf(w *storagetest.World, logs []*storagetest.Log) error {
	if err := w.Open(); err != nil {
		return err
	}
	defer func() {
		_ = w.Store.Close()
		w.Store = nil
	}()
	for _, l := range logs {
		st, ok := w.Store.State(l.ID)
		if !ok || int(st.Last.Seq) > len(l.Entries) {
			return errors.New("the range is gone, or longer than it was")
		}
		short := l.Clone()
		short.Undo(st.Last.Seq)
		short.Commit = min(short.Commit, st.Last.Seq)
		if err := short.Check(w.Store); err != nil {
			return err
		}
	}
	return nil
}

// TestMissingFiles removes files one by one: the store does not open, and does not make itself anew.
func TestMissingFiles(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 3)).Start()
	logs := build(w)
	w.Stop()
	good := w.Mem
	live := liveLog(w.Files())
	for _, file := range w.Files() {
		if k := kind(file); k == "LOCK" || k == "OWNER" || k == "SEAL" || k == ".log" && file != live {
			continue
		}
		t.Run(path.Base(file), func(t *testing.T) {
			w.TB, w.Mem = t, clone(good)
			w.Damage(file, func(b []byte) []byte { return b })
			if err := w.Mem.Remove(file); err != nil {
				t.Fatal(err)
			}
			checkFound(t, serves(w, logs), file)
		})
	}
	w.TB, w.Mem = t, good
}

// TestRolledBack puts an older copy of the database under a newer STORE file, as a restored disk image would: the
// store does not open, so its node cannot deny what it acknowledged.
func TestRolledBack(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 4)).Start()
	build(w)
	w.Cut(0)
	old := clone(w.Mem)
	w.Start()
	w.Cut(0)
	header := storagetest.Dir + "/STORE"
	newer, err := storagetest.ReadFile(w.Mem, header)
	if err != nil {
		t.Fatal(err)
	}
	w.Mem = old
	w.Damage(header, func([]byte) []byte { return newer })
	if err := w.Open(); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("a database older than its STORE file gives %v, want corrupt", err)
	}
}

// TestBrokenInvariantsPanic breaks each invariant of the log that a batch asserts.
func TestBrokenInvariantsPanic(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 5)).Start()
	l := w.Create(storagetest.R)
	w.Append(l, storagetest.Put("a", "1"), storagetest.Put("a", "2"))
	l.Commit = 1
	w.Batch(func(b *storage.Batch) { b.SetCommit(l.ID, l.CommitPos()) })
	other := rhumb.RangeID{Region: 9, Slot: 9}
	gap := &entry.Entry{Epoch: 1, Node: 1, Seq: 5, Start: 99}
	gap.Seal(nil)
	wrongPrev := &entry.Entry{Epoch: 1, Node: 1, Seq: 3, Start: 99}
	wrongPrev.Seal(nil)
	stale := l.Clone()
	old := stale.Add(1, 1)
	old.Start = 1
	old.Seal(nil)
	for name, do := range map[string]func(b *storage.Batch){
		"append to a range that is not there": func(b *storage.Batch) { b.Append(other, gap, storage.Commit{}) },
		"append with a gap":                   func(b *storage.Batch) { b.Append(l.ID, gap, storage.Commit{}) },
		"append that does not chain":          func(b *storage.Batch) { b.Append(l.ID, wrongPrev, storage.Commit{}) },
		"append back in time":                 func(b *storage.Batch) { b.Append(l.ID, old, storage.Commit{}) },
		"undo of a committed entry":           func(b *storage.Batch) { _ = b.Undo(l.ID, 0) },
		"commit beyond the end":               func(b *storage.Batch) { b.SetCommit(l.ID, storage.Commit{Seq: 3}) },
		"a range twice":                       func(b *storage.Batch) { b.CreateRange(storage.RangeState{Range: l.ID}) },
		"a range in the reserved region":      func(b *storage.Batch) { b.CreateRange(storage.RangeState{}) },
		"a write after the drop": func(b *storage.Batch) {
			b.DropRange(l.ID)
			b.SetPromised(l.ID, 9)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := w.Store.NewBatch()
			defer b.Drop()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			do(b)
		})
	}
	if err := l.Check(w.Store); err != nil {
		t.Error(err)
	}
}

func fileSize(t *testing.T, fs *vfs.MemFS, file string) int {
	info, err := fs.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// clone copies a file system, all of whose data is synced.
func clone(fs *vfs.MemFS) *vfs.MemFS { return fs.CrashClone(vfs.CrashCloneCfg{}) }
