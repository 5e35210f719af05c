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

// twoLogs writes two neighbouring ranges. The right one has ended, and the left one has an entry that takes over its slots. A client has
// requests in both, and another one only in the right range.
func twoLogs(w *storagetest.World) (left, right *storagetest.Log, take *entry.Entry) {
	left, right = &storagetest.Log{ID: storagetest.R}, &storagetest.Log{ID: splitChild}
	add := func(l *storagetest.Log, epoch rhumb.Epoch, reqs ...entry.Request) *entry.Entry {
		l.HLC = max(left.HLC, right.HLC)
		e := l.Add(epoch, 1, reqs...)
		w.Batch(func(b *storage.Batch) { b.Append(l.ID, e, l.CommitPos()) })
		return e
	}
	w.Batch(func(b *storage.Batch) {
		b.CreateRange(storage.RangeState{Range: left.ID, LastSlot: splitAt - 1})
		b.CreateRange(storage.RangeState{Range: right.ID, LastSlot: splitLast})
	})
	add(left, 1)
	add(right, 3)
	for n := uint64(1); n <= 40; n++ {
		l, epoch, client := left, rhumb.Epoch(1), splitClient
		if n%2 == 0 {
			l, epoch = right, 3
		}
		if n%4 == 0 {
			client = idleClient
		}
		add(l, epoch, entry.Request{
			ID: rhumb.RequestID{Client: client, Seq: n}, Writes: []entry.Write{storagetest.Write(fmt.Sprintf("key%d", n%6), fmt.Sprintf("value %d", n))},
		})
	}
	end := add(right, 3, entry.Request{Noop: true, End: true})
	right.Commit = end.Seq
	w.Batch(func(b *storage.Batch) { b.SetCommit(right.ID, right.CommitPos()) })
	take = add(left, 1, entry.Request{Noop: true, Take: entry.Take{Slot: splitAt, Last: splitLast, Epoch: end.Epoch, Seq: end.Seq}})
	left.Commit = take.Seq
	return left, right, take
}

// uniteRanges unites the copies as a host does.
func uniteRanges(w *storagetest.World, left *storagetest.Log, take *entry.Entry) {
	w.Batch(func(b *storage.Batch) {
		if err := b.Unite(left.ID, take.Seq, take.Take()); err != nil {
			w.Fatal(err)
		}
	})
}

// checkUnited checks the copies, and reports false if they are not united.
func checkUnited(w *storagetest.World, left, right *storagetest.Log, take *entry.Entry) (united bool) {
	w.Helper()
	s := w.Store
	st, ok := s.State(left.ID)
	if !ok {
		w.Fatal("the left range is gone")
	}
	_, apart := s.State(right.ID)
	if united = st.LastSlot == splitLast; united == apart || !united && st.LastSlot != splitAt-1 {
		w.Fatalf("the left range ends at %d, and the right one exists: %v", st.LastSlot, apart)
	}
	checkAllNames(w)
	for _, l := range []*storagetest.Log{left, right} {
		for _, e := range l.Entries {
			for i := range e.Requests {
				r := &e.Requests[i]
				for _, wr := range r.Writes {
					got, err := s.Lookup(rhumb.Key{Table: 1, Home: wr.Home(l.ID), Name: wr.Name}, storage.Newest)
					if err != nil || got.Version.HLC < r.HLC {
						w.Fatalf("%s of range %s: %+v, %v", wr.Name, l.ID, got, err)
					}
				}
				if r.ID.IsZero() {
					continue
				}
				id, at := l.ID, e.Seq
				// Its position is one of the log that has it now.
				if united && l == right {
					id, at = left.ID, take.Seq
				}
				if seen, found, err := s.Dedup(id, r.ID); err != nil || !found || seen.Seq != at || seen.Outcome.Version != e.Version(r) {
					w.Fatalf("range %s has the result of %s: %v, %+v, %v", id, r.ID, found, seen, err)
				}
			}
		}
	}
	if !united {
		return false
	}
	if st.Commit != take.Seq || st.Trim != take.Seq-1 || st.Last.Seq < take.Seq {
		w.Fatalf("the state is %+v", st)
	}
	return true
}

// TestUnite guards what a merge leaves: data, results of requests and the list of what to collect, also after a restart, and when the range is
// written, collected, split and dropped afterwards.
func TestUnite(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	left, right, take := twoLogs(w)
	if checkUnited(w, left, right, take) {
		t.Fatal("the ranges are united before the merge")
	}
	a, _ := w.Store.Size(left.ID)
	b, _ := w.Store.Size(right.ID)
	uniteRanges(w, left, take)
	if !checkUnited(w, left, right, take) {
		t.Fatal("the ranges are not united")
	}
	if both, _ := w.Store.Size(left.ID); both.Data != a.Data+b.Data {
		t.Errorf("the united range has %d bytes, the parts had %d and %d", both.Data, a.Data, b.Data)
	}
	w.Restart()
	checkUnited(w, left, right, take)
	if both, _ := w.Store.Size(left.ID); both.Data != a.Data+b.Data {
		t.Errorf("after a restart the united range has %d bytes, want %d", both.Data, a.Data+b.Data)
	}
	// A write to a slot that came with the merge.
	wr := storagetest.Write("key2", "newest")
	wr.Slot = splitAt
	left.HLC = max(left.HLC, right.HLC)
	next := left.Add(1, 1, entry.Request{Writes: []entry.Write{wr}})
	left.Commit = next.Seq
	w.Batch(func(b *storage.Batch) {
		b.Append(left.ID, next, left.CommitPos())
		b.SetCommit(left.ID, left.CommitPos())
	})
	// Both logs name what was superseded: one version of each key is left, and two that entries which are not trimmed superseded.
	before := versions(w)
	for {
		done, err := w.Store.Collect(left.ID, storage.CollectLimits{Before: storage.Newest})
		if err != nil {
			t.Fatal(err)
		}
		if !done.More {
			break
		}
	}
	if after := versions(w); after >= before || after > 6+2 {
		t.Fatalf("%d versions are left of %d", after, before)
	}
	w.Restart()
	w.Verify()
	// A split at another slot, behind what was merged.
	e := left.Add(1, 1, entry.Request{Noop: true, Split: splitAt + 1})
	left.Commit = e.Seq
	w.Batch(func(b *storage.Batch) { b.Append(left.ID, e, left.CommitPos()) })
	w.Batch(func(b *storage.Batch) {
		if _, err := b.Split(left.ID, storage.Split{At: splitAt + 1, Seq: e.Seq, Promised: 1}); err != nil {
			t.Fatal(err)
		}
	})
	w.Restart()
	if st, ok := w.Store.State(left.ID); !ok || st.LastSlot != splitAt {
		t.Fatalf("after the split: %+v", st)
	}
	w.Dropped(left.ID)
	w.Batch(func(b *storage.Batch) { b.DropRange(left.ID) })
	if got, err := w.Store.Lookup(rhumb.Key{Table: 1, Home: splitChild, Name: []byte("key2")}, storage.Newest); err != nil || got.Value != nil {
		t.Fatalf("after the range is dropped: %+v, %v", got, err)
	}
}

// TestUniteCrashes cuts the power at every write of a merge, with all, some or none of the unsynced data. The copies are either apart or
// united, never something between, and can be united afterwards.
func TestUniteCrashes(t *testing.T) {
	seed := storagetest.Seed(t, 1)
	apart, united := 0, 0
	past := 0 // rounds that wrote less than was to be cut
	for n := 1; ; n++ {
		for _, percent := range []int{0, 50, 100} {
			w := storagetest.NewWorld(t, seed+int64(percent)).Start()
			left, right, take := twoLogs(w)
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
			uniteRanges(w, left, take)
			if err := w.Store.Flush(); err != nil {
				t.Fatal(err)
			}
			f.on.Store(false)
			w.Stop()
			if after == nil {
				if past++; past < pastMost {
					continue
				}
				t.Logf("%d cuts: %d left the copies apart, %d united", n-1, apart, united)
				if apart == 0 || united < 3 {
					t.Error("the cuts do not cover all steps")
				}
				return
			}
			w.Mem = after
			w.Start()
			if checkUnited(w, left, right, take) {
				united++
			} else {
				apart++
				uniteRanges(w, left, take)
				checkUnited(w, left, right, take)
			}
			w.Restart()
			checkUnited(w, left, right, take)
			w.Stop()
		}
	}
}
