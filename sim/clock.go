package sim

import "time"

// clock makes a node's readings out of true time.
type clock struct {
	// rate is how much faster than true time the clock runs; offset is the monotonic clock's reading at time 0.
	rate   float64
	offset time.Duration
	// skew is how far the wall clock is ahead of true time; jumps change it. right is the skew of a clock that is in order.
	skew, right time.Duration
}

// wallStart is the true wall time at which runs begin.
var wallStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// mono reads the node's monotonic clock.
func (n *node) mono() time.Duration {
	if n.w.cfg.Bug == LeaseByWall {
		return n.clock.offset + n.w.now + n.clock.skew
	}
	return n.clock.offset + n.w.now + time.Duration(float64(n.w.now)*n.clock.rate) - n.late
}

// wall reads the node's wall clock.
func (n *node) wall() time.Time { return wallStart.Add(n.w.now + n.clock.skew) }
