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
		// More than two blocks of the log: damage in the first block is followed by chunks that prove that
		// the block was synced.
		for i := range 20 {
			w.Append(l, storagetest.Put(fmt.Sprint("key", i%10), strings.Repeat(fmt.Sprint(i), 2000)))
		}
	}
	return logs
}

// outcome is the result of opening a damaged store and reading everything.
type outcome struct {
	// err is the error that a reader got: an error of the store, or one that reports a wrong answer.
	err     error
	damages []storage.Damage
	short   bool
}

// named reports whether the error or the damage on record names a file.
func (o *outcome) named(file string) bool {
	if o.err != nil && strings.Contains(o.err.Error(), path.Base(file)) {
		return true
	}
	return slices.ContainsFunc(o.damages, func(d storage.Damage) bool {
		return strings.Contains(d.String(), path.Base(file))
	})
}

// serves opens a damaged store and reads everything. A range may lack its end, or be missing, only
// if the store is short. Otherwise it may lack something only if the store reports that a damaged
// table touches the range.
func serves(w *storagetest.World, logs []*storagetest.Log) (o outcome) {
	if o.err = w.Open(); o.err != nil {
		return o
	}
	defer func() {
		o.damages = w.Store.Damage()
		_ = w.Store.Close()
		w.Store = nil
	}()
	o.short = w.Store.Short()
	for _, l := range logs {
		if o.err = servesRange(w.Store, l, o.short); o.err != nil {
			return o
		}
	}
	return o
}

// servesRange returns why a range is not served with everything that was synced; short allows that its end is missing.
func servesRange(s *storage.Store, l *storagetest.Log, short bool) error {
	st, held := s.State(l.ID)
	switch {
	case s.RangeDamaged(l.ID):
		return nil // the host does not serve the range
	case short && !held:
		return nil
	case short && int(st.Last.Seq) <= len(l.Entries):
		cut := l.Clone()
		cut.Undo(st.Last.Seq)
		cut.Commit = min(cut.Commit, st.Last.Seq)
		if st.Commit < cut.Commit {
			cut.Commit = st.Commit // commit positions are lower bounds
		}
		return cut.Check(s)
	}
	return l.Check(s)
}

// kind returns the kind of a file: its name without numbers.
func kind(file string) string {
	base := path.Base(file)
	switch {
	case strings.HasSuffix(base, ".sst"), strings.HasSuffix(base, ".log"), strings.HasSuffix(base, ".seg"):
		return path.Ext(base)
	case strings.HasPrefix(base, "MANIFEST"), strings.HasPrefix(base, "OPTIONS"):
		return base[:strings.Index(base, "-")]
	}
	return base
}

// TestDamageAfterClose guards the promise of the seal. After a clean stop, a flipped bit or a cut
// in any file is found and named by the next start or by the read that meets it, and by Verify.
// Nothing wrong is served.
func TestDamageAfterClose(t *testing.T) { eachLog(t, damageAfterClose) }

// eachLog runs a test with both kinds of logs: one of the store's own, and that of the database.
func eachLog(t *testing.T, test func(t *testing.T, own bool)) {
	t.Run("own log", func(t *testing.T) { test(t, true) })
	t.Run("log of the database", func(t *testing.T) { test(t, false) })
}

func damageAfterClose(t *testing.T, own bool) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.OwnLog = own
	w.Start()
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
		// LOCK and OWNER say nothing about data, and SYNCED nothing that the seal does not. The
		// marker files of the database hold only their names.
		if k == "LOCK" || k == "OWNER" || k == "SYNCED" || size == 0 {
			continue
		}
		if k == ".log" && !strings.Contains(string(seal), path.Base(file)) {
			continue // its content is in tables
		}
		seen[k] = true
		for _, d := range damages(w, size) {
			t.Run(fmt.Sprintf("%s/%s", k, d.name), func(t *testing.T) {
				w.Mem = clone(good)
				w.TB = t
				w.Damage(file, d.change)
				rep, err := storage.Verify(storagetest.Dir, w.Mem)
				// After a clean stop, tables hold everything that is in the log.
				if k == ".seg" && strings.HasPrefix(d.name, "flip") {
					if o := serves(w, logs); err != nil || o.err != nil || o.short {
						t.Errorf("a flip in a log that is not needed: %v, short %v, %v", o.err, o.short, err)
					}
					return
				}
				if err != nil || !slices.ContainsFunc(rep.Faults, func(f storage.Fault) bool { return strings.Contains(f.String(), path.Base(file)) }) {
					t.Errorf("verify does not name %s: %v %v", file, rep.Faults, err)
				}
				if k == ".sst" && strings.HasPrefix(d.name, "flip in the first") && !slices.ContainsFunc(rep.Faults, func(f storage.Fault) bool { return f.Offset >= 0 }) {
					t.Errorf("verify reports no offset: %v", rep.Faults)
				}
				o := serves(w, logs)
				if k == ".sst" && strings.HasPrefix(d.name, "flip") && o.err == nil && !o.short && len(o.damages) == 0 {
					return // no read needed the block, and everything was served
				}
				checkFound(t, o, file)
			})
		}
	}
	log := ".seg"
	if !own {
		log = ".log"
	}
	for _, want := range []string{".sst", log, "MANIFEST", "OPTIONS", "STORE", "SEAL"} {
		if !seen[want] {
			t.Errorf("no file of kind %s was damaged; the store has %v", want, w.Files())
		}
	}
	w.TB, w.Mem = t, good
}

// checkFound requires that damage is on record, or that a read returned Corrupt (Incompatible if a
// version was damaged), and that the file is named.
func checkFound(t *testing.T, o outcome, file string) {
	t.Helper()
	if k := rhumb.KindOf(o.err); o.err != nil && k != rhumb.Corrupt && k != rhumb.Incompatible {
		t.Errorf("damage of %s: wrong answers: %v", file, o.err)
	}
	if !o.named(file) {
		t.Errorf("damage of %s is not named: %v %v", file, o.err, o.damages)
	}
}

type damage struct {
	name   string
	change func([]byte) []byte
}

// damages returns the ways in which a file of a size is damaged.
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

// TestDamageAfterCrash damages a store after a crash. Every byte of its newest log was synced, so a
// flipped bit in the log must be found even after a power loss, and a cut if only the process was
// killed. Every answer must be one that the store could have given before.
func TestDamageAfterCrash(t *testing.T) {
	eachLog(t, func(t *testing.T, own bool) {
		for how, kept := range map[string]int{"power loss": 0, "killed": 100} {
			t.Run(how, func(t *testing.T) {
				w := storagetest.NewWorld(t, storagetest.Seed(t, 2))
				w.OwnLog = own
				w.Start()
				logs := build(w)
				w.Cut(kept)
				damageAfterCrash(t, w, logs, kept == 100)
			})
		}
	})
}

// damageAfterCrash damages each file that a crash left, one at a time and in several ways, and checks what a store makes of it.
func damageAfterCrash(t *testing.T, w *storagetest.World, logs []*storagetest.Log, killed bool) {
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
				o := serves(w, logs)
				flip := strings.HasPrefix(d.name, "flip")
				if file == live && (flip || killed) && !(o.short && o.named(file)) {
					t.Errorf("damage of a log that was synced: short %v, %v %v", o.short, o.err, o.damages)
				}
				if file == live && !flip && !killed {
					return // a missing end of the last sync looks like an interrupted write
				}
				if k := rhumb.KindOf(o.err); o.err != nil && k != rhumb.Corrupt && k != rhumb.Incompatible {
					t.Errorf("damage of %s: wrong answers: %v", file, o.err)
				}
			})
		}
	}
	w.TB, w.Mem = t, good
}

// liveLog returns the newest log file. The content of older ones may be in tables.
func liveLog(files []string) (live string) {
	for _, f := range files {
		if kind(f) == ".log" {
			live = max(live, f)
		}
	}
	return live
}

// TestMissingFiles removes files one by one: the store must report each, and must not create itself
// anew in their place.
func TestMissingFiles(t *testing.T) { eachLog(t, missingFiles) }

func missingFiles(t *testing.T, own bool) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 3))
	w.OwnLog = own
	w.Start()
	logs := build(w)
	w.Stop()
	good := w.Mem
	live := liveLog(w.Files())
	for _, file := range w.Files() {
		if k := kind(file); k == "LOCK" || k == "OWNER" || k == "SEAL" || k == "SYNCED" || k == "RESERVE" || k == ".log" && (file != live || own) {
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

// TestRolledBack puts an older copy of the database under a newer STORE file, as a restored disk
// image has it. Verify must say so, and the store must be short until its host confirms a new life.
func TestRolledBack(t *testing.T) { eachLog(t, rolledBack) }

func rolledBack(t *testing.T, own bool) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 4))
	w.OwnLog = own
	w.Start()
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
	rep, err := storage.Verify(storagetest.Dir, w.Mem)
	if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].What, "rolled back") {
		t.Errorf("verify: %v, %v; want one fault of a database that was rolled back", err, rep.Faults)
	}
	boot := w.Start().Store.Identity().Boot
	if found := w.Store.Damage(); len(found) != 1 || found[0].Fault != rep.Faults[0] {
		t.Errorf("the start reports %v, and verify %v", found, rep.Faults)
	}
	for range 2 {
		if !w.Store.Short() || len(w.Store.Damage()) != 1 || !strings.Contains(w.Store.Damage()[0].What, "rolled back") {
			t.Fatalf("a database older than its STORE file: short %v, %v", w.Store.Short(), w.Store.Damage())
		}
		w.Stop()
		// The cause is on record, so neither a start nor Verify reports it again.
		if rep, err := storage.Verify(storagetest.Dir, w.Mem); err != nil || len(rep.Faults) > 0 {
			t.Errorf("verify of a store that is short: %v, %v", err, rep.Faults)
		}
		w.Start()
	}
	if err := w.Store.ClearShort(); err != nil {
		t.Fatal(err)
	}
	w.Restart()
	if w.Store.Short() || len(w.Store.Damage()) != 1 || w.Store.Identity().Boot != boot+3 {
		t.Errorf("after a new life: short %v, %v, boot %d", w.Store.Short(), w.Store.Damage(), w.Store.Identity().Boot)
	}
}

// TestForeignDatabase puts the STORE file of another store over a database: Verify must report it, and a start refuses it.
func TestForeignDatabase(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 4)).Start()
	w.Stop()
	good := w.Mem
	w.Mem = vfs.NewCrashableMem()
	w.Start().Stop()
	header := storagetest.Dir + "/STORE"
	other, err := storagetest.ReadFile(w.Mem, header)
	if err != nil {
		t.Fatal(err)
	}
	w.Mem = good
	w.Damage(header, func([]byte) []byte { return other })
	rep, err := storage.Verify(storagetest.Dir, w.Mem)
	if err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].What, "belongs to store") {
		t.Errorf("verify: %v, %v; want one fault of a database of another store", err, rep.Faults)
	}
	if err := w.Open(); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "belongs to store") {
		t.Errorf("open: %v, want corrupt", err)
	}
}

// TestBrokenInvariantsPanic guards that a batch panics on a violation of each invariant that it
// asserts.
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
		"append to a range that does not exist": func(b *storage.Batch) { b.Append(other, gap, storage.Commit{}) },
		"append with a gap":                     func(b *storage.Batch) { b.Append(l.ID, gap, storage.Commit{}) },
		"append with a wrong hash":              func(b *storage.Batch) { b.Append(l.ID, wrongPrev, storage.Commit{}) },
		"append back in time":                   func(b *storage.Batch) { b.Append(l.ID, old, storage.Commit{}) },
		"undo of a committed entry":             func(b *storage.Batch) { _ = b.Undo(l.ID, 0) },
		"commit beyond the end":                 func(b *storage.Batch) { b.SetCommit(l.ID, storage.Commit{Seq: 3}) },
		"a range twice":                         func(b *storage.Batch) { b.CreateRange(storage.RangeState{Range: l.ID}) },
		"a range in the reserved region":        func(b *storage.Batch) { b.CreateRange(storage.RangeState{}) },
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

// clone copies a file system all of whose data is synced.
func clone(fs *vfs.MemFS) *vfs.MemFS { return fs.CrashClone(vfs.CrashCloneCfg{}) }

// TestVerifyUnusedTable guards that a table which a flush or compaction had begun before a kill is no
// damage, and that one which the database names is.
func TestVerifyUnusedTable(t *testing.T) {
	w := storagetest.NewWorld(t, 7).Start()
	l := w.Create(storagetest.R)
	w.Append(l, storagetest.Put("key", "value"))
	if err := w.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Cut(100)
	data := path.Join(storagetest.Dir, "data")
	names, err := w.Mem.List(data)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasSuffix(name, ".sst") })
	if i < 0 {
		t.Fatal("there is no table")
	}
	begun, err := w.Mem.Create(path.Join(data, "999999.sst"), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = begun.Write([]byte("begun"))
	if err := errors.Join(err, begun.Close()); err != nil {
		t.Fatal(err)
	}
	if rep, err := storage.Verify(storagetest.Dir, w.Mem); err != nil || len(rep.Faults) != 0 {
		t.Errorf("with a table that nobody names: %v, %v", rep.Faults, err)
	}
	w.Damage(path.Join(data, names[i]), func(b []byte) []byte { b[0] ^= 1; return b })
	if rep, err := storage.Verify(storagetest.Dir, w.Mem); err != nil || len(rep.Faults) == 0 {
		t.Errorf("%s is damaged, and Verify reports nothing: %v", names[i], err)
	}
}
