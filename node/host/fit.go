package host

import (
	"fmt"
	"maps"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// leadMax is how far the hybrid clock may be ahead of the wall clock before this node hands its
// primaries over. It is below rhumb.ClockAheadMax, beyond which peers reject entries.
const leadMax = rhumb.ClockAheadMax * 8 / 10

// fitness states why this node, or some of its stores, must not have primaries. The node copies and
// reads nevertheless. A fitness is immutable once it is published.
type fitness struct {
	// clock is why no range may have its primary on this node, or "" if it may.
	clock string
	// speed is why none may because this node is slow, or "".
	speed string
	// full holds the stores without room for writes.
	full map[*storage.Store]bool
	// unreadable holds the stores whose disks refuse reads.
	unreadable map[*storage.Store]bool
}

// allowsPrimary reports whether a slot's replica may be primary.
func (f *fitness) allowsPrimary(s *slot) bool {
	return f.clock == "" && f.speed == "" && !f.full[s.store] && !f.unreadable[s.store]
}

// equal reports whether f and g allow the same primaries. The text of the reason does not count,
// since it contains a measured offset that changes all the time.
func (f *fitness) equal(g *fitness) bool {
	return (f.clock == "") == (g.clock == "") && f.speed == g.speed && maps.Equal(f.full, g.full) && maps.Equal(f.unreadable, g.unreadable)
}

// reason returns the reason for operators, or "" if there is none.
func (f *fitness) reason() string {
	if f.clock != "" {
		return f.clock
	}
	if f.speed != "" {
		return f.speed
	}
	for s := range f.unreadable {
		return readFault(s)
	}
	for s := range f.full {
		return "disk_full: " + s.Dir() + " has no room for writes"
	}
	return ""
}

// Unfit returns why this node hands its primaries over and accepts none, or "" if it may have
// primaries.
func (h *Host) Unfit() string { return h.fit.Load().reason() }

// Full reports whether a store of this node has no room for writes, so that copies of ranges may not arrive. Plans then choose other nodes.
func (h *Host) Full() bool { return len(h.fit.Load().full) > 0 }

// updateFitness measures the fitness of the node and informs the replicas of a change. The ticker
// calls it.
func (h *Host) updateFitness() {
	now := &fitness{clock: h.clockFault(), speed: h.speedFault(), unreadable: *h.unreadable.Load()}
	for _, s := range h.cfg.Engine.Stores() {
		if rhumb.KindOf(s.Writable()) == rhumb.DiskFull {
			if now.full == nil {
				now.full = make(map[*storage.Store]bool)
			}
			now.full[s] = true
		}
	}
	// Published before the replicas are informed: a slot that is added meanwhile reads the new
	// value.
	before := h.fit.Swap(now)
	if before.equal(now) {
		return
	}
	if why := now.reason(); why != "" {
		h.m.unfit.Set(1)
		h.log.Warn("this node yields its primaries and accepts none until this is fixed", "why", why)
	} else {
		h.m.unfit.Set(0)
		h.log.Info("this node may have primaries again")
	}
	h.postAsync(peersEvent{func(h *Host) {
		for _, s := range h.allSlots {
			s.r.SetUnfit(!h.fit.Load().allowsPrimary(s))
			h.markDirty(s)
		}
	}})
	if h.cfg.FitnessChanged != nil {
		h.cfg.FitnessChanged()
	}
}

// clockFault returns the fault of this node's clocks, or "" if there is none (docs/replication.md#rule-clocks).
func (h *Host) clockFault() string {
	ahead, wrong, _ := h.leases.ClockOff()
	h.m.clockAhead.Set(ahead.Seconds())
	// A distrusted wall clock does not raise the durable ceiling
	// (docs/replication.md#rule-ceiling).
	h.cfg.Clock.Distrust(wrong)
	if wrong {
		side := "ahead of"
		if ahead < 0 {
			side = "behind"
		}
		return fmt.Sprintf("its wall clock is %v %s the median of the cluster; correct the clock", ahead.Abs().Round(time.Millisecond), side)
	}
	// The wall clock may be right again while the hybrid clock is still ahead from before.
	if lead := h.cfg.Clock.Stats().Lead; lead > leadMax {
		return fmt.Sprintf("its hybrid clock is %v ahead of its wall clock, because the wall clock was ahead before; it waits until the wall clock catches up", lead.Round(time.Second))
	}
	return ""
}

// ClockOff returns how far this node's wall clock is ahead of the median of all, and whether it is wrong, and the peers in contact whose
// clocks are right.
func (l *Leases) ClockOff() (ahead time.Duration, wrong bool, right []rhumb.NodeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ahead, wrong = l.pairs.ClockOff()
	return ahead, wrong, l.pairs.RightClocks()
}

// setWallLocked passes the wall clock to the pairs. l.mu must be held.
func (l *Leases) setWallLocked() { l.pairs.SetWall(time.Duration(l.clock.Wall().UnixNano())) }
