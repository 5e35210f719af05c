package hlc

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Refresh moves the durable ceiling to Window ahead of the wall clock. Run calls it; a driver without goroutines calls
// it itself, every Config.Refresh.
func (c *Clock) Refresh() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteWallLocked()
	return c.raiseLocked(rhumb.Timestamp(c.last.Load()))
}

// Run refreshes the ceiling until ctx ends, and returns nil then. A persister that fails is tried again at the next
// refresh and shows in Stats; report, if not nil, is told each failure.
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

// raise makes a ceiling durable that is at or above ts, unless another caller has done so meanwhile.
func (c *Clock) raise(ts rhumb.Timestamp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ts <= c.Ceiling() {
		return nil
	}
	return c.raiseLocked(ts)
}

// raiseLocked moves the ceiling to Window above the wall clock, or a little above ts if that is more.
func (c *Clock) raiseLocked(ts rhumb.Timestamp) error {
	const op rhumb.Op = "hlc.Clock.raise"
	want := max(c.pace.follow(&c.cfg).Add(c.cfg.Window), ts.Add(headroom))
	if want <= c.Ceiling() {
		return nil
	}
	if err := c.cfg.Persist(want); err != nil {
		c.counters.persistErrors.Add(1)
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Msg: "the clock's ceiling could not be made durable; see the store's log", Err: err}
	}
	c.counters.persists.Add(1)
	c.ceiling.Store(uint64(want))
	return nil
}

// noteWallLocked counts wall clocks that went back since the last refresh.
func (c *Clock) noteWallLocked() {
	// Round(0) strips the monotonic reading: without that, Sub would never show a step of the wall clock.
	wall := c.cfg.Wall().Round(0)
	if back := c.wallSeen.Sub(wall); back > 0 {
		c.counters.wallBack.Add(1)
		storeMax(&c.counters.wallBackMax, int64(back))
	}
	c.wallSeen = wall
}
