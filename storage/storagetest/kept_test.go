package storagetest_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/nodelog"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// storeFile returns the STORE file of a store with a log of its own: its format, whether its log may hold keys that the database lacks, and the id and
// the next boot of the log.
func storeFile(t *testing.T, fs vfs.FS) (format uint32, keeps bool, log rhumb.UUID, boot rhumb.BootSeq) {
	t.Helper()
	b, err := storagetest.ReadFile(fs, path.Join(storagetest.Dir, "STORE"))
	if err != nil || len(b) < 120 {
		t.Fatalf("STORE has %d bytes: %v", len(b), err)
	}
	format, boot = binary.BigEndian.Uint32(b[8:]), rhumb.BootSeq(binary.BigEndian.Uint64(b[96:])+1)
	if format < 5 {
		return format, format == 4, rhumb.UUID(b[40:56]), boot
	}
	return format, b[87]&4 != 0, rhumb.UUID(b[104:120]), boot
}

// makeFormer turns a stopped store into one of an earlier build: the format is 3, and a new log has the id of the store.
func makeFormer(t *testing.T, w *storagetest.World) *nodelog.Log {
	t.Helper()
	w.Damage(path.Join(storagetest.Dir, "STORE"), func(b []byte) []byte {
		binary.BigEndian.PutUint32(b[8:], 3)
		b[87] &^= 4
		b = slices.Delete(b[:len(b)-8], 104, 120)
		return binary.BigEndian.AppendUint64(b, xxh3.Hash(b))
	})
	dir := path.Join(storagetest.Dir, "log")
	_, _, id, boot := storeFile(t, w.Mem)
	// SYNCED holds a number of the log before. A store that was stopped can do without it.
	if err := errors.Join(w.Mem.RemoveAll(dir), w.Mem.Remove(path.Join(storagetest.Dir, "SYNCED"))); err != nil {
		t.Fatal(err)
	}
	log, err := nodelog.Open(nodelog.Config{Dir: dir, FS: w.Mem, ID: id, Boot: boot, Create: true, Segments: 6, SegmentBytes: storagetest.LogBytes / 6})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// inDatabase returns how many log records and results the database of a stopped store has.
func inDatabase(t *testing.T, fs *vfs.MemFS) (records, results int) {
	t.Helper()
	db, err := storagetest.OpenDatabase(clone(fs), storagetest.Dir)
	if err != nil {
		t.Fatal(err)
	}
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		switch keys.KindOf(it.Key()) {
		case keys.KindLog:
			records++
		case keys.KindDedup:
			results++
		}
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return records, results
}

// keptBytes returns the memory of the log records and results that the database of a store lacks.
func keptBytes(t *testing.T, s *storage.Store) float64 {
	t.Helper()
	return metricOf(t, s, "rhumb_storage_log_kept_bytes")
}

// numbered returns a request with a number.
func numbered(r entry.Request, seq uint64) entry.Request {
	r.ID = rhumb.RequestID{Client: rhumb.UUID{1}, Seq: seq}
	return r
}

// checkLogs compares a store with the models of its ranges, and makes sure that the store found no damage.
func checkLogs(t *testing.T, w *storagetest.World, logs ...*storagetest.Log) {
	t.Helper()
	for _, l := range logs {
		if err := l.Check(w.Store); err != nil {
			t.Error(err)
		}
	}
	if w.Store.Short() || len(w.Store.Damage()) > 0 {
		t.Errorf("the store found damage: %v", w.Store.Damage())
	}
}

// TestKeptInOwnLog flushes the versions of entries whose log records and results are in the log of the store alone, and crashes: a start
// must find them there, again and again. A stop writes them to the database, where a build that does not look for them in the log finds them.
func TestKeptInOwnLog(t *testing.T) {
	w := ownWorld(t, 31)
	l := w.Create(storagetest.R)
	for i := range 40 {
		w.Append(l, numbered(storagetest.Put(fmt.Sprint("key", i%10), strings.Repeat("v", 100)), uint64(i+1)))
		if i%15 == 14 {
			if err := w.Store.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		w.Crash(w.Rand.IntN(101))
		checkLogs(t, w, l)
		if n := metricOf(t, w.Store, "rhumb_storage_log_copied_total"); n > 0 || keptBytes(t, w.Store) == 0 {
			t.Errorf("%v keys were copied to the database, and %v bytes are in the log alone", n, keptBytes(t, w.Store))
		}
	}
	if f, keeps, _, _ := storeFile(t, w.Mem); f != 5 || !keeps {
		t.Errorf("a store that needs its log has format %d, flag %v, want 5 and true", f, keeps)
	}
	before := clone(w.Mem)
	w.Stop()
	if records, results := inDatabase(t, w.Mem); records != 40 || results != 40 {
		t.Errorf("after a stop the database has %d log records and %d results, want 40", records, results)
	}
	if f, keeps, _, _ := storeFile(t, w.Mem); f != 5 || keeps {
		t.Errorf("a store that was stopped has format %d, flag %v, want 5 and false", f, keeps)
	}
	if records, results := inDatabase(t, before); records+results > 0 {
		t.Errorf("before the stop the database had %d log records and %d results: the test shows little", records, results)
	}
	w.Start()
	checkLogs(t, w, l)
}

// TestKeptUndone undoes entries whose log records are in the log of the store or in the database, and appends others in their place: after a crash
// the newer ones count, and no version or result of the undone ones is left.
func TestKeptUndone(t *testing.T) {
	for copied := range 2 {
		w := ownWorld(t, 33)
		l := w.Create(storagetest.R)
		for i := range 20 {
			w.Append(l, numbered(storagetest.Put(fmt.Sprint("key", i), "first"), uint64(i+1)))
		}
		if copied == 1 {
			fillLog(w)
		}
		for above := rhumb.Seq(15); above > 5; above -= 4 {
			w.Batch(func(b *storage.Batch) {
				if err := b.Undo(l.ID, above); err != nil {
					t.Fatal(err)
				}
				l.Undo(above)
				for i := range 3 {
					seq := 100*uint64(above) + uint64(i)
					b.Append(l.ID, l.Add(rhumb.Epoch(20-above), 1, numbered(storagetest.Put(fmt.Sprint("other", i), fmt.Sprint("after ", above)), seq)), l.CommitPos())
				}
			})
			if err := w.Store.Flush(); err != nil {
				t.Fatal(err)
			}
			w.Crash(0)
			checkLogs(t, w, l)
			for i := int(above); i < 20; i++ {
				if _, found, err := w.Store.Dedup(l.ID, rhumb.RequestID{Client: rhumb.UUID{1}, Seq: uint64(i + 1)}); found || err != nil {
					t.Errorf("the result of request %d, which was undone, is found: %v", i+1, err)
				}
			}
		}
		if n := metricOf(t, w.Store, "rhumb_storage_log_copied_total"); n > 0 {
			t.Errorf("%v keys were copied after the last start", n)
		}
	}
}

// fillLog writes several times the size of the log, to another place than a range.
func fillLog(w *storagetest.World) {
	w.Helper()
	for i := range 12 {
		if err := w.Store.Local(7).Set([]byte("filler"), []byte(strings.Repeat(fmt.Sprint(i), storagetest.LogBytes/10))); err != nil {
			w.Fatal(err)
		}
	}
}

// TestKeptCopied lets the log need the room of log records and results that are still needed: they must be in the database before the log is
// written over, whenever the power fails. Log records that were collected in time never get there.
func TestKeptCopied(t *testing.T) {
	w := ownWorld(t, 35)
	kept, gone := w.Create(storagetest.R), w.Create(rhumb.RangeID{Region: 1, Slot: 77})
	seq := uint64(0)
	for range 5 {
		for range 10 {
			seq++
			w.Append(kept, numbered(storagetest.Put(fmt.Sprint("key", seq%7), strings.Repeat("v", 900)), seq))
			w.Append(gone, storagetest.Put(fmt.Sprint("key", seq%7), strings.Repeat("v", 900)))
		}
		gone.Commit = rhumb.Seq(len(gone.Entries))
		gone.Trim = gone.Commit
		w.Batch(func(b *storage.Batch) {
			b.SetCommit(gone.ID, gone.CommitPos())
			b.Trim(gone.ID, gone.Trim)
		})
		w.Collect(gone, storage.CollectLimits{Before: storage.Newest})
		fillLog(w)
		if metricOf(t, w.Store, "rhumb_storage_log_copied_total") == 0 {
			t.Fatal("the log was filled, and nothing was copied")
		}
		w.Crash(w.Rand.IntN(101))
		checkLogs(t, w, kept, gone)
	}
	w.Stop()
	if records, results := inDatabase(t, w.Mem); records != 51 || results != 50 {
		t.Errorf("the database has %d log records and %d results, want 51 and 50", records, results)
	}
	w.Start()
}

// TestTablesBehindLog guards that tables never hold the versions of an entry whose log record is not durable: a power loss would leave versions
// that no record lists.
func TestTablesBehindLog(t *testing.T) {
	w := ownWorld(t, 37)
	l := w.Create(storagetest.R)
	w.Append(l, storagetest.Put("a", "synced"))
	b := w.Store.NewBatch()
	b.Append(l.ID, l.Add(1, 1, numbered(storagetest.Put("b", "not synced"), 1)), l.CommitPos())
	if err := b.Apply(); err != nil {
		t.Fatal(err)
	}
	if err := w.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	after := w.Mem.CrashClone(vfs.CrashCloneCfg{})
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.Mem = after
	w.Start()
	checkLogs(t, w, l)
}

// TestKeptDamaged flips a bit of a log record that the log alone has, in a record of the log whose versions tables hold. The start must name
// the file and the place, and serve no range with versions whose entries are missing.
func TestKeptDamaged(t *testing.T) {
	w := ownWorld(t, 39)
	logs := build(w)
	if err := w.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Append(logs[0], storagetest.Put("last", "1"))
	w.Cut(0)
	used := liveSegments(t, w)
	flips := 0
	good := w.Mem
	for file, n := range used {
		for at := 600; at < n; at += n/7 + 1 {
			w.Mem = clone(good)
			w.Damage(file, func(b []byte) []byte {
				b[at] ^= 1
				return b
			})
			o := serves(w, logs)
			if o.err != nil || o.short && !o.named(file) {
				t.Fatalf("a flip of byte %d of %s: %v, short %v, %v", at, file, o.err, o.short, o.damages)
			}
			if o.short {
				flips++
			}
		}
	}
	if flips == 0 {
		t.Error("no flip was noticed")
	}
	w.Mem = good
}

// TestFormerLog opens a store of the build before, whose log holds batches that the database lacks, and whose tables hold records that the log
// has lost. Both must be in the store, and the numbers of the lost records must not count for later ones.
func TestFormerLog(t *testing.T) {
	for name, ahead := range map[string]uint64{"log ahead": 0, "tables ahead": 50} {
		t.Run(name, func(t *testing.T) {
			w := ownWorld(t, 41)
			l := w.Create(storagetest.R)
			w.Append(l, storagetest.Put("a", "1"))
			w.Stop()
			log := makeFormer(t, w)
			db, err := storagetest.OpenDatabase(w.Mem, storagetest.Dir)
			if err != nil {
				t.Fatal(err)
			}
			b := db.NewBatch()
			key := keys.AppendLocal(nil, 7, []byte("former"))
			if err := b.Set(key, []byte("v"), nil); err != nil {
				t.Fatal(err)
			}
			applied, number := keys.AppendLocal(nil, storage.SpaceStore, []byte("applied")), binary.BigEndian.AppendUint64(nil, uint64(log.Last())+ahead)
			if ahead == 0 {
				err = db.Set(applied, number, pebble.Sync)
				if err == nil {
					_, err = log.Append(b.Repr())
				}
			} else {
				err = b.Set(applied, number, nil)
				if err == nil {
					err = db.Apply(b, pebble.Sync)
				}
			}
			for _, f := range []func() error{log.Close, b.Close, db.Flush, db.Close} {
				if err == nil {
					err = f()
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			// As after an upgrade from a build without a seal: the files are not those that the store sealed.
			if err := w.Mem.Remove(path.Join(storagetest.Dir, "SEAL")); err != nil {
				t.Fatal(err)
			}
			w.Start()
			for range 2 {
				w.Append(l, storagetest.Put("b", "2"))
				w.Crash(0)
				checkLogs(t, w, l)
				if v, ok, err := w.Store.Local(7).Get([]byte("former")); err != nil || !ok || string(v) != "v" {
					t.Errorf("the batch of the build before is %q, %v, %v", v, ok, err)
				}
			}
			if f, _, _, _ := storeFile(t, w.Mem); f != 4 {
				t.Errorf("the store has format %d, want 4", f)
			}
		})
	}
}

// TestVerifyLogAlone verifies a store whose newest entries are in the log alone, also their versions: they must be counted, and a record that sets a
// version which no entry lists must be found, although its form is right.
func TestVerifyLogAlone(t *testing.T) {
	w := ownWorld(t, 43)
	l := w.Create(storagetest.R)
	w.Append(l, storagetest.Put("a", "1"))
	if err := w.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Append(l, numbered(storagetest.Put("b", "2"), 1), storagetest.Put("c", "3"))
	w.Cut(0)
	rep, err := storage.Verify(storagetest.Dir, w.Mem)
	if err != nil || len(rep.Faults) > 0 || rep.Versions != 3 || rep.Ranges != 1 {
		t.Errorf("verify: %v, %+v; want 3 versions in 1 range", err, rep)
	}
	_, _, id, boot := storeFile(t, w.Mem)
	damaged := clone(w.Mem)
	log, err := nodelog.Open(nodelog.Config{Dir: path.Join(storagetest.Dir, "log"), FS: damaged, ID: id, Boot: boot})
	if err != nil {
		t.Fatal(err)
	}
	b := new(pebble.Batch)
	key := keys.AppendData(nil, rhumb.Key{Home: l.ID, Table: 1, Name: []byte("stray")}, rhumb.Version{HLC: 1, Node: 1})
	if err := b.Set(key, []byte("value"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(b.Repr()); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if rep, err := storage.Verify(storagetest.Dir, damaged); err != nil || len(rep.Faults) != 1 || !strings.Contains(rep.Faults[0].What, "bytes of versions") {
		t.Errorf("verify of a log that sets a version which no entry lists: %v, %v", err, rep.Faults)
	}
	w.Start()
	checkLogs(t, w, l)
}

// TestVerifyLogBehindTables loses the end of a log that tables hold already, with the note of what
// was synced, as after a power loss. Verify reports it: a start sets the whole database aside,
// because versions lack their entries.
func TestVerifyLogBehindTables(t *testing.T) {
	w := ownWorld(t, 43)
	l := w.Create(storagetest.R)
	w.Append(l, storagetest.Put("a", "1"))
	w.Append(l, storagetest.Put("b", "2"))
	if err := w.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Cut(0)
	if rep, err := storage.Verify(storagetest.Dir, w.Mem); err != nil || len(rep.Faults) > 0 {
		t.Fatalf("before: %v, %v", err, rep.Faults)
	}
	end, err := nodelog.Newest(nodelog.Config{Dir: path.Join(storagetest.Dir, "log"), FS: w.Mem})
	if err != nil {
		t.Fatal(err)
	}
	b, err := storagetest.ReadFile(w.Mem, end.Path)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[end.To-512 : end.To])
	f, err := w.Mem.Create(end.Path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(b)
	}
	if err := errors.Join(err, f.Sync(), f.Close(), w.Mem.Remove(path.Join(storagetest.Dir, "SYNCED"))); err != nil {
		t.Fatal(err)
	}
	rep, err := storage.Verify(storagetest.Dir, w.Mem)
	if err != nil || !slices.ContainsFunc(rep.Faults, func(f storage.Fault) bool { return strings.Contains(f.File, "/log") }) {
		t.Errorf("verify: %v, %v; want a fault of the log", err, rep.Faults)
	}
}

// TestLostSynced loses the SYNCED file of a store whose log keeps keys, and the end of that log: writes that were reported as synced are gone, and
// nothing else says that there were any. Verify must report it, and the store must be short. After a clean stop the file is not needed.
func TestLostSynced(t *testing.T) {
	synced := path.Join(storagetest.Dir, "SYNCED")
	for _, c := range []struct {
		name, want string
		stopped    bool
		lose       func(w *storagetest.World) error
	}{
		{"missing", "is missing", false, func(w *storagetest.World) error { return w.Mem.Remove(synced) }},
		{"empty", "no intact slot", false, func(w *storagetest.World) error {
			w.Damage(synced, func([]byte) []byte { return nil })
			return nil
		}},
		{"zeros", "no intact slot", false, func(w *storagetest.World) error {
			w.Damage(synced, func(b []byte) []byte { return make([]byte, len(b)) })
			return nil
		}},
		{"missing after a clean stop", "", true, func(w *storagetest.World) error { return w.Mem.Remove(synced) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := ownWorld(t, 45)
			l := w.Create(storagetest.R)
			w.Append(l, storagetest.Put("a", "1"))
			w.Append(l, storagetest.Put("b", "2"))
			if c.stopped {
				w.Stop()
			} else {
				w.Cut(0)
				end, err := nodelog.Newest(nodelog.Config{Dir: path.Join(storagetest.Dir, "log"), FS: w.Mem})
				if err != nil {
					t.Fatal(err)
				}
				w.Damage(end.Path, func(b []byte) []byte {
					clear(b[end.To-512 : end.To])
					return b
				})
			}
			if err := c.lose(w); err != nil {
				t.Fatal(err)
			}
			rep, err := storage.Verify(storagetest.Dir, w.Mem)
			found := slices.ContainsFunc(rep.Faults, func(f storage.Fault) bool { return f.File == synced && strings.Contains(f.What, c.want) })
			if err != nil || found == c.stopped {
				t.Errorf("verify: %v, %v; want a fault with %q", err, rep.Faults, c.want)
			}
			for range 2 {
				o := serves(w, []*storagetest.Log{l})
				if o.err != nil || o.short == c.stopped || o.named(synced) == c.stopped || len(o.damages) > 1 {
					t.Errorf("%v, short %v, %v", o.err, o.short, o.damages)
				}
			}
		})
	}
}

// TestOwnLogCreated ends the first start of a store with a log of its own at each of its operations, and loses power: the next start finds no damage,
// and nothing that is missing.
func TestOwnLogCreated(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 47))
	empty := w.Mem
	failOpens(w, 400, 3, storage.Config{LogBytes: storagetest.LogBytes, OwnLog: true, DiskFree: plenty}, func(n int64, _ error) {
		w.Mem = w.Mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.Rand.IntN(101), RNG: w.Rand})
		if rep, err := storage.Verify(storagetest.Dir, clone(w.Mem)); err == nil && slices.ContainsFunc(rep.Faults, func(f storage.Fault) bool { return strings.HasSuffix(f.File, "SYNCED") }) {
			t.Fatalf("after operation %d failed, verify reports %v", n, rep.Faults)
		}
		w.Start()
		l := w.Create(storagetest.R)
		w.Append(l, storagetest.Put("a", "1"))
		w.Crash(0)
		checkLogs(t, w, l)
		w.Stop()
	})
	w.Mem = empty
}
