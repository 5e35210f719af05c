package storage

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// watchedLengths is a logLengths that looks, while it records a length, for how long the log has owed an answer.
type watchedLengths struct {
	fs    *logFS
	looks []time.Duration
}

func (w *watchedLengths) look() {
	// The clock has to move before an operation that began just now has lasted.
	for begin := time.Now(); time.Since(begin) == 0; {
	}
	w.looks = append(w.looks, w.fs.outstanding())
}

func (w *watchedLengths) began(uint64)         { w.look() }
func (w *watchedLengths) synced(uint64, int64) { w.look() }

// TestRecordOfSyncIsWatched guards that a disk that stalls just after a sync is noticed. The length of the log is then recorded on the same disk,
// and commits wait for that as they wait for the sync: a node that did not count it claimed to be alive for as long as the stall lasted.
func TestRecordOfSyncIsWatched(t *testing.T) {
	fs := newLogFS(vfs.NewMem(), func(time.Duration) {})
	w := &watchedLengths{fs: fs}
	fs.lengths = w
	f, err := fs.Create("000007.log", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	for _, sync := range []func() error{f.Sync, f.SyncData} {
		if _, err := f.Write([]byte("entry")); err != nil {
			t.Fatal(err)
		}
		if err := sync(); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.looks) != 3 {
		t.Fatalf("%d lengths were recorded, want one for the new file and one for each sync", len(w.looks))
	}
	for i, d := range w.looks {
		if d == 0 {
			t.Errorf("record %d was written while no operation counted as outstanding", i)
		}
	}
	if d := fs.outstanding(); d != 0 {
		t.Errorf("an operation counts as outstanding for %v after the last one ended", d)
	}
}
