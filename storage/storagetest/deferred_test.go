package storagetest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// deferring is a store on a disk whose power can fail, with one range.
type deferring struct {
	t      *testing.T
	disk   *storagetest.Disk
	engine *storage.Engine
	log    *storagetest.Log
	// own is set if the store has a log of its own.
	own bool
}

func (d *deferring) open(disk *storagetest.Disk) {
	d.t.Helper()
	engine, err := disk.OpenEngine(storage.Config{
		OwnLog: d.own, MemTableBytes: 1 << 20, CacheBytes: 1 << 20, DiskFree: func(string) (uint64, uint64, error) { return 1, 2, nil },
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.disk, d.engine = disk, engine
}

// append writes an entry of about n bytes, and reports whether that synced the log.
func (d *deferring) append(n int, deferred bool) (synced bool) {
	d.t.Helper()
	d.disk.Log()
	b := d.engine.Store(d.log.ID).NewBatch()
	if len(d.log.Entries) == 0 {
		b.CreateRange(storage.RangeState{Range: d.log.ID})
	}
	b.Append(d.log.ID, d.log.Add(1, 1, storagetest.Put(fmt.Sprint("key", len(d.log.Entries)%50), strings.Repeat("v", n))), storage.Commit{})
	if deferred {
		b.Defer()
	}
	if err := b.Apply(); err != nil {
		d.t.Fatal(err)
	}
	if err := b.Sync(); err != nil {
		d.t.Fatal(err)
	}
	_, _, synced = d.disk.Log()
	return synced
}

// after returns the end of the log after a crash that keeps so many bytes of the newest file.
func (d *deferring) after(keep int64) (end rhumb.Seq) {
	d.t.Helper()
	disk, err := d.disk.Crash(storagetest.Remains{Keep: keep, Known: keep})
	if err != nil {
		d.t.Fatal(err)
	}
	again := &deferring{t: d.t}
	again.open(disk)
	defer func() {
		if err := again.engine.Close(); err != nil {
			d.t.Error(err)
		}
	}()
	s := again.engine.Store(d.log.ID)
	if s.Short() {
		d.t.Errorf("a store that kept %d bytes counts as short: it lost nothing that it had synced", keep)
	}
	st, _ := s.State(d.log.ID)
	// What is left is a beginning of what was written.
	if at, want := st.Last.Seq, d.log.Entries; at > rhumb.Seq(len(want)) || at > 0 && want[at-1].Position() != st.Last {
		d.t.Errorf("the log ends at %s, which was never written", st.Last)
	}
	return st.Last.Seq
}

// TestDeferred guards what a deferred batch promises: it is with the operating system when Sync returns, so the end of the process
// loses nothing; only a power loss does, and only behind the last sync. The store does not take that for damage.
func TestDeferred(t *testing.T) { eachLog(t, testDeferred) }

func testDeferred(t *testing.T, own bool) {
	d := &deferring{t: t, log: &storagetest.Log{ID: storagetest.R}, own: own}
	d.open(storagetest.NewDisk())
	defer func() { _ = d.engine.Close() }()
	if !d.append(10, false) {
		t.Fatal("a batch that is not deferred was not synced")
	}
	_, durable, _ := d.disk.Log()
	for range 5 {
		if d.append(10, true) {
			t.Fatal("a deferred batch was synced")
		}
	}
	_, written, _ := d.disk.Log()
	if end := d.after(durable); end != 1 {
		t.Errorf("after a power loss the log ends at %d; want 1", end)
	}
	if end := d.after(written); end != 6 {
		t.Errorf("after the end of the process the log ends at %d; want 6", end)
	}
	torn := written - 3
	if own {
		torn = written - 400 // the record ends with zeros up to the end of its sector
	}
	if end := d.after(torn); end != 5 {
		t.Errorf("after a power loss in the last write the log ends at %d; want 5", end)
	}
	if err := d.engine.Store(d.log.ID).SyncLog(); err != nil {
		t.Fatal(err)
	}
	if _, _, synced := d.disk.Log(); !synced || d.after(written) != 6 {
		t.Error("SyncLog did not make the deferred batches durable")
	}
	d.append(10, true)
	// A sync of anything covers what was deferred before it.
	if err := d.engine.Local(storage.SpaceRaft).Set([]byte("key"), []byte("value")); err != nil {
		t.Fatal(err)
	}
	if _, length, synced := d.disk.Log(); !synced || d.after(length) != 7 {
		t.Error("a later sync did not make the deferred batches durable")
	}
}

// TestDeferredFiles guards that the end of a log file is synced before the next one is written, also if nobody waits for a sync:
// a power loss must take the end of what was written and not a piece of the middle.
func TestDeferredFiles(t *testing.T) {
	d := &deferring{t: t, log: &storagetest.Log{ID: storagetest.R}}
	d.open(storagetest.NewDisk())
	defer func() { _ = d.engine.Close() }()
	first, _, _ := d.disk.Log()
	for files, last := 0, first; files < 3; {
		synced := d.append(64<<10, true)
		name, _, _ := d.disk.Log()
		if name == last {
			continue
		}
		files, last = files+1, name
		if !synced {
			t.Fatalf("%s was begun, and the file before it was not synced", name)
		}
		if end := d.after(0); end+1 < rhumb.Seq(len(d.log.Entries)) {
			t.Fatalf("%d entries were written, the last of them to %s, and a power loss leaves %d", len(d.log.Entries), name, end)
		}
	}
}
