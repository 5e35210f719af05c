package sim

import "time"

// clock derives the readings of a node from true time.
type clock struct {
	// rate is the drift: the clock gains rate seconds per second of true time. offset is the
	// reading of the monotonic clock at time 0, random so that code that compares the
	// readings of two nodes fails.
	rate   float64
	offset time.Duration
	// skew is how far the wall clock is ahead of true time; jumps change it. right is the skew
	// while the clock counts as correct.
	skew, right time.Duration
}

// wallStart is the true wall time at the start of a run.
var wallStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// monotonicNow returns the reading of the monotonic clock of the node, which measures leases.
func (n *node) monotonicNow() time.Duration {
	// Skew jumps, so leases measured like this outlive their grants.
	if n.w.cfg.Bug == LeaseByWall {
		return n.clock.offset + n.w.now + n.clock.skew
	}
	return n.clock.offset + n.w.now + time.Duration(float64(n.w.now)*n.clock.rate) - n.late
}

// wallNow returns the reading of the wall clock of the node.
func (n *node) wallNow() time.Time { return wallStart.Add(n.w.now + n.clock.skew) }
