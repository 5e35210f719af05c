package hlc

import (
	"context"
	"time"
)

const (
	// watchInterval is the time between two readings.
	watchInterval = 50 * time.Millisecond
	// watchWindow is the time over which a disagreement adds up: at least the longest lease, so that
	// many small steps count too.
	watchWindow = 2 * time.Second
	// disagreeMax is the disagreement within watchWindow that is still ignored. It is far above the slew
	// of a disciplined clock (0.05 %, 1 ms in 2 s).
	disagreeMax = 100 * time.Millisecond
)

// readingMax is how long reading both clocks may take. A slower reading is discarded.
const readingMax = 20 * time.Millisecond

// watchSamplesMax bounds the readings that a watchdog keeps.
const watchSamplesMax = 1_000

// Watchdog decides from pairs of readings whether monotonic and wall time still agree. It reads no
// clock itself. The zero value is ready for use.
type Watchdog struct {
	samples []sample
}

// sample holds how far wall time was ahead of monotonic time at one moment.
type sample struct {
	at     time.Duration
	offset time.Duration
}

// Check takes one reading of both clocks and returns the largest disagreement within the window,
// positive if wall time advanced more than monotonic time. If trip is true, the caller must drop
// every lease it holds; the watchdog then starts over. Setting the wall clock by hand also trips
// the watchdog and costs one lease duration of slower reads.
func (w *Watchdog) Check(boot time.Duration, wall time.Time) (disagree time.Duration, trip bool) {
	now := sample{at: boot, offset: time.Duration(wall.UnixNano()) - boot}
	// The latest reading stays whatever its age: after a long pause it is the only one to compare
	// with.
	for len(w.samples) > 1 && (boot-w.samples[0].at > watchWindow || len(w.samples) >= watchSamplesMax) {
		w.samples = append(w.samples[:0], w.samples[1:]...)
	}
	for _, s := range w.samples {
		if d := now.offset - s.offset; d.Abs() > disagree.Abs() {
			disagree = d
		}
	}
	if disagree.Abs() > disagreeMax {
		// Older readings would trip the watchdog again although the leases are already dropped.
		w.samples = append(w.samples[:0], now)
		return disagree, true
	}
	w.samples = append(w.samples, now)
	return disagree, false
}

// Watch checks Boottime against the wall clock until ctx ends. It calls trip with the disagreement
// each time that the caller must drop its leases. A wall of nil is time.Now.
func (w *Watchdog) Watch(ctx context.Context, wall func() time.Time, trip func(disagree time.Duration)) {
	if wall == nil {
		wall = time.Now
	}
	w.watchClocks(ctx, Boottime, wall, trip)
}

// watchClocks is Watch with the clocks as parameters, for tests.
func (w *Watchdog) watchClocks(ctx context.Context, boot func() time.Duration, wall func() time.Time, trip func(time.Duration)) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		before, at := boot(), wall()
		// On a loaded machine much time may pass between the two readings, which then belong to
		// different moments.
		if boot()-before <= readingMax {
			if d, bad := w.Check(before, at); bad {
				trip(d)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
