package host

import (
	"context"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/digest"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Host implements digest.Host with the methods below.
var _ digest.Host = (*Host)(nil)

// awaitCommittedEvery is how often a replica that is asked for a digest looks at its commit position. A
// secondary usually has it at once, or with the next message of its primary.
const awaitCommittedEvery = 20 * time.Millisecond

// Primaries returns the ranges that this node serves as primary.
func (h *Host) Primaries() (ids []rhumb.RangeID) {
	h.eachSlot(func(s *slot) {
		// The read state exists exactly while the replica serves as primary.
		if s.read.Load() != nil {
			ids = append(ids, s.id)
		}
	})
	slices.SortFunc(ids, rhumb.RangeID.Compare)
	return ids
}

// DigestPoint returns the position up to which the primary of a range has committed. A node that is elected and does
// not serve yet is refused: its commit position is a lower bound, and entries after it may still be adopted.
func (h *Host) DigestPoint(ctx context.Context, id rhumb.RangeID) (p digest.Point, err error) {
	const op rhumb.Op = "host.Host.DigestPoint"
	s, ok := h.findSlot(id)
	if !ok {
		return p, h.notPrimary(op, id)
	}
	settings, known := h.cfg.Settings(id)
	asked := h.ask(op, ctx, func(h *Host) {
		d := s.desc.Load()
		at, seq, serves := s.r.Readable()
		if s.gone || !known || d == nil || !serves || s.r.State() != replica.Primary {
			err = h.notPrimary(op, id)
			return
		}
		// The timestamp of the last committed entry, and not the clock: an idle range has a point, too.
		p = digest.Point{Question: digest.Question{Range: id, Seq: seq, At: at}, Record: d, MinInSync: settings.MinInSync}
	})
	if asked != nil {
		return p, asked
	}
	return p, err
}

// AwaitCommitted waits until the replica of this node has committed a position. It fails at once if the
// replica is not intact.
func (h *Host) AwaitCommitted(ctx context.Context, id rhumb.RangeID, seq rhumb.Seq) error {
	const op rhumb.Op = "host.Host.AwaitCommitted"
	for {
		// Looked up again each time: another slot takes the place of a copy that is replaced meanwhile.
		s, ok := h.findSlot(id)
		if !ok {
			return &rhumb.Error{Op: op, Kind: rhumb.NotFound, Range: id, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"}
		}
		intact, have := true, rhumb.Seq(0)
		err := h.ask(op, ctx, func(h *Host) {
			d := s.desc.Load()
			intact = !s.gone && s.made && s.r.State() != replica.Quarantined && (d == nil || !d.IsQuarantined(h.cfg.Self.Node))
			_, have, _ = s.r.Readable()
		})
		switch {
		case err != nil:
			return err
		case !intact:
			return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: id, Node: h.cfg.Self.Node, Msg: "the copy on this node is not intact, or is being replaced"}
		case have >= seq:
			return nil
		}
		select {
		case <-time.After(awaitCommittedEvery):
		case <-ctx.Done():
			return rhumb.Ef(op, rhumb.Unavailable, "the copy of range %s on %s is committed up to %d, and %d is needed", id, h.cfg.Self.Node, have, seq)
		}
	}
}

// Distrust quarantines the replica of this node, because the primary found twice that its records differ
// from those of the trusted replicas. from is the node that says so: only the primary in the record may.
//
// The minimum of in-sync copies is checked here again, on this node's own copy of the record, so that two
// replicas that are distrusted at a time do not leave the range without one. The bound is that of mayHeal: a copy
// that could not be replaced afterwards is not quarantined either, because a quarantined replica acknowledges
// nothing, and a range at its minimum would stop.
func (h *Host) Distrust(ctx context.Context, id rhumb.RangeID, from rhumb.NodeID, why string) (err error) {
	const op rhumb.Op = "host.Host.Distrust"
	s, ok := h.findSlot(id)
	settings, known := h.cfg.Settings(id)
	if !ok || !known {
		return &rhumb.Error{Op: op, Kind: rhumb.NotFound, Range: id, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"}
	}
	asked := h.ask(op, ctx, func(h *Host) {
		d := s.desc.Load()
		refused := func(why string) error {
			return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: id, Node: h.cfg.Self.Node, Msg: why}
		}
		switch {
		case s.gone || d == nil || !d.IsReplica(h.cfg.Self.Node):
			err = refused("the copy is being replaced or discarded already")
		case d.Primary != from:
			err = refused("only the primary of the range may distrust a copy, and that is " + d.Primary.String())
		case s.r.State() == replica.Quarantined:
			// Nothing is left to do.
		case intactOthers(d, h.cfg.Self.Node) < max(settings.MinInSync, 1):
			err = refused("too few other copies are in sync to do without this one")
		default:
			h.m.distrusted.Inc()
			s.r.Damaged(why)
			h.markDirty(s)
		}
	})
	if asked != nil {
		return asked
	}
	return err
}

// intactOthers counts the in-sync members other than one node that are not quarantined.
func intactOthers(d *rhumb.Range, self rhumb.NodeID) (n int) {
	for _, m := range d.InSync {
		if m != self && !d.IsQuarantined(m) {
			n++
		}
	}
	return n
}
