package host

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// write puts one name into a table of the range, at node 1, and retries while the range is not served.
func (w *world) write(table rhumb.TableID, name, value string) {
	w.t.Helper()
	w.eventually(func() error {
		m := putOf(name, value)
		m.Table = table
		got := make(chan answer, 1)
		w.hosts[1].Propose(&rhumb.Batch{Range: testRange, Mutations: []rhumb.Mutation{m}}, func(o rhumb.Outcome, err error) { got <- answer{o, err} })
		w.hosts[1].Drive()
		return w.answered(got).err
	})
}

// holds returns an error unless a node's copy of the range has records of a table, or has none.
func (w *world) holds(n rhumb.NodeID, table rhumb.TableID, want bool) error {
	s, ok := w.hosts[n].findSlot(testRange)
	if !ok {
		return fmt.Errorf("node %d has no copy", n)
	}
	var at storage.TableSpan
	for {
		next, ok, err := s.store.NextTable(testRange, at)
		switch {
		case err != nil:
			return err
		case !ok && want:
			return fmt.Errorf("node %d has no record of table %d", n, table)
		case !ok:
			return nil
		case next.Table == table && want:
			return nil
		case next.Table == table:
			return fmt.Errorf("node %d still has records of table %d", n, table)
		}
		at = next
	}
}

// TestDroppedTableIsCleared drops one of two tables of a range while a replica is cut off. What the replica lacks
// stays until it has it, since the hash of an entry covers its values. Then all nodes give the space back, and the
// other table keeps its records.
func TestDroppedTableIsCleared(t *testing.T) {
	const kept, gone rhumb.TableID = testTable, testTable + 1
	var dropped atomic.Bool
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) {
		c.Dropped = func(t rhumb.TableID) bool { return t == gone && dropped.Load() }
	})
	big := strings.Repeat("x", 10_000)
	for i := range 20 {
		w.write(kept, fmt.Sprint("k", i), "v")
		w.write(gone, fmt.Sprint("g", i), big)
	}
	before := w.hosts[1].DataBytes(testRange)
	if before < 200_000 {
		t.Fatalf("the range holds %d bytes", before)
	}
	// Node 3 misses the last entries of the table, so the others keep their values.
	w.isolate(3, true)
	w.eventually(func() error {
		if st := w.inSync(); len(st) != 2 {
			return fmt.Errorf("in sync are %v", st)
		}
		return nil
	})
	w.write(gone, "late", big)
	w.write(kept, "later", "v")
	dropped.Store(true)
	for _, h := range w.hosts {
		h.SweepTables()
	}
	// A sweep has certainly been done when a later event of the collector was.
	w.eventually(func() error {
		if s, _ := w.hosts[1].findSlot(testRange); !w.swept(1, s) {
			return fmt.Errorf("node 1 has not finished its sweep")
		}
		return w.holds(1, gone, true)
	})
	w.isolate(3, false)
	w.eventually(func() error {
		if in := w.inSync(); len(in) != 3 {
			return fmt.Errorf("in sync are %v", in)
		}
		return nil
	})
	w.write(kept, "last", "v")
	w.write(kept, "last", "w")
	for n := range w.hosts {
		// The log keeps its last entries, which are of the other table by now.
		w.eventually(func() error { return w.holds(n, gone, false) })
		if err := w.holds(n, kept, true); err != nil {
			t.Error(err)
		}
		if after := w.hosts[n].DataBytes(testRange); after > before/10 {
			t.Errorf("node %d still counts %d of %d bytes", n, after, before)
		}
	}
	for i := range 20 {
		if v, err := w.get(1, fmt.Sprint("k", i)); err != nil || v != "v" {
			t.Errorf("k%d: %q, %v", i, v, err)
		}
	}
}

// inSync returns the in-sync set of the record.
func (w *world) inSync() []rhumb.NodeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rec.InSync
}

// swept reports whether no sweep of a slot is under way.
func (w *world) swept(n rhumb.NodeID, s *slot) bool {
	done := make(chan bool, 1)
	w.hosts[n].postAsync(peersEvent{func(*Host) { done <- s.sweep == nil }})
	return <-done
}

// TestRemovedRange removes a range while a write waits for a replica that is cut off: the write is answered, the node
// holds nothing of the range any more, also after a restart, and messages of a lagging replica do not bring it back.
func TestRemovedRange(t *testing.T) {
	w := newWorldWith(t, 2, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(*Config) {})
	w.put(1, "k", strings.Repeat("x", 100_000))
	w.isolate(2, true)
	waiting := ask(w.hosts[1], putOf("k", "never"))
	w.hosts[1].Drive()
	w.hosts[1].DropRanges([]rhumb.RangeID{testRange})
	if a := w.answered(waiting); a.err == nil {
		t.Fatal("the write was acknowledged without its replica")
	}
	engine := w.hosts[1].cfg.Engine
	gone := func() error {
		if ids := w.hosts[1].RangeIDs(); len(ids) > 0 {
			return fmt.Errorf("the node still serves %v", ids)
		}
		states, err := engine.Ranges()
		if err == nil && len(states) > 0 {
			err = fmt.Errorf("the store still holds %v", states)
		}
		return err
	}
	w.eventually(gone)
	if _, err := w.propose(1, putOf("k", "v"), rhumb.RequestID{}); rhumb.KindOf(err) != rhumb.NotPrimary {
		t.Errorf("a write of a removed range: %v", err)
	}
	// Node 2 has not heard of it, and its messages change nothing.
	w.mu.Lock()
	w.cut[2] = false
	w.mu.Unlock()
	w.hosts[2].Connected(1, false)
	w.hosts[2].Connected(1, true)
	w.elect(2, 1, 2)
	// The record names node 1 again, as news that arrives late does; a node applies its metadata in order, so only the
	// messages matter here.
	w.hosts[1].DropRanges([]rhumb.RangeID{testRange})
	w.eventually(gone)
}

// TestRemovedWideRange guards that requests for the slots of a removed range find no replica: not the one that is gone either.
func TestRemovedWideRange(t *testing.T) {
	w := newWideWorld(t, 1, testRange.Slot+9, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(*Config) {})
	w.put(1, "k", "v")
	h, home := w.hosts[1], rhumb.RangeID{Region: testRange.Region, Slot: testRange.Slot + 4}
	if _, ok := h.homeSlot(home); !ok {
		t.Fatal("the range is not found by one of its slots")
	}
	h.DropRanges([]rhumb.RangeID{testRange})
	w.eventually(func() error {
		if ids := h.RangeIDs(); len(ids) > 0 {
			return fmt.Errorf("the node still holds %v", ids)
		}
		return nil
	})
	if s, ok := h.homeSlot(home); ok {
		t.Errorf("slot %s still leads to range %s, which is gone", home, s.id)
	}
}
