package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

const splitSlots = 64

// splitHome is the home of a name in the tests of splits.
func splitHome(name string) rhumb.RangeID {
	return rhumb.RangeID{Region: testRange.Region, Slot: testRange.Slot + keys.HashSlot([]byte(name), 0, splitSlots)}
}

// newSplitWorld returns three hosts with one range of many slots.
func newSplitWorld(t *testing.T, change func(*Config)) *world {
	return newWideWorld(t, 3, testRange.Slot+splitSlots-1, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) {
		c.HomeIn = func(_ rhumb.RangeID, _ rhumb.TableID, name []byte) rhumb.RangeID { return splitHome(string(name)) }
		change(c)
	})
}

// putAt writes one key by its home, under a request ID, at one host.
func (w *world) putAt(n rhumb.NodeID, name, value string, id rhumb.RequestID) (rhumb.Outcome, error) {
	type answer struct {
		o   rhumb.Outcome
		err error
	}
	got := make(chan answer, 1)
	m := putOf(name, value)
	m.Table = testTable
	w.hosts[n].Propose(&rhumb.Batch{Range: splitHome(name), ID: id, Mutations: []rhumb.Mutation{m}}, func(o rhumb.Outcome, err error) { got <- answer{o, err} })
	w.hosts[n].Drive()
	a := <-got
	return a.o, a.err
}

// getAt reads one key by its home.
func (w *world) getAt(n rhumb.NodeID, name string) (string, rhumb.Receipt, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	items, receipt, err := w.hosts[n].Get(ctx, splitHome(name), testTable, [][]byte{[]byte(name)})
	if err != nil {
		return "", receipt, err
	}
	b, _ := rhumb.DecodeOpaque(items[0].Value)
	return string(b), receipt, nil
}

// TestSplitUnderLoad divides a range twice while it is written. No write is refused, everything written is read from the
// right range, and a request that is repeated afterwards gets its first answer, whichever part has its key.
func TestSplitUnderLoad(t *testing.T) {
	w := newSplitWorld(t, func(*Config) {})
	w.eventually(func() error { _, err := w.putAt(1, "first", "0", rhumb.RequestID{}); return err })
	const writers = 8
	type written struct {
		id   rhumb.RequestID
		name string
		o    rhumb.Outcome
	}
	all := make([][]written, writers)
	var done atomic.Int64
	// more waits until each writer has written several times on average, so that writes are on their way at each moment of a split.
	more := func() {
		want := done.Load() + 10*writers
		w.eventually(func() error {
			if n := done.Load(); n < want {
				return fmt.Errorf("%d writes are acknowledged, want %d", n, want)
			}
			return nil
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for i := range writers {
		work.Go(func() {
			client := rhumb.UUID{byte(i + 1)}
			for n := uint64(1); ctx.Err() == nil; n++ {
				name := fmt.Sprintf("w%d-%d", i, n)
				id := rhumb.RequestID{Client: client, Seq: n}
				o, err := w.putAt(1, name, name, id)
				if err != nil {
					t.Errorf("write %s: %v", name, err)
					return
				}
				all[i] = append(all[i], written{id, name, o})
				done.Add(1)
			}
		})
	}
	for _, at := range []rhumb.Slot{testRange.Slot + 40, testRange.Slot + 10} {
		more()
		child := w.reserve(at)
		w.eventually(func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.child.Birth != 0 {
				return rhumb.E("test", rhumb.Unavailable, "not complete")
			}
			return nil
		})
		w.eventually(func() error {
			for n, h := range w.hosts {
				st, err := h.Status(t.Context(), child)
				if err != nil {
					return err
				}
				if st.State == replica.Quarantined {
					t.Fatalf("%s: %s", n, st.Quarantine)
				}
			}
			return nil
		})
	}
	more()
	stop()
	work.Wait()
	count, later := 0, 0
	for i := range all {
		for n, x := range all[i] {
			got, receipt, err := w.getAt(1, x.name)
			if err != nil || got != x.name {
				t.Fatalf("%s is %q, %v", x.name, got, err)
			}
			if receipt.Range != testRange {
				later++
			}
			// The last requests of each client are known to the range of their key.
			if len(all[i])-n <= 20 {
				again, err := w.putAt(1, x.name, "again", x.id)
				if err != nil || again.Version != x.o.Version || again.Seq != x.o.Seq {
					t.Fatalf("the repetition of %s: %+v, %v; the first answer was %+v", x.name, again, err, x.o)
				}
			}
			count++
		}
	}
	// A read of many keys that was sent to the old range finds those that the new ranges have now. Senders learn of a split later
	// than the nodes that divide their copies.
	var names [][]byte
	var tables []rhumb.TableID
	for i := range all {
		for _, x := range all[i][:min(len(all[i]), 20)] {
			names, tables = append(names, []byte(x.name), []byte("absent-"+x.name)), append(tables, testTable, testTable)
		}
	}
	items, _, err := w.hosts[1].Get(t.Context(), testRange, testTable, names)
	if err != nil {
		t.Fatal(err)
	}
	exist, err := w.hosts[1].Exists(t.Context(), testRange, tables, names)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		value, _ := rhumb.DecodeOpaque(items[i].Value)
		if written := i%2 == 0; exist[i] != written || written && string(value) != string(name) || items[i].Key.Home != splitHome(string(name)) {
			t.Fatalf("%s is %q with home %s; it exists: %v", name, value, items[i].Key.Home, exist[i])
		}
	}
	t.Logf("%d writes, %d of them in the new ranges", count, later)
	if later == 0 || later == count {
		t.Error("one part has everything")
	}
}

// TestSplitIsUndone elects another primary while a split is on one disk only: the entry disappears, the writes that waited for
// the new range are sent on, and the next primary divides the range.
func TestSplitIsUndone(t *testing.T) {
	w := newSplitWorld(t, func(*Config) {})
	w.eventually(func() error { _, err := w.putAt(1, "first", "0", rhumb.RequestID{}); return err })
	// Node 1 cannot reach anybody, so its entry stays uncommitted.
	w.mu.Lock()
	w.cut[1] = true
	w.mu.Unlock()
	child := w.rec.Clone()
	child.ID.Slot, child.Version = testRange.Slot+32, 1
	child.Epoch, child.Allocated, child.Birth = 2, 2, 2
	w.hosts[1].Update([]*rhumb.Range{child.Clone()})
	held := make(chan error, 1)
	upper := "" // a name that belongs to the new range
	for i := 0; upper == ""; i++ {
		if n := fmt.Sprint("n", i); splitHome(n).Slot >= child.ID.Slot {
			upper = n
		}
	}
	w.eventually(func() error {
		splits := make(chan bool, 1)
		w.hosts[1].post(askEvent{func(h *Host) { s, _ := h.findSlot(testRange); _, ok := s.r.Splitting(); splits <- ok }})
		if !<-splits {
			return rhumb.E("test", rhumb.Unavailable, "no entry yet")
		}
		return nil
	})
	go func() { _, err := w.putAt(1, upper, "held", rhumb.RequestID{}); held <- err }()
	// The catalog gives the reserved range a new epoch and primary, too.
	w.elect(2, 2, 3)
	child.Version, child.Epoch, child.Allocated, child.Primary, child.InSync = 2, 3, 3, 2, []rhumb.NodeID{2, 3}
	w.mu.Lock()
	w.publishChildLocked(child)
	w.mu.Unlock()
	w.eventually(func() error { _, err := w.putAt(2, upper, "later", rhumb.RequestID{}); return err })
	w.eventually(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.child.Birth != 0 {
			return rhumb.E("test", rhumb.Unavailable, "not complete")
		}
		return nil
	})
	// Node 1 returns as a learner, loses its entry, and divides its copy by that of node 2.
	w.isolate(1, false)
	w.hosts[1].Update([]*rhumb.Range{w.child.Clone()})
	if err := <-held; rhumb.KindOf(err) != rhumb.NotPrimary && rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("the write that waited: %v", err)
	}
	w.eventually(func() error {
		st, err := w.hosts[1].Status(t.Context(), child.ID)
		if err == nil && st.State == replica.Quarantined {
			t.Fatal(st.Quarantine)
		}
		return err
	})
	if got, _, err := w.getAt(2, upper); err != nil || got != "later" {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestForgetsUnborn guards that a node which waits for the birth of a range forgets it when metadata removes the range, because its
// table was dropped or the split was cancelled. Otherwise the end of the copy that holds the slots would create a copy of a range
// that does not exist, and nobody would remove it.
func TestForgetsUnborn(t *testing.T) {
	for _, how := range []string{"dropped", "cancelled"} {
		t.Run(how, func(t *testing.T) {
			w := newSplitWorld(t, func(*Config) {})
			w.eventually(func() error { _, err := w.putAt(1, "first", "0", rhumb.RequestID{}); return err })
			w.mu.Lock()
			w.cut[3] = true
			child, gone := w.rec.Clone(), w.rec.Clone()
			w.mu.Unlock()
			// Born elsewhere. The copy here is not divided, because its node hears nothing.
			child.ID.Slot, child.Version, child.Epoch, child.Allocated = testRange.Slot+32, 1, 2, 2
			h := w.hosts[3]
			h.Update([]*rhumb.Range{child})
			waits := func() bool {
				found := make(chan bool, 1)
				h.post(askEvent{func(h *Host) { found <- h.unborn[child.ID] != nil }})
				return <-found
			}
			if !waits() {
				t.Fatal("the node does not wait for the range")
			}
			if how == "dropped" {
				h.DropRanges([]rhumb.RangeID{child.ID})
			} else {
				h.Prune(func(id rhumb.RangeID) bool { return id != child.ID }, func(rhumb.RangeID) bool { return false })
			}
			if waits() {
				t.Error("the node still waits for the range")
			}
			gone.Version, gone.Replicas, gone.InSync = gone.Version+1, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2}
			h.Update([]*rhumb.Range{gone})
			w.eventually(func() error {
				if ids := h.RangeIDs(); len(ids) > 0 {
					return fmt.Errorf("node 3 holds %v", ids)
				}
				return nil
			})
		})
	}
}

// TestEmptiedDiskOfSplit guards that a node whose disk was emptied between a split elsewhere and its own division has an empty copy of
// the new range, and answers for it: the range begins only when all members do, and metadata calls it born only then. If the copy that
// went had the entry of the split, or the record counts on the node alone, the empty copy is quarantined.
func TestEmptiedDiskOfSplit(t *testing.T) {
	for _, how := range []string{"emptied", "had the entry", "recorded life"} {
		t.Run(how, func(t *testing.T) {
			w := newSplitWorld(t, func(*Config) {})
			w.eventually(func() error { _, err := w.putAt(1, "first", "0", rhumb.RequestID{}); return err })
			h := w.hosts[3]
			w.eventually(func() error {
				st, err := h.Status(t.Context(), testRange)
				if err == nil && st.Commit < 2 {
					err = rhumb.E("test", rhumb.Unavailable, "behind")
				}
				return err
			})
			w.mu.Lock()
			w.cut[3] = true
			child := w.rec.Clone()
			w.mu.Unlock()
			child.ID.Slot, child.Version = testRange.Slot+32, 1
			child.Epoch, child.Allocated, child.Birth = 2, 2, 2
			if how == "recorded life" {
				child.Lives = []rhumb.MemberLife{{Node: 3, Life: 1}}
			}
			h.Update([]*rhumb.Range{child})
			var err error
			asked := h.ask("test", t.Context(), func(h *Host) {
				s, _ := h.findSlot(testRange)
				st, _ := s.store.State(testRange)
				if how == "had the entry" {
					e := &entry.Entry{Epoch: 1, Node: 1, Seq: st.Last.Seq + 1, Prev: st.Last.Hash, Requests: []entry.Request{{HLC: st.LastHLC + 1, Noop: true, Split: child.ID.Slot}}}
					e.Seal(nil)
					err = s.r.Step(replica.Message{Kind: replica.Append, Range: testRange, From: 1, To: 3, Life: 1, Epoch: 1, Prev: st.Last, Entries: []*entry.Entry{e}})
				}
				// The copy that comes in its place was divided at its donor.
				s.gone = true
				_, dropped := h.dropRange(s)
				b := s.store.NewBatch()
				b.CreateRange(storage.RangeState{Range: testRange, LastSlot: child.ID.Slot - 1, Promised: st.Promised})
				created := b.Apply()
				st, _ = s.store.State(testRange)
				err = errors.Join(err, dropped, created, h.replaceSlot(s, st))
			})
			if err := errors.Join(asked, err); err != nil {
				t.Fatal(err)
			}
			st, err := h.Status(t.Context(), child.ID)
			if want := how != "emptied"; err != nil || (st.State == replica.Quarantined) != want {
				t.Errorf("the copy of the new range is %s (%v); quarantined: want %v", st.State, err, want)
			}
		})
	}
}
