package host

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// leadMax is how far the hybrid clock may be ahead of the wall clock before this node hands its primaries over: its peers
// refuse entries beyond rhumb.ClockAheadMax.
const leadMax = rhumb.ClockAheadMax * 8 / 10

// fitness is why this node, or a part of it, must not be primary. It copies and reads all the same.
type fitness struct {
	clock string // why no range here may have its primary on this node; "" when it may
	full  map[*storage.Store]bool
}

func (f *fitness) of(s *slot) bool { return f.clock == "" && !f.full[s.store] }

func (f *fitness) equal(g *fitness) bool {
	if (f.clock == "") != (g.clock == "") || len(f.full) != len(g.full) {
		return false
	}
	for s := range f.full {
		if !g.full[s] {
			return false
		}
	}
	return true
}

// why returns the reason for people, and "" when there is none.
func (f *fitness) why() string {
	if f.clock != "" {
		return f.clock
	}
	for s := range f.full {
		return "disk_full: " + s.Dir() + " has no room for writes"
	}
	return ""
}

// Unfit returns why this node hands its primaries over and takes none; "" when it may have primaries.
func (h *Host) Unfit() string { return h.fit.Load().why() }

// lookAtFitness measures how fit the node is, and tells the replicas when that changed. The ticker calls it.
func (h *Host) lookAtFitness() {
	now := &fitness{clock: h.clockFault()}
	for _, s := range h.cfg.Engine.Stores() {
		if rhumb.KindOf(s.Writable()) == rhumb.DiskFull {
			if now.full == nil {
				now.full = make(map[*storage.Store]bool)
			}
			now.full[s] = true
		}
	}
	before := h.fit.Swap(now)
	if before.equal(now) {
		return
	}
	if why := now.why(); why != "" {
		h.m.unfit.Set(1)
		h.log.Warn("this node gives up its primaries and takes none until this is mended", "why", why)
	} else {
		h.m.unfit.Set(0)
		h.log.Info("this node may have primaries again")
	}
	h.postAway(peersEvent{func(h *Host) {
		for _, s := range h.all {
			s.r.SetUnfit(!h.fit.Load().of(s))
			h.touch(s)
		}
	}})
	if h.cfg.FitnessChanged != nil {
		h.cfg.FitnessChanged()
	}
}

// clockFault says what is wrong with this node's clocks, and "" when nothing is (ruling 19).
func (h *Host) clockFault() string {
	ahead, wrong := h.leases.clockOff()
	h.m.clockAhead.Set(ahead.Seconds())
	h.cfg.Clock.Distrust(wrong)
	if wrong {
		side := "ahead of"
		if ahead < 0 {
			side = "behind"
		}
		return fmt.Sprintf("its wall clock is %v %s the median of the cluster; set it right", ahead.Abs().Round(time.Millisecond), side)
	}
	if lead := h.cfg.Clock.Stats().Lead; lead > leadMax {
		return fmt.Sprintf("its hybrid clock is %v ahead of its wall clock, which was ahead before; it waits for it", lead.Round(time.Second))
	}
	return ""
}

// clockOff returns how far this node's wall clock is ahead of the median of all, and whether it is wrong.
func (l *Leases) clockOff() (ahead time.Duration, wrong bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.ClockOff()
}

// setWallLocked tells the pairs the wall clock.
func (l *Leases) setWallLocked() { l.pairs.SetWall(time.Duration(l.clock.Wall().UnixNano())) }
