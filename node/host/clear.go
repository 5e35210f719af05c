package host

import (
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/storage"
)

// This file frees the storage of dropped objects: whole ranges, and tables that share their ranges
// with others.
//
// Every node does so independently, once its copy of the metadata shows the drop. Nobody waits for it, and
// nothing is replicated: dropped objects are invisible to clients, their numbers are never used again, and
// a node that returns later finds the same in its own copy of the metadata.

// DropRanges drops this node's copies of ranges that do not exist any more. Pending writes are answered as
// unknown. The space is given back after the next compaction of the store.
func (h *Host) DropRanges(ids []rhumb.RangeID) { h.post(dropRangesEvent{ids}) }

// RangeIDs returns the ranges that this node holds.
func (h *Host) RangeIDs() (ids []rhumb.RangeID) {
	h.eachSlot(func(s *slot) { ids = append(ids, s.id) })
	slices.SortFunc(ids, rhumb.RangeID.Compare)
	return ids
}

// dropRangesEvent ends the work of the replicas, dropCopyEvent drops their copies one pass later, when the
// callers have their answers.
type (
	dropRangesEvent struct{ ids []rhumb.RangeID }
	dropCopyEvent   struct{ s *slot }
)

// applyTo makes the replicas step down.
func (ev dropRangesEvent) applyTo(h *Host) {
	for _, id := range ev.ids {
		// A range that waits to be born is not born any more. Otherwise the end of the copy that holds its slots would
		// create it.
		h.forgetUnborn(id)
		s, ok := h.findSlot(id)
		if ok && s.installing {
			// The disk is used outside the pass. installedEvent removes the copy, old or new, when the disk is done.
			s.dropped = true
		}
		if !ok || s.gone {
			continue
		}
		// A record without a primary makes a primary answer its callers, as any loss of the role
		// does. Metadata never had this record, and nobody but this replica sees it.
		if d := s.desc.Load(); d != nil {
			last := d.Clone()
			last.Version, last.Allocated = d.Version+1, max(d.Allocated, s.r.Epoch())+1
			last.Epoch, last.Primary = last.Allocated, rhumb.NoNode
			last.InSync, last.Replicas, last.Lives = nil, nil, nil
			s.desc.Store(last)
			s.r.Describe(last)
			h.markDirty(s)
		}
		// enqueue, not post: this pass is running, and the caller of the pass checks for more events.
		h.enqueue(dropCopyEvent{s})
	}
}

// applyTo drops the copy.
func (ev dropCopyEvent) applyTo(h *Host) {
	s := ev.s
	if s.gone {
		return
	}
	s.gone = true
	s.read.Store(nil)
	for _, p := range h.takeHeld(s) {
		p.answer(rhumb.Outcome{}, &rhumb.Error{Op: "host.Host.Propose", Kind: rhumb.NotFound, Range: s.id, Node: h.cfg.Self.Node, Msg: "the table was dropped"})
	}
	batches, err := h.dropRange(s)
	if err != nil {
		// The copy is harmless, and found again when the node starts.
		h.m.clearFailed.Inc()
		h.log.Warn("dropping the copy of a removed range failed; the next start of the node tries again", "range", s.id.String(), "err", err)
	}
	// Messages for the range find no replica from here on, and are dropped.
	h.forgetSlot(s)
	h.m.removedRanges.Inc()
	// The count keeps the engine open until the disk is done.
	h.reads.Add(1)
	h.rt.Disk(true, func() {
		for _, b := range batches {
			if err := b.Sync(); err != nil {
				h.cfg.Fatal(rhumb.Wrap("host.Host.DropRanges", err))
			}
		}
	}, func() { h.reads.Add(-1) })
}

// sweep is one search of a range for records of dropped tables.
type sweep struct {
	// touched is set if an entry with a dropped table was appended since the sweep began: a primary whose
	// copy of the metadata lags may still accept writes. The pass owns it.
	touched bool
}

// SweepTables makes the node free the storage of dropped tables in all its ranges. It returns at
// once; the collector does the work in bounded steps.
func (h *Host) SweepTables() {
	h.postAsync(peersEvent{func(h *Host) {
		h.hasDrops = h.cfg.Dropped != nil
		for _, s := range h.allSlots {
			h.beginSweep(s)
		}
	}})
}

// beginSweep queues a sweep of a range. The pass calls it, so that every entry of earlier passes is in
// storage when the sweep reads it, and later ones are noticed by noteAppended.
func (h *Host) beginSweep(s *slot) {
	s.unswept = false
	if !h.hasDrops || s.gone {
		return
	}
	s.sweep = new(sweep)
	h.collector.addSweep(s, s.sweep)
}

// noteAppended looks for dropped tables in entries that are being appended: a primary whose copy of the
// metadata lags may still accept writes, and a replica that lags gets old ones.
func (h *Host) noteAppended(s *slot, entries []*entry.Entry) {
	// The usual node has nothing dropped, and pays nothing.
	if !h.hasDrops || s.unswept && (s.sweep == nil || s.sweep.touched) {
		return
	}
	// Most writes of an entry are of one table.
	var known rhumb.TableID
	for _, e := range entries {
		for i := range e.Requests {
			for _, w := range e.Requests[i].Writes {
				if w.Table == known {
					continue
				}
				if known = w.Table; !h.cfg.Dropped(known) {
					continue
				}
				s.unswept = true
				if s.sweep != nil {
					s.sweep.touched = true
				}
				return
			}
		}
	}
}

// sweepRange searches a range for dropped tables. It reads in bounded steps and deletes in a pass, which
// alone knows that no entry of the table was appended meanwhile.
func (h *Host) sweepRange(s *slot, w *sweep) error {
	var t storage.TableSpan
	for h.ctx.Err() == nil {
		next, ok, err := s.store.NextTable(s.id, t)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		t = next
		if !h.cfg.Dropped(t.Table) {
			continue
		}
		m := storage.TableMeasure{Settled: s.store.SettledBefore(s.id)}
		for more := true; more; {
			// Between two steps others use the disk.
			if more, err = s.store.MeasureTable(t, &m); err != nil || h.ctx.Err() != nil {
				return err
			}
		}
		h.postAsync(clearEvent{s, w, t, m})
	}
	h.postAsync(sweptEvent{s, w})
	return nil
}

// sweptEvent ends a sweep.
type sweptEvent struct {
	s *slot
	w *sweep
}

// applyTo lets appended entries pass unexamined again.
func (ev sweptEvent) applyTo(*Host) {
	if ev.s.sweep == ev.w {
		ev.s.sweep = nil
		if !ev.s.unswept {
			ev.s.r.Tidy(false)
		}
	}
}

// clearEvent deletes a dropped table from a range after a sweep has measured it.
type clearEvent struct {
	s *slot
	w *sweep
	t storage.TableSpan
	m storage.TableMeasure
}

// applyTo deletes what can go. The versions of entries that the log still holds stay: a replica that lags
// must get such an entry whole, since its hash covers the values. The next trim of the log begins another
// sweep for them.
func (ev clearEvent) applyTo(h *Host) {
	s := ev.s
	if s.gone || s.sweep != ev.w {
		return
	}
	if ev.w.touched || len(ev.m.Kept) > storage.ClearKeptMax {
		h.sweepLater(s)
		return
	}
	if err := s.store.ClearTable(s.id, ev.t, &ev.m); err != nil {
		h.m.clearFailed.Inc()
		h.log.Warn("deleting the records of a dropped table failed", "range", s.id.String(), "table", ev.t.Table.String(), "err", err)
		h.sweepLater(s)
		return
	}
	h.m.clearedBytes.Add(float64(ev.m.Bytes))
	if ev.m.Bytes > 0 {
		h.log.Info("deleted the records of a dropped table", "range", s.id.String(), "table", ev.t.Table.String(), "bytes", ev.m.Bytes)
	}
	if len(ev.m.Kept) > 0 {
		h.sweepLater(s)
	}
}

// sweepLater makes the next trim of a range begin another sweep, and the trim happen soon: an idle range
// keeps the end of its log otherwise.
func (h *Host) sweepLater(s *slot) {
	s.unswept = true
	s.r.Tidy(true)
	h.markDirty(s)
}
