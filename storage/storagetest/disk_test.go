package storagetest_test

import (
	"errors"
	"testing"

	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestDiskCrash guards that a crash keeps the bytes below Remains.Keep and removes those above, and
// that a cut within a record loses no record before it.
func TestDiskCrash(t *testing.T) { eachLog(t, testDiskCrash) }

func testDiskCrash(t *testing.T, own bool) {
	cfg := storage.Config{OwnLog: own, MemTableBytes: 1 << 20, CacheBytes: 1 << 20, DiskFree: func(string) (uint64, uint64, error) { return 1, 2, nil }}
	disk := storagetest.NewDisk()
	engine, err := disk.OpenEngine(cfg)
	if err != nil {
		t.Fatal(err)
	}
	write := func(key string) (length int64) {
		if err := engine.Local(storage.SpaceRaft).Set([]byte(key), []byte("value")); err != nil {
			t.Fatal(err)
		}
		_, length, synced := disk.Log()
		if !synced {
			t.Fatalf("writing %s synced nothing", key)
		}
		return length
	}
	first := write("first")
	second := write("second")
	if first >= second {
		t.Fatalf("the log has %d bytes, then %d", first, second)
	}
	// Records of a log of the store's own end with padding.
	within := second - 1
	if own {
		within = first + 60
	}
	for _, c := range []struct {
		keep         int64
		first, other bool
	}{{first, true, false}, {first + 1, true, false}, {within, true, false}, {second, true, true}} {
		after, err := disk.Crash(storagetest.Remains{Keep: c.keep})
		if err != nil {
			t.Fatal(err)
		}
		again, err := after.OpenEngine(cfg)
		if err != nil {
			t.Fatalf("with %d bytes: %v", c.keep, err)
		}
		for key, want := range map[string]bool{"first": c.first, "second": c.other} {
			if _, ok, err := again.Local(storage.SpaceRaft).Get([]byte(key)); ok != want || err != nil {
				t.Errorf("with %d of %d bytes %s is there: %v, %v; want %v", c.keep, second, key, ok, err, want)
			}
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := engine.Close(); err != nil {
		t.Error(err)
	}
}

// TestDiskTables makes tables durable that hold a record of the store's own log, and crashes with nothing of the log left but what tables may rely
// on. A store that synced the record before finds it, with its result. If the sync does not count, as that of a store which leaves it out, the
// next start finds its tables ahead of the log: so no such store passes for a whole one.
func TestDiskTables(t *testing.T) {
	cfg := storage.Config{OwnLog: true, MemTableBytes: 1 << 20, CacheBytes: 1 << 20, DiskFree: func(string) (uint64, uint64, error) { return 1, 2, nil }}
	for _, forgets := range []bool{false, true} {
		disk := storagetest.NewDisk()
		if forgets {
			disk.ForgetSyncs()
		}
		engine, err := disk.OpenEngine(cfg)
		if err != nil {
			t.Fatal(err)
		}
		store, l := engine.Store(storagetest.R), &storagetest.Log{ID: storagetest.R}
		b := store.NewBatch()
		b.CreateRange(storage.RangeState{Range: l.ID})
		b.Append(l.ID, l.Add(1, 1, storagetest.Put("a", "1")), l.CommitPos())
		if err := b.Apply(); err != nil {
			t.Fatal(err)
		}
		// Nobody has synced the batch. The flush has to.
		if err := store.Flush(); err != nil {
			t.Fatal(err)
		}
		after, err := disk.Crash(storagetest.Remains{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := after.OpenEngine(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if found := again.Damage(); len(found) > 0 != forgets {
			t.Errorf("syncs are forgotten: %v, and the store found %v", forgets, found)
		}
		if !forgets {
			if err := l.Check(again.Store(l.ID)); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(again.Close(), b.Sync(), engine.Close()); err != nil {
			t.Error(err)
		}
	}
}
