package hlc

import (
	"sync/atomic"
	"time"
)

// counters are updated on rare paths only, so that they add no cost to Now.
type counters struct {
	refused, peerAheadMax   atomic.Int64
	wallBack, wallBackMax   atomic.Int64
	persists, persistErrors atomic.Int64
	exhausted               atomic.Int64
}

// Stats holds the counters of a clock since its creation.
type Stats struct {
	// Refused counts timestamps that Update rejected because they were too far ahead.
	Refused int64
	// PeerAheadMax is the largest lead over the wall clock among the timestamps that Update
	// accepted.
	PeerAheadMax time.Duration
	// Lead is how far the clock is ahead of the wall clock at the moment; 0 if it follows the wall
	// clock. A lasting lead means that the wall clock was set back, or that the clock of a peer is
	// ahead.
	Lead time.Duration
	// WallBack counts refreshes that found the wall clock before the previous reading; WallBackMax
	// is the largest such step.
	WallBack    int64
	WallBackMax time.Duration
	// Persists and PersistErrors count the ceilings that the store made durable and failed to.
	Persists, PersistErrors int64
	// Exhausted counts callers that reached the ceiling and had to wait for the disk.
	Exhausted int64
}

// Stats reads the counters.
func (c *Clock) Stats() Stats {
	n := &c.counters
	return Stats{
		Refused:       n.refused.Load(),
		PeerAheadMax:  time.Duration(n.peerAheadMax.Load()),
		Lead:          max(0, c.Read().Sub(c.wallTimestamp())),
		WallBack:      n.wallBack.Load(),
		WallBackMax:   time.Duration(n.wallBackMax.Load()),
		Persists:      n.persists.Load(),
		PersistErrors: n.persistErrors.Load(),
		Exhausted:     n.exhausted.Load(),
	}
}

// storeMax sets a to v if v is greater.
func storeMax(a *atomic.Int64, v int64) {
	for {
		old := a.Load()
		if v <= old || a.CompareAndSwap(old, v) {
			return
		}
	}
}
