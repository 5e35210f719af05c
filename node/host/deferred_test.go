package host

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestOnlyCopyLosesPower guards that the only copy of a range with deferred syncs serves again after a power loss, with
// everything that was synced and without the rest, and counts that it may have lost writes.
func TestOnlyCopyLosesPower(t *testing.T) {
	disk := storagetest.NewDisk()
	boot := rhumb.BootSeq(1)
	on := func(d *storagetest.Disk) *world {
		cfg := storage.Config{FS: d, CacheBytes: 8 << 20, MemTableBytes: 1 << 20, DiskFree: func(string) (uint64, uint64, error) { return 1, 2, nil }}
		return newWorldWith(t, 1, cfg, func(c *Config) {
			c.Self.Boot = boot
			c.Settings = func(rhumb.RangeID) (rhumb.ClassSettings, bool) {
				return rhumb.ClassSettings{MinInSync: 1, Durability: rhumb.DeferMax}, true
			}
		})
	}
	w := on(disk)
	h := w.hosts[1]
	w.put(1, "a", "1")
	if err := h.cfg.Engine.Store(testRange).SyncLog(); err != nil {
		t.Fatal(err)
	}
	_, durable, _ := disk.Log()
	w.put(1, "b", "1")
	if n := testutil.ToFloat64(h.m.deferredCommits); n < 1 || h.unsyncedAge() <= 0 {
		t.Fatalf("%v commits were deferred, the oldest for %v", n, h.unsyncedAge())
	}
	after, err := disk.Crash(storagetest.Remains{Keep: durable, Known: durable})
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	boot++
	w = on(after)
	h = w.hosts[1]
	w.elect(1, 1)
	w.put(1, "c", "1")
	for key, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if got, err := w.get(1, key); err != nil || (got != "") != want {
			t.Errorf("%s is %q after the power loss, %v; want it: %v", key, got, err, want)
		}
	}
	if n := testutil.ToFloat64(h.m.deferredUnsure); n != 1 {
		t.Errorf("%v elections were counted as unsure", n)
	}
	if l := h.DeferredLosses(); l.UnsureEpochs != 1 || l.Entries != 0 || l.Last.IsZero() {
		t.Errorf("the node reports %+v", l)
	}
}

// TestSyncsInBackground guards that writes of a table that defers syncs are synced soon after, although nobody waits for it.
func TestSyncsInBackground(t *testing.T) {
	w := newWorldWith(t, 1, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) {
		c.Settings = func(rhumb.RangeID) (rhumb.ClassSettings, bool) {
			return rhumb.ClassSettings{MinInSync: 1, Durability: rhumb.Durability(20 * time.Millisecond)}, true
		}
	})
	h := w.hosts[1]
	for range 5 {
		w.put(1, "a", "1")
		w.eventually(func() error {
			if age := h.unsyncedAge(); age != 0 {
				return rhumb.Ef("test", rhumb.Unavailable, "the oldest unsynced write has been there for %v", age)
			}
			return nil
		})
	}
	if n := testutil.ToFloat64(h.m.deferredCommits); n == 0 {
		t.Error("no commit was deferred")
	}
}

// TestOverdueWritesWait guards that no write is acknowledged before it is synced while an earlier one is overdue, and that a commit
// waits for its sync if a part of it is not of a table that defers syncs.
func TestOverdueWritesWait(t *testing.T) {
	w := newWorld(t, 1)
	h := w.hosts[1]
	w.put(1, "a", "1")
	store := h.cfg.Engine.Store(testRange)
	s := &slot{window: 100 * time.Millisecond}
	c := &commit{batch: store.NewBatch(), parts: []commitPart{{s: s, mustSync: true, deferred: true}}}
	defer c.batch.Drop()
	may := func() bool { return h.mayDefer(c) }
	done := make(chan struct{})
	h.post(askEvent{func(h *Host) {
		defer close(done)
		if !may() {
			t.Error("a deferred part waits for a sync")
		}
		h.unsynced = []*unsyncedLog{{store: store, since: h.passAt - 100*time.Millisecond, window: s.window}}
		if may() {
			t.Error("a write is deferred although an earlier one is overdue")
		}
		h.unsynced[0].since++
		if !may() {
			t.Error("a deferred part waits for a sync although the earlier one is not overdue yet")
		}
		for _, p := range []commitPart{{s: s, mustSync: true}, {s: s, mustSync: true, deferred: true, reshapes: true}} {
			c.parts = append(c.parts[:1], p)
			if may() {
				t.Errorf("a commit with %+v is deferred", p)
			}
		}
		// Nobody waits for a part that only trims.
		if c.parts = append(c.parts[:1], commitPart{s: s}); !may() {
			t.Error("a trim makes a deferred part wait")
		}
		h.unsynced = nil
	}})
	<-done
}
