package storagetest_test

import (
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
