package hlc

import (
	"sync/atomic"
	"time"
)

// counters are counted on rare paths only, so that they cost Now nothing.
type counters struct {
	refused, peerAheadMax   atomic.Int64
	wallBack, wallBackMax   atomic.Int64
	persists, persistErrors atomic.Int64
	exhausted               atomic.Int64
}

// Stats is what a clock has seen since it was made. Counts only grow.
type Stats struct {
	// Refused counts timestamps that Update refused because they lay too far ahead.
	Refused int64
	// PeerAheadMax is the greatest lead over the wall clock among the timestamps that Update accepted; 0 if none led.
	PeerAheadMax time.Duration
	// Lead is how far the clock is ahead of the wall clock now; 0 or less when it follows it. A lead that lasts means
	// that the wall clock was set back, or that a peer runs ahead.
	Lead time.Duration
	// WallBack counts the refreshes that found the wall clock behind the refresh before; WallBackMax is the greatest step.
	WallBack    int64
	WallBackMax time.Duration
	// Persists and PersistErrors count ceilings made durable and refused by the store.
	Persists, PersistErrors int64
	// Exhausted counts callers that found the ceiling used up and had to wait for the disk.
	Exhausted int64
}

// Stats reads the counters.
func (c *Clock) Stats() Stats {
	n := &c.counters
	return Stats{
		Refused:       n.refused.Load(),
		PeerAheadMax:  time.Duration(n.peerAheadMax.Load()),
		Lead:          max(0, c.Read().Sub(c.wall())),
		WallBack:      n.wallBack.Load(),
		WallBackMax:   time.Duration(n.wallBackMax.Load()),
		Persists:      n.persists.Load(),
		PersistErrors: n.persistErrors.Load(),
		Exhausted:     n.exhausted.Load(),
	}
}

// storeMax raises a to v.
func storeMax(a *atomic.Int64, v int64) {
	for {
		old := a.Load()
		if v <= old || a.CompareAndSwap(old, v) {
			return
		}
	}
}
