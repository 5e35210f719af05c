package host

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// RangeStatus describes one range on this node.
type RangeStatus struct {
	replica.Status
	Size storage.RangeSize
}

// askEvent runs a query in the pass, which owns the replicas.
type askEvent struct{ ask func(h *Host) }

func (ev askEvent) applyTo(h *Host) { ev.ask(h) }

// Status returns the status of one range, or NotFound if this node holds no copy.
func (h *Host) Status(ctx context.Context, id rhumb.RangeID) (RangeStatus, error) {
	const op rhumb.Op = "host.Host.Status"
	s, ok := h.findSlot(id)
	if !ok {
		return RangeStatus{}, &rhumb.Error{Op: op, Kind: rhumb.NotFound, Range: id, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"}
	}
	answer := make(chan replica.Status, 1)
	if !h.post(askEvent{func(*Host) { answer <- s.r.Status() }}) {
		return RangeStatus{}, errStopping(op)
	}
	size, _ := s.store.Size(id)
	select {
	case st := <-answer:
		return RangeStatus{st, size}, nil
	case <-ctx.Done():
		return RangeStatus{}, rhumb.WrapKind(op, rhumb.DeadlineExceeded, ctx.Err())
	}
}

// Summary returns the number of replicas on this node by state.
func (h *Host) Summary(ctx context.Context) (map[replica.State]int, error) {
	answer := make(chan map[replica.State]int, 1)
	posted := h.post(askEvent{func(h *Host) {
		count := map[replica.State]int{}
		for _, s := range h.allSlots {
			count[s.r.State()]++
		}
		answer <- count
	}})
	if !posted {
		return nil, errStopping("host.Host.Summary")
	}
	select {
	case c := <-answer:
		return c, nil
	case <-ctx.Done():
		return nil, rhumb.WrapKind("host.Host.Summary", rhumb.DeadlineExceeded, ctx.Err())
	}
}

// Serves reports whether this node answers reads of a range: it is the primary, and its epoch has
// begun.
func (h *Host) Serves(id rhumb.RangeID) bool {
	s, ok := h.findSlot(id)
	return ok && s.read.Load() != nil
}

// Serving returns the number of ranges that this node serves as primary.
func (h *Host) Serving() int {
	n := 0
	h.eachSlot(func(s *slot) {
		if s.read.Load() != nil {
			n++
		}
	})
	return n
}

// Loads returns, for each class, the size in bytes of the data of the ranges whose primary is this
// node.
func (h *Host) Loads() map[rhumb.ClassID]int64 {
	loads := map[rhumb.ClassID]int64{}
	h.eachSlot(func(s *slot) {
		if d := s.desc.Load(); d != nil && d.Primary == h.cfg.Self.Node {
			size, _ := s.store.Size(s.id)
			loads[d.Class] += size.Data
		}
	})
	return loads
}

// RangeSize returns what a copy of a range holds, and how much was ever written to it. It is zero if the node holds
// no copy.
func (h *Host) RangeSize(id rhumb.RangeID) storage.RangeSize {
	s, ok := h.findSlot(id)
	if !ok {
		return storage.RangeSize{}
	}
	size, _ := s.store.Size(id)
	return size
}

// DataBytes returns the size of a range's data on this node, or 0 if it holds no copy.
func (h *Host) DataBytes(id rhumb.RangeID) int64 {
	s, ok := h.findSlot(id)
	if !ok {
		return 0
	}
	size, _ := s.store.Size(id)
	return size.Data
}
