package host

import (
	"context"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

const opMoveAway rhumb.Op = "host.Host.moveAway"

// movedAwayEvent forgets a slot whose copy has been dropped durably, because the record does not list this node as a replica
// any more (docs/replication.md#rule-removal).
type movedAwayEvent struct{ s *slot }

// stepDownEvent continues to remove a copy whose replica has stepped down.
type stepDownEvent struct{ s *slot }

// applyTo removes the copy, unless a newer record has placed it here again.
func (ev stepDownEvent) applyTo(h *Host) {
	if d := ev.s.desc.Load(); !d.IsReplica(h.cfg.Self.Node) {
		h.moveAway(ev.s, d)
	}
}

// moveAway drops the copy of a range that the record d no longer places here. The record is newer than every record of the
// slot. An in-sync set only has replicas, so nobody counts this copy, and no election asks for it.
//
// The promise of the copy is kept in memory: if the node gets a new copy in this life, that copy must not act in an epoch that
// the old one had promised to leave. In a later life the node relearns its promises from the metadata (docs/replication.md#rule-relearn).
//
// A copy that has promised a later epoch than the record's is left alone: epochs originate in the metadata, so the node is about to
// hear of a newer record. That one may list it again. A primary that knows it may have appended to this copy already, and
// counted it as in sync (TestLateRemovalKeepsNewCopy).
func (h *Host) moveAway(s *slot, d *rhumb.Range) {
	// The replica of a copy that is gone already promises nothing more.
	if !s.gone && s.r.Epoch() > d.Epoch {
		return
	}
	s.desc.Store(d)
	// A copy that is being discarded, or is removed already, finds the new record when that is done.
	if s.gone {
		return
	}
	// A primary that was deposed while it was cut off may learn both at once. Its callers get their answers first.
	if st := s.r.State(); st == replica.Primary || st == replica.Activating {
		s.r.Describe(d)
		h.markDirty(s)
		h.enqueue(stepDownEvent{s})
		return
	}
	h.floors[s.id] = max(h.floors[s.id], s.r.Epoch(), d.Epoch)
	batches, err := h.dropRange(s)
	if err != nil {
		// As in applyCommit: memory and disk may differ now. The slot has the newest record of a range that has left this node, so no
		// later record would make the node try again; its next start does.
		h.cfg.Fatal(rhumb.Wrap(opMoveAway, err))
		return
	}
	h.log.Info("removing the copy of a range: the metadata places it elsewhere", "range", s.id.String(), "version", d.Version, "replicas", d.Replicas)
	s.gone = true
	s.read.Store(nil)
	// Copies of ranges that were merged into this one wait to be united with it.
	for _, o := range h.mergedIn(s, d.LastSlot()) {
		dropRangesEvent{[]rhumb.RangeID{o.id}}.applyTo(h)
	}
	for _, ev := range h.takeHeld(s) {
		ev.answer(rhumb.Outcome{}, &rhumb.Error{
			Op: "host.Host.Propose", Kind: rhumb.NotPrimary, Range: s.id, Node: d.Primary, Msg: "the node has no copy of the range any more",
		})
	}
	// The count keeps the engine open until the disk is done.
	h.reads.Add(1)
	h.rt.Disk(true, func() {
		for _, b := range batches {
			if err := b.Sync(); err != nil {
				h.cfg.Fatal(rhumb.Wrap(opMoveAway, err))
			}
		}
		// The drop hides the data. Its space is freed now and not whenever compactions reach it.
		if err := s.store.Reclaim(context.Background(), s.id, s.last); err != nil {
			h.log.Warn("the space of a removed copy is freed by later compactions only", "range", s.id.String(), "err", err)
		}
	}, func() {
		h.reads.Add(-1)
		h.post(movedAwayEvent{s})
	})
}

// applyTo forgets the slot, or starts a new, empty copy if the metadata has placed one here meanwhile.
func (ev movedAwayEvent) applyTo(h *Host) {
	h.forgetSlot(ev.s)
	h.m.removed.Inc()
	if d := ev.s.desc.Load(); d != nil && d.IsReplica(h.cfg.Self.Node) {
		h.updateRanges([]*rhumb.Range{d})
	}
}

// forgetSlot takes a slot whose copy is gone out of the host. Every way in which a slot ends comes here, so that neither the index of homes, nor the
// list of copies that are wanted, nor the budgets refer to a slot that is gone. Another slot may have taken its place before.
func (h *Host) forgetSlot(s *slot) {
	h.forfeit(s)
	if current, ok := h.findSlot(s.id); ok && current == s {
		h.slots.Delete(s.id)
		h.noteLag(s)
	}
	h.allSlots = slices.DeleteFunc(slices.Clone(h.allSlots), func(o *slot) bool { return o == s })
	h.indexSlots()
	h.settleUnborn()
	if s.quarantined {
		h.m.quarantined.Dec()
	}
	h.releaseWeight(s)
}

// addCopy starts the empty replica of a range that the metadata has placed on this node.
func (h *Host) addCopy(d *rhumb.Range) *slot {
	id, floor := d.ID, h.floors[d.ID]
	h.placeBeside(id)
	// Nothing is read, so nothing fails.
	s, _ := h.addSlot(storage.RangeState{Range: id, LastSlot: h.freeLast(nil, d), Promised: floor}, false)
	if floor > 0 {
		// The promise of the copy that was here before holds for grants too.
		h.leases.excludeRange(id, floor, rhumb.NoNode)
	}
	return s
}

// resumeSlot puts a slot into service that was set aside, or that has just been made, and acts on the newest record: the
// metadata may have removed the replica meanwhile.
func (h *Host) resumeSlot(s *slot) {
	s.gone = false
	switch d := s.desc.Load(); {
	case d == nil:
	case d.IsReplica(h.cfg.Self.Node):
		h.setRecord(s, d)
	default:
		h.moveAway(s, d)
	}
}
