package host

import (
	"context"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

const opDiscard rhumb.Op = "host.Host.Discard"

// Discard replaces this node's quarantined copy of a range by an empty one. It first sets the
// tables with the copy's data aside (storage.Store.KeepDiscarded), then drops the copy durably. The
// empty replica asks metadata to forget the quarantine, and copies the log as far as it reaches.
// Discard returns once the empty replica exists.
//
// Conflict means that the copy is not quarantined, or that the range's record counts it as in sync.
// With acceptLoss the latter is allowed if no member of the in-sync set is intact. A crash at any
// moment leaves either the damaged copy, quarantined, or an empty one.
func (h *Host) Discard(ctx context.Context, id rhumb.RangeID, acceptLoss bool) error {
	answer := make(chan error, 1)
	if !h.post(discardEvent{id, acceptLoss, answer}) {
		return errStopping(opDiscard)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return rhumb.WrapKind(opDiscard, rhumb.DeadlineExceeded, ctx.Err())
	}
}

// discardEvent sets the data of a copy aside, dropEvent drops the copy, and discardedEvent puts the
// empty replica in its place once the drop is durable. Three events, because the disk is used
// between them, outside the pass.
type (
	discardEvent struct {
		id         rhumb.RangeID
		acceptLoss bool
		// answer has room for one error, so the pass never blocks on it.
		answer chan<- error
	}
	dropEvent struct {
		discardEvent
		s *slot
	}
	discardedEvent struct {
		s      *slot
		floor  rhumb.Epoch
		answer chan<- error
	}
)

// checkDiscard returns why a copy must not be discarded, or nil. d is the range's record, or nil
// before the first.
//
// The record is at least as new as the copy's last word to metadata: while it names the copy as
// quarantined, nobody adds the copy to the in-sync set, so a copy that the record excludes from the
// set stays excluded.
func checkDiscard(self rhumb.NodeID, state replica.State, d *rhumb.Range, acceptLoss bool) error {
	fault := func(kind rhumb.Kind, format string, args ...any) error {
		err := rhumb.Ef(opDiscard, kind, format, args...)
		err.Node = self
		if d != nil {
			err.Range = d.ID
		}
		return err
	}
	switch {
	case d == nil:
		return fault(rhumb.Unavailable, "the node has not received the range's record yet; retry")
	case state != replica.Quarantined && d.IsQuarantined(self) && d.IsInSync(self):
		// The copy was discarded before and waits for its readmission, so a repeated request
		// succeeds.
		return nil
	case state != replica.Quarantined:
		return fault(rhumb.Conflict, "the copy on %s is not quarantined (it is %s): only a damaged copy can be discarded", self, state)
	case !d.IsQuarantined(self):
		// Until metadata knows of the quarantine, it may elect this copy or count it as in sync.
		return fault(rhumb.Unavailable, "metadata has not recorded the quarantine yet; retry")
	case !d.IsInSync(self):
		return nil
	}
	intact := slices.DeleteFunc(slices.Clone(d.InSync), d.IsQuarantined)
	switch {
	case len(intact) > 0:
		return fault(rhumb.Conflict, "the copy on %s still counts as in sync, and the in-sync copies on %s do not suffice without it; wait until another replica is in sync, or start the node of one", self, rhumb.NodeList(intact))
	case !acceptLoss:
		return fault(rhumb.Conflict, "no intact copy of the range is in sync, so discarding this one may lose acknowledged writes; `rhumb unsafe-recover range` shows the copies that are left, and accepts the loss")
	}
	return nil
}

// applyTo takes the copy out of service and sets its data aside.
func (ev discardEvent) applyTo(h *Host) {
	s, ok := h.findSlot(ev.id)
	if !ok {
		ev.answer <- &rhumb.Error{Op: opDiscard, Kind: rhumb.NotFound, Range: ev.id, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"}
		return
	}
	// Two discards at once would drop the new, empty copy.
	if s.gone {
		ev.answer <- rhumb.E(opDiscard, rhumb.Conflict, "the copy is already being discarded")
		return
	}
	d := s.desc.Load()
	if err := checkDiscard(h.cfg.Self.Node, s.r.State(), d, ev.acceptLoss); err != nil || s.r.State() != replica.Quarantined {
		ev.answer <- err
		return
	}
	// From here on the pass carries out nothing for this slot, so its data does not change while it
	// is set aside.
	s.gone = true
	// The count keeps the engine open until the disk is done.
	h.reads.Add(1)
	h.rt.Disk(true, func() {
		if dir, err := s.store.KeepDiscarded(s.id); err != nil {
			h.log.Warn("setting the damaged copy aside failed", "range", s.id.String(), "err", err)
		} else {
			h.log.Info("set the damaged copy aside", "range", s.id.String(), "dir", dir)
		}
	}, func() {
		h.reads.Add(-1)
		if !h.post(dropEvent{ev, s}) {
			ev.answer <- errStopping(opDiscard)
		}
	})
}

// applyTo drops the copy from its store.
func (ev dropEvent) applyTo(h *Host) {
	s, d := ev.s, ev.s.desc.Load()
	// The record may have changed while the copy was set aside.
	if err := checkDiscard(h.cfg.Self.Node, s.r.State(), d, ev.acceptLoss); err != nil {
		h.resumeSlot(s)
		ev.answer <- err
		return
	}
	// The empty copy must not act in an epoch that the dropped copy had promised to leave.
	floor := max(s.r.Epoch(), d.Epoch)
	batches, err := h.dropRange(s)
	if err != nil {
		h.resumeSlot(s)
		ev.answer <- rhumb.Wrap(opDiscard, err)
		return
	}
	h.log.Warn("discarding a damaged copy", "range", s.id.String(), "why", s.r.Status().Quarantine, "accept_loss", ev.acceptLoss)
	// The count keeps the engine open until the disk is done.
	h.reads.Add(1)
	h.rt.Disk(true, func() {
		for _, b := range batches {
			if err := b.Sync(); err != nil {
				h.cfg.Fatal(rhumb.Wrap(opDiscard, err))
			}
		}
		// The drop already hides the old data, so a failure here only leaves damaged blocks in the
		// file.
		if err := s.store.CutOut(s.id, s.last); err != nil {
			h.log.Warn("cutting the damage out of its table failed", "range", s.id.String(), "err", err)
		}
	}, func() {
		h.reads.Add(-1)
		if !h.post(discardedEvent{s, floor, ev.answer}) {
			ev.answer <- errStopping(opDiscard)
		}
	})
}

// dropRange removes a range from its store and returns the applied batches, which must be synced.
// If the state of the range could not be read, the store does not know the range: creating it first
// deletes its remains.
func (h *Host) dropRange(s *slot) (batches []*storage.Batch, err error) {
	apply := func(do func(b *storage.Batch)) {
		if err != nil {
			return
		}
		b := s.store.NewBatch()
		do(b)
		if err = b.Apply(); err != nil {
			b.Drop()
			return
		}
		batches = append(batches, b)
	}
	if !s.made {
		apply(func(b *storage.Batch) { b.CreateRange(storage.RangeState{Range: s.id, LastSlot: s.last}) })
		s.made = err == nil
	}
	apply(func(b *storage.Batch) { b.DropRange(s.id) })
	s.made = s.made && err != nil
	return batches, err
}

// applyTo starts the empty replica.
func (ev discardedEvent) applyTo(h *Host) {
	fresh, err := h.addSlot(storage.RangeState{Range: ev.s.id, LastSlot: ev.s.last, Promised: ev.floor}, false)
	if err != nil {
		ev.answer <- rhumb.Wrap(opDiscard, err)
		return
	}
	h.m.discarded.Inc()
	h.forgetSlot(ev.s)
	// The new slot's promise holds for grants too.
	h.leases.excludeRange(fresh.id, ev.floor, rhumb.NoNode)
	if d := ev.s.desc.Load(); d != nil {
		h.setRecord(fresh, d)
	}
	ev.answer <- nil
	// The metadata may have removed the replica meanwhile.
	if d := ev.s.desc.Load(); d != nil && !d.IsReplica(h.cfg.Self.Node) {
		h.moveAway(fresh, d)
	}
}
