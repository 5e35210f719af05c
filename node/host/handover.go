package host

import (
	"context"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// takeOverWait bounds how long a request waits for a range that is being handed over. After replica.Config.HandoverWait
// the old primary asks for an election, and this leaves time for that. The caller retries after it.
const takeOverWait = time.Second

// slotRole is the part of a slot that requests of clients look at without the pass.
type slotRole struct {
	// primary is the epoch in which the replica is primary, or 0.
	primary rhumb.Epoch
	// handed is the epoch that the replica handed over to the node to, 0 if there is none, until metadata shows it.
	handed rhumb.Epoch
	to     rhumb.NodeID
}

// awaited lists the requests that wait until this node is primary of a range.
type awaited struct {
	mu    sync.Mutex
	calls []awaitedCall
}

// awaitedCall waits until the replica is primary of an epoch of at least epoch and, if read is set, serves reads.
type awaitedCall struct {
	epoch rhumb.Epoch
	read  bool
	done  chan struct{}
}

// noteRole publishes the role of a slot and wakes the requests that wait for it. carryOut calls it after the read
// state is published.
func (h *Host) noteRole(s *slot) {
	var now slotRole
	if s.r.State() == replica.Primary {
		now.primary = s.r.Epoch()
	}
	if epoch, to, ok := s.r.HandingOver(); ok {
		now.handed, now.to = epoch, to
	}
	old := s.role.Load()
	if old == nil || *old != now {
		if now.handed != 0 && (old == nil || old.handed != now.handed) {
			h.m.handedOver.Inc()
			h.log.Info("handed over a range", "range", s.id.String(), "epoch", uint64(now.handed), "to", now.to)
		}
		s.role.Store(&now)
	}
	s.awaited.mu.Lock()
	defer s.awaited.mu.Unlock()
	kept := s.awaited.calls[:0]
	for _, c := range s.awaited.calls {
		if s.serves(c.epoch, c.read) {
			close(c.done)
		} else {
			kept = append(kept, c)
		}
	}
	clear(s.awaited.calls[len(kept):])
	s.awaited.calls = kept
}

// serves reports whether the replica is primary of an epoch of at least epoch and, if read is set, serves reads.
func (s *slot) serves(epoch rhumb.Epoch, read bool) bool {
	role := s.role.Load()
	return role != nil && role.primary >= max(epoch, 1) && (!read || s.read.Load() != nil)
}

// PrimaryEpoch returns the epoch in which this node is primary of the range, or 0. Like the other functions here it takes any slot of the
// range, as requests name them. The metadata may show it later: a
// handover is recorded after the new primary has begun to serve.
func (h *Host) PrimaryEpoch(id rhumb.RangeID) rhumb.Epoch {
	if s, ok := h.homeSlot(id); ok {
		if role := s.role.Load(); role != nil {
			return role.primary
		}
	}
	return 0
}

// HandedOver returns the epoch that this node handed over, and the new primary, until the metadata shows it.
func (h *Host) HandedOver(id rhumb.RangeID) (epoch rhumb.Epoch, to rhumb.NodeID, ok bool) {
	if s, found := h.homeSlot(id); found {
		if role := s.role.Load(); role != nil && role.handed != 0 {
			return role.handed, role.to, true
		}
	}
	return 0, rhumb.NoNode, false
}

// AwaitPrimary waits until this node is primary of the range in an epoch of at least epoch and, if read is set, serves
// reads. It fails after takeOverWait.
func (h *Host) AwaitPrimary(ctx context.Context, id rhumb.RangeID, epoch rhumb.Epoch, read bool) error {
	const op rhumb.Op = "host.Host.AwaitPrimary"
	s, ok := h.homeSlot(id)
	if !ok {
		return h.notPrimary(op, id)
	}
	ctx, cancel := h.rt.WithTimeout(ctx, takeOverWait)
	defer cancel()
	c := awaitedCall{epoch, read, make(chan struct{})}
	s.awaited.mu.Lock()
	// Under the lock, so that noteRole does not pass between the check and the entry in the list.
	if s.serves(epoch, read) {
		s.awaited.mu.Unlock()
		return nil
	}
	s.awaited.calls = append(s.awaited.calls, c)
	s.awaited.mu.Unlock()
	if h.rt.Await(c.done, ctx.Done(), h.ctx.Done()) == 0 {
		return nil
	}
	s.awaited.drop(c.done)
	h.m.handoverTimeouts.Inc()
	return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: id, Node: h.cfg.Self.Node, Msg: "the range is being handed over to this node, which has not begun to serve it yet; retry"}
}

// drop removes a call that does not wait any more.
func (a *awaited) drop(done chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.calls {
		if a.calls[i].done == done {
			a.calls = append(a.calls[:i], a.calls[i+1:]...)
			return
		}
	}
}
