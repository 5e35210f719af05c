package host

import (
	"context"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

const opDiscard rhumb.Op = "host.Host.Discard"

// Discard sets aside what tables hold of this node's quarantined copy of a range (storage.Store.KeepDiscarded), drops the copy,
// durably, and begins an empty one in its place. The empty replica
// asks metadata to forget the quarantine, and copies the log as far as it reaches. Discard returns once the empty replica
// is there.
//
// Conflict says that the copy is not quarantined, or that the range's record counts it as in sync; with acceptLoss that
// is allowed where no member of the in-sync set is intact. A crash at any moment leaves the damaged copy, quarantined, or
// an empty one.
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

// discardEvent has what a copy holds set aside, dropEvent drops the copy, and discardedEvent puts the empty replica in its place
// once the drop is durable.
type (
	discardEvent struct {
		id         rhumb.RangeID
		acceptLoss bool
		answer     chan<- error // has room for one
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

// checkDiscard returns why a copy must not be discarded, or nil. d is the range's record, nil before the first.
//
// The record is not older than the copy's last word to metadata: while it names the copy as quarantined nobody takes the
// copy into the in-sync set, so a copy that the record has outside of it stays outside.
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
		return fault(rhumb.Unavailable, "the node has not heard of the range's record yet; retry")
	case state != replica.Quarantined && d.IsQuarantined(self) && d.IsInSync(self):
		return nil // it was discarded before, and waits for its readmission
	case state != replica.Quarantined:
		return fault(rhumb.Conflict, "the copy on %s is not quarantined (it is %s): only a damaged copy can be discarded", self, state)
	case !d.IsQuarantined(self):
		return fault(rhumb.Unavailable, "metadata has not noted the quarantine yet; retry")
	case !d.IsInSync(self):
		return nil
	}
	intact := slices.DeleteFunc(slices.Clone(d.InSync), d.IsQuarantined)
	switch {
	case len(intact) > 0:
		return fault(rhumb.Conflict, "the copy on %s still counts as in sync, and %v must not go on without it: wait until another replica is in sync, or start the node of one", self, intact)
	case !acceptLoss:
		return fault(rhumb.Conflict, "no intact copy of the range is in sync: to discard this one may lose acknowledged writes; `rhumb unsafe-recover range` shows what is left, and accepts the loss")
	}
	return nil
}

func (ev discardEvent) apply(h *Host) {
	s, ok := h.slot(ev.id)
	if !ok {
		ev.answer <- &rhumb.Error{Op: opDiscard, Kind: rhumb.NotFound, Range: ev.id, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"}
		return
	}
	if s.gone {
		ev.answer <- rhumb.E(opDiscard, rhumb.Conflict, "the copy is being discarded already")
		return
	}
	d := s.desc.Load()
	if err := checkDiscard(h.cfg.Self.Node, s.r.State(), d, ev.acceptLoss); err != nil || s.r.State() != replica.Quarantined {
		ev.answer <- err
		return
	}
	s.gone = true
	h.reads.Add(1) // keeps the engine open
	h.rt.Disk(true, func() {
		if dir, err := s.store.KeepDiscarded(s.id); err != nil {
			h.log.Warn("the damaged copy is not set aside", "range", s.id.String(), "err", err)
		} else {
			h.log.Info("the damaged copy is set aside", "range", s.id.String(), "dir", dir)
		}
	}, func() {
		h.reads.Add(-1)
		if !h.post(dropEvent{ev, s}) {
			ev.answer <- errStopping(opDiscard)
		}
	})
}

func (ev dropEvent) apply(h *Host) {
	s, d := ev.s, ev.s.desc.Load()
	if err := checkDiscard(h.cfg.Self.Node, s.r.State(), d, ev.acceptLoss); err != nil { // the record may have changed meanwhile
		s.gone = false
		ev.answer <- err
		return
	}
	floor := max(s.r.Epoch(), d.Epoch)
	batches, err := h.dropRange(s)
	if err != nil {
		s.gone = false
		ev.answer <- rhumb.Wrap(opDiscard, err)
		return
	}
	h.log.Warn("a damaged copy is discarded", "range", s.id.String(), "why", s.r.Status().Quarantine, "accept_loss", ev.acceptLoss)
	h.reads.Add(1) // keeps the engine open
	h.rt.Disk(true, func() {
		for _, b := range batches {
			if err := b.Sync(); err != nil {
				h.cfg.Fatal(rhumb.Wrap(opDiscard, err))
			}
		}
		if err := s.store.CutOut(s.id); err != nil { // the old data is hidden all the same
			h.log.Warn("the damage was not cut out of its table", "range", s.id.String(), "err", err)
		}
	}, func() {
		h.reads.Add(-1)
		if !h.post(discardedEvent{s, floor, ev.answer}) {
			ev.answer <- errStopping(opDiscard)
		}
	})
}

// dropRange takes a range out of its store, and returns the applied batches, which have to be synced. A range whose state
// could not be read is not in the store: to make it deletes what is left of it.
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
		apply(func(b *storage.Batch) { b.CreateRange(storage.RangeState{Range: s.id}) })
		s.made = err == nil
	}
	apply(func(b *storage.Batch) { b.DropRange(s.id) })
	s.made = s.made && err != nil
	return batches, err
}

func (ev discardedEvent) apply(h *Host) {
	fresh, err := h.addSlot(storage.RangeState{Range: ev.s.id, Promised: ev.floor}, false)
	if err != nil {
		ev.answer <- rhumb.Wrap(opDiscard, err)
		return
	}
	h.all = slices.DeleteFunc(h.all, func(s *slot) bool { return s == ev.s })
	if ev.s.quarantined {
		h.m.quarantined.Dec()
	}
	h.m.discarded.Inc()
	h.leases.exclude(fresh.id, ev.floor, rhumb.NoNode)
	if d := ev.s.desc.Load(); d != nil {
		h.describe(fresh, d)
	}
	ev.answer <- nil
}
