package hlc

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Refresh raises the durable ceiling to Window above the wall clock. Run calls it; a driver without
// goroutines calls it every Config.Refresh instead.
func (c *Clock) Refresh() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteWallLocked()
	return c.raiseLocked(rhumb.Timestamp(c.last.Load()))
}

// Run refreshes the ceiling until ctx ends and then returns nil. If the persister fails, Run
// retries at the next refresh, counts the failure in Stats and passes it to report, if report is
// not nil.
func (c *Clock) Run(ctx context.Context, report func(error)) error {
	const op rhumb.Op = "hlc.Clock.Run"
	tick := time.NewTicker(c.cfg.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := c.Refresh(); err != nil && report != nil {
				report(rhumb.Wrap(op, err))
			}
		}
	}
}

// raiseCeiling makes a ceiling at or above ts durable, unless another caller has done so already.
func (c *Clock) raiseCeiling(ts rhumb.Timestamp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ts <= c.Ceiling() {
		return nil
	}
	return c.raiseLocked(ts)
}

// raiseLocked raises the ceiling to Window above the wall clock, or to headroom above ts if that is
// higher.
func (c *Clock) raiseLocked(ts rhumb.Timestamp) error {
	const op rhumb.Op = "hlc.Clock.raise"
	want := max(c.pace.followWall(&c.cfg).Add(c.cfg.Window), ts.Add(headroom))
	if want <= c.Ceiling() {
		return nil
	}
	// The order is essential: timestamps above the old ceiling may be issued only after the new one is
	// durable, or a restart would issue them again.
	if err := c.cfg.Persist(want); err != nil {
		c.counters.persistErrors.Add(1)
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Msg: "the clock cannot advance because its ceiling could not be written to disk; see the store's log", Err: err}
	}
	c.counters.persists.Add(1)
	c.ceiling.Store(uint64(want))
	return nil
}

// noteWallLocked counts steps back of the wall clock since the last refresh.
func (c *Clock) noteWallLocked() {
	// Round(0) strips the monotonic reading. With it, Sub would hide a step of the wall clock.
	wall := c.cfg.Wall().Round(0)
	if back := c.wallSeen.Sub(wall); back > 0 {
		c.counters.wallBack.Add(1)
		storeMax(&c.counters.wallBackMax, int64(back))
	}
	c.wallSeen = wall
}
