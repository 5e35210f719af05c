package storagetest_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestReserve fills a disk and frees space again. The store must reject new work first and appends
// later, release its reserve for the vote of the metadata group, and create a new one when there is
// space.
func TestReserve(t *testing.T) {
	const total = 1 << 30
	var free atomic.Uint64
	free.Store(total / 2)
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Config = func(c *storage.Config) {
		c.DiskFreeEvery = -1
		c.DiskFree = func(string) (uint64, uint64, error) { return free.Load(), total, nil }
	}
	l := w.Start().Create(storagetest.R)
	w.Append(l, storagetest.Put("a", "1"))
	reserve := func() bool {
		_, err := w.Mem.Stat(storagetest.Dir + "/RESERVE")
		return err == nil
	}
	reserved := func() {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			u, err := w.Store.Usage()
			if err == nil && u.State == storage.DiskHealthy && u.Reserve > 0 && reserve() {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("usage is %+v, reserve %v: %v", u, reserve(), err)
			}
		}
	}
	reserved()
	free.Store(total / 22) // between the limits
	if err := w.Store.Writable(); rhumb.KindOf(err) != rhumb.DiskFull || w.Store.DiskState() != storage.DiskRefusing || !reserve() {
		t.Errorf("nearly full: %v, %s, reserve %v", err, w.Store.DiskState(), reserve())
	}
	w.Append(l, storagetest.Put("a", "accepted before"))
	free.Store(total / 50)
	w.Append(l, storagetest.Put("a", "accepted before the disk was full"))
	// More than what is left for such work, an eighth of the reserve.
	b := w.Store.NewBatch()
	b.Append(l.ID, l.Clone().Add(1, 1, storagetest.Put("a", strings.Repeat("2", total/20/8))), storage.Commit{})
	if err := b.Apply(); rhumb.KindOf(err) != rhumb.DiskFull {
		t.Errorf("an append to a full disk: %v", err)
	}
	b.Drop()
	if w.Store.DiskState() != storage.DiskFull || reserve() {
		t.Errorf("full: %s, reserve %v", w.Store.DiskState(), reserve())
	}
	if err := w.Store.Local(storage.SpaceRaft).Set([]byte("h"), []byte("vote")); err != nil {
		t.Errorf("a vote on a full disk: %v", err)
	}
	if err := l.Check(w.Store); err != nil {
		t.Errorf("reads on a full disk: %v", err)
	}
	w.Restart() // a store must start on a full disk
	if w.Store.DiskState() != storage.DiskFull {
		t.Errorf("full after a restart: %s", w.Store.DiskState())
	}
	free.Store(total / 2)
	if err := w.Store.Writable(); err != nil {
		t.Errorf("with free space again: %v", err)
	}
	reserved()
}

// TestReserveHoldsUpNobody makes the allocation of the reserve slow. Callers that ask for the state
// of the disk must not wait for it.
func TestReserveHoldsUpNobody(t *testing.T) {
	asked, allocate := make(chan struct{}), make(chan struct{})
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Config = func(c *storage.Config) {
		c.DiskFreeEvery = -1
		c.DiskFree = func(string) (uint64, uint64, error) { return 1 << 29, 1 << 30, nil }
		c.FS = errorfs.Wrap(c.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, "/RESERVE") {
				close(asked)
				<-allocate
			}
			return nil
		}))
	}
	w.Start()
	for deadline := time.After(10 * time.Second); ; {
		if err := w.Store.Writable(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-asked:
		case <-deadline:
			t.Fatal("no reserve is created")
		default:
			continue
		}
		break
	}
	if u, err := w.Store.Usage(); err != nil || u.Reserve != 0 {
		t.Errorf("while the reserve is created, usage is %+v: %v", u, err)
	}
	close(allocate)
}
