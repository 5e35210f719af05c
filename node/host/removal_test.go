package host

import (
	"errors"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestLateRemovalKeepsNewCopy guards I3 (docs/replication.md#rule-removal): a node learns late of the record that removed its copy. Meanwhile it got
// a copy again, in a new epoch, has acknowledged everything in that epoch with the old copy, and is in sync. Dropping the copy now would
// leave an in-sync member that holds nothing.
func TestLateRemovalKeepsNewCopy(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "v")
	var records []*rhumb.Range
	publish := func(change func(*rhumb.Range)) {
		w.mu.Lock()
		defer w.mu.Unlock()
		rec := w.rec.Clone()
		rec.Version++
		change(rec)
		w.publishLocked(rec)
		records = append(records, rec.Clone())
	}
	version := func(n rhumb.NodeID) (v uint64) {
		if s, ok := w.hosts[n].findSlot(testRange); ok && s.desc.Load() != nil {
			v = uint64(s.desc.Load().Version)
		}
		return v
	}
	w.mu.Lock()
	w.deaf = map[rhumb.NodeID]bool{3: true}
	w.mu.Unlock()
	publish(func(r *rhumb.Range) { r.InSync = []rhumb.NodeID{1, 2} })
	publish(func(r *rhumb.Range) { r.Replicas = []rhumb.NodeID{1, 2} })
	publish(func(r *rhumb.Range) {
		r.Replicas, r.Allocated, r.Epoch = []rhumb.NodeID{1, 2, 3}, r.Allocated+1, r.Allocated+1
	})
	// The primary lets node 3 join, whose node knows none of these records.
	w.put(1, "k", "later")
	w.eventually(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.rec.IsInSync(3) {
			return errors.New("node 3 is not in sync")
		}
		return nil
	})
	before, _ := w.hosts[3].findSlot(testRange)
	w.mu.Lock()
	newest := w.rec.Clone()
	w.mu.Unlock()
	for _, r := range append(records, newest) {
		w.hosts[3].Update([]*rhumb.Range{r})
	}
	w.eventually(func() error {
		if version(3) < uint64(newest.Version) {
			return errors.New("node 3 has not heard the newest record")
		}
		return nil
	})
	// A copy that is being removed finds the newest record when that is done, and is copied again from the primary.
	w.put(1, "k", "last")
	w.eventually(func() error {
		first, err := w.hosts[1].Status(t.Context(), testRange)
		third, err3 := w.hosts[3].Status(t.Context(), testRange)
		if err = errors.Join(err, err3); err == nil && third.Commit < first.Commit {
			err = errors.New("node 3 lacks entries")
		}
		return err
	})
	if after, _ := w.hosts[3].findSlot(testRange); after != before {
		t.Error("node 3 dropped a copy that is in sync, for a record of an earlier epoch")
	}
}
