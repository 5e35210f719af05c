package storagetest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

const (
	splitLast = rhumb.Slot(12)
	splitAt   = rhumb.Slot(9)
)

var (
	splitChild  = rhumb.RangeID{Region: storagetest.R.Region, Slot: splitAt}
	splitClient = rhumb.UUID{1}
	idleClient  = rhumb.UUID{2}
)

// wideLog writes a range of several slots. Its log ends with a split, two later entries, and a client with more results than
// a new range keeps.
func wideLog(w *storagetest.World) (l *storagetest.Log, split *entry.Entry) {
	l = &storagetest.Log{ID: storagetest.R}
	add := func(reqs ...entry.Request) *entry.Entry {
		e := l.Add(1, 1, reqs...)
		w.Batch(func(b *storage.Batch) { b.Append(l.ID, e, l.CommitPos()) })
		return e
	}
	w.Batch(func(b *storage.Batch) { b.CreateRange(storage.RangeState{Range: l.ID, LastSlot: splitLast}) })
	add()
	put := func(client rhumb.UUID, n int) entry.Request {
		// Each key is written several times, in all slots of the range.
		slot := l.ID.Slot + rhumb.Slot(n)%(splitLast-l.ID.Slot+1)
		wr := storagetest.Write(fmt.Sprintf("key%d", n%23), fmt.Sprintf("value %d", n))
		if slot != l.ID.Slot {
			wr.Slot = slot
		}
		return entry.Request{ID: rhumb.RequestID{Client: client, Seq: uint64(n)}, Writes: []entry.Write{wr}}
	}
	add(put(idleClient, 7))
	for n := 1; n <= rhumb.DedupWindow+30; n++ {
		add(put(splitClient, n))
	}
	split = add(entry.Request{Noop: true, Split: splitAt})
	// Entries behind the split are of the old range only, and may still be undone.
	after := put(splitClient, rhumb.DedupWindow+31)
	after.Writes[0].Slot = 0
	add(after)
	l.Commit = split.Seq
	return l, split
}

// splitRange divides the range as a host does.
func splitRange(w *storagetest.World, l *storagetest.Log, split *entry.Entry) {
	w.Batch(func(b *storage.Batch) {
		if _, err := b.Split(l.ID, storage.Split{At: splitAt, Seq: split.Seq, Promised: 1}); err != nil {
			w.Fatal(err)
		}
	})
}

// checkAllNames checks the names of all ranges, which are in memory afterwards.
func checkAllNames(w *storagetest.World) {
	w.Helper()
	states, err := w.Store.Ranges()
	if err != nil {
		w.Fatal(err)
	}
	for _, st := range states {
		if err := storagetest.CheckNames(w.Store, st.Range, 1, st.CommitHLC); err != nil {
			w.Fatalf("range %s: %v", st.Range, err)
		}
	}
}

// checkSplit checks both parts, and reports false if the range is not divided.
func checkSplit(w *storagetest.World, l *storagetest.Log, split *entry.Entry) (divided bool) {
	w.Helper()
	s := w.Store
	old, ok := s.State(l.ID)
	if !ok {
		w.Fatal("the old range is gone")
	}
	st, born := s.State(splitChild)
	if narrow := old.LastSlot == splitAt-1; narrow != born || !narrow && old.LastSlot != splitLast {
		w.Fatalf("the old range ends at %d, and the new one exists: %v", old.LastSlot, born)
	}
	checkAllNames(w)
	// Every version is where it was, whichever range it belongs to.
	for _, e := range l.Entries[:split.Seq] {
		for i := range e.Requests {
			r := &e.Requests[i]
			for _, wr := range r.Writes {
				got, err := s.Lookup(rhumb.Key{Table: 1, Home: wr.Home(l.ID), Name: wr.Name}, storage.Newest)
				if err != nil || got.Version.HLC < r.HLC {
					w.Fatalf("%s in slot %d: %+v, %v", wr.Name, wr.Home(l.ID).Slot, got, err)
				}
			}
			// The old range keeps all results, and the new one the last of each client, and a floor that covers the others.
			if r.ID.IsZero() {
				continue
			}
			if _, found, err := s.Dedup(l.ID, r.ID); err != nil || !found {
				w.Fatalf("the old range lacks the result of %s: %v", r.ID, err)
			}
			if !born {
				continue
			}
			floor, err := s.RequestFloor(splitChild, r.ID.Client)
			if err != nil {
				w.Fatal(err)
			}
			seen, found, err := s.Dedup(splitChild, r.ID)
			last := uint64(rhumb.DedupWindow + 30)
			kept := r.ID.Client == idleClient || r.ID.Seq > last-rhumb.DedupWindow
			if err != nil || found != kept || found && seen.Seq != e.Seq || !found && floor < r.ID.Seq || found && floor >= r.ID.Seq {
				w.Fatalf("the new range has the result of %s: %v, %+v, floor %d, %v", r.ID, found, seen, floor, err)
			}
		}
	}
	if !born {
		return false
	}
	if st.Commit != split.Seq || st.Last.Seq < split.Seq || st.Trim != split.Seq || st.LastSlot != splitLast || old.Trim != split.Seq-1 || old.Commit < split.Seq {
		w.Fatalf("the states are %+v and %+v", old, st)
	}
	// A result of a later entry is not of the new range.
	if last, err := s.RequestWindow(splitChild, splitClient); err != nil || last.Last != rhumb.DedupWindow+30 {
		w.Fatalf("the last request of the new range is %d, %v", last.Last, err)
	}
	if marks, err := s.Marks(splitChild, split.Seq, split.Seq); err != nil || len(marks) != 1 || marks[0].Position != split.Position() {
		w.Fatalf("the log of the new range begins with %v, %v", marks, err)
	}
	a, _ := s.Size(l.ID)
	b, _ := s.Size(splitChild)
	if a.Data <= 0 || b.Data <= 0 {
		w.Fatalf("the sizes are %d and %d", a.Data, b.Data)
	}
	return true
}

// TestSplit guards what a split leaves: data, results of requests and both logs, also after a restart, and when both ranges
// are written, collected and dropped afterwards.
func TestSplit(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	l, split := wideLog(w)
	if checkSplit(w, l, split) {
		t.Fatal("the range is divided before the split")
	}
	splitRange(w, l, split)
	if !checkSplit(w, l, split) {
		t.Fatal("the range is not divided")
	}
	w.Restart()
	checkSplit(w, l, split)
	if at, ok := w.Store.SplitSlot(splitChild); !ok || at <= splitAt || at > splitLast {
		t.Fatalf("the new range would be split at %d, %v", at, ok)
	}
	// The new range continues behind the same entry.
	child := &storagetest.Log{ID: splitChild, Entries: l.Clone().Entries[:split.Seq], HLC: l.HLC}
	next := child.Add(2, 3, storagetest.Put("new", "value"))
	w.Batch(func(b *storage.Batch) {
		b.SetPromised(splitChild, 2)
		b.Append(splitChild, next, storage.Commit{Seq: split.Seq, HLC: split.LastHLC()})
	})
	if got, err := w.Store.Entries(splitChild, split.Seq, next.Seq, 0); err != nil || len(got) != 2 || got[0].Split() != splitAt {
		t.Fatalf("the log of the new range has %d entries, %v", len(got), err)
	}
	// The old log names what its entries superseded in the slots of the new range; nothing else does.
	before := versions(w)
	for {
		done, err := w.Store.Collect(l.ID, storage.CollectLimits{Before: storage.Newest})
		if err != nil {
			t.Fatal(err)
		}
		if !done.More {
			break
		}
	}
	// 23 names in 5 slots are one version each; what is left are the newest ones and the two entries from the split on.
	if after := versions(w); after >= before || after > 23*5+2 {
		t.Fatalf("%d versions are left of %d", after, before)
	}
	checkSplit(w, l, split)
	w.Restart()
	w.Verify()
	// Dropping one part leaves the other.
	w.Dropped(l.ID)
	w.Batch(func(b *storage.Batch) { b.DropRange(l.ID) })
	if got, err := w.Store.Lookup(rhumb.Key{Table: 1, Home: splitChild, Name: []byte("new")}, storage.Newest); err != nil || got.Value == nil {
		t.Fatalf("after the old range is dropped: %+v, %v", got, err)
	}
}

// versions counts the versions in the store.
func versions(w *storagetest.World) int {
	w.Helper()
	w.Stop()
	report, err := storage.Verify(storagetest.Dir, w.Mem)
	if err != nil || len(report.Faults) > 0 {
		w.Fatalf("%+v, %v", report.Faults, err)
	}
	w.Start()
	return int(report.Versions)
}

// TestSplitCrashes cuts the power at every write of a split, with all, some or none of the unsynced data. The range is either
// whole or divided, never something between, and can be divided afterwards.
func TestSplitCrashes(t *testing.T) {
	seed := storagetest.Seed(t, 1)
	whole, divided := 0, 0
	past := 0 // rounds that wrote less than was to be cut
	for n := 1; ; n++ {
		for _, percent := range []int{0, 50, 100} {
			w := storagetest.NewWorld(t, seed+int64(percent)).Start()
			l, split := wideLog(w)
			var after *vfs.MemFS
			ops := 0
			f := &faulty{fail: func(op errorfs.Op) error {
				if !strings.Contains(op.Path, storagetest.Dir) || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
					return nil
				}
				if ops++; ops == n && after == nil {
					after = w.Mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: w.Rand})
				}
				return nil
			}}
			w.Wrap = f.wrap
			w.Restart()
			f.on.Store(true)
			splitRange(w, l, split)
			if err := w.Store.Flush(); err != nil {
				t.Fatal(err)
			}
			f.on.Store(false)
			w.Stop()
			if after == nil {
				if past++; past < pastMost {
					continue
				}
				t.Logf("%d cuts: %d left the range whole, %d divided", n-1, whole, divided)
				if whole == 0 || divided < 3 {
					t.Error("the cuts do not cover all steps")
				}
				return
			}
			w.Mem = after
			w.Start()
			if checkSplit(w, l, split) {
				divided++
			} else {
				whole++
				splitRange(w, l, split)
				checkSplit(w, l, split)
			}
			w.Restart()
			checkSplit(w, l, split)
			w.Stop()
		}
	}
}
