package hlc

import (
	"context"
	"errors"
	"time"

	"github.com/rhumbdb/rhumb"
)

// WatchdogConfig says when monotonic and wall time disagree.
type WatchdogConfig struct {
	// Interval is the time between two readings. Default 50 ms.
	Interval time.Duration
	// Window is the time over which a disagreement is summed: at least the longest lease, so that many small steps count
	// too. Default 2 s.
	Window time.Duration
	// DisagreeMax is the disagreement within Window that is still ignored. It lies far above what a disciplined clock
	// is slewed by (0.05 %, 1 ms in 2 s). Default 100 ms.
	DisagreeMax time.Duration
}

// withDefaults fills the fields that are zero.
func (c WatchdogConfig) withDefaults() WatchdogConfig {
	if c.Interval == 0 {
		c.Interval = 50 * time.Millisecond
	}
	if c.Window == 0 {
		c.Window = 2 * time.Second
	}
	if c.DisagreeMax == 0 {
		c.DisagreeMax = 100 * time.Millisecond
	}
	return c
}

// Validate lists every fault of the configuration, after defaults.
func (c WatchdogConfig) Validate() error {
	const op rhumb.Op = "hlc.WatchdogConfig.Validate"
	c = c.withDefaults()
	var faults []error
	if c.Interval <= 0 || c.Window < c.Interval || c.Window/c.Interval > watchSamplesMax {
		faults = append(faults, rhumb.Ef(op, rhumb.InvalidArgument,
			"Interval %v must be above 0 and fit 1 to %d times into Window %v", c.Interval, watchSamplesMax, c.Window))
	}
	if c.DisagreeMax <= 0 {
		faults = append(faults, rhumb.Ef(op, rhumb.InvalidArgument, "DisagreeMax %v must be above 0", c.DisagreeMax))
	}
	return errors.Join(faults...)
}

// readingMax is how much time may pass while both clocks are read; what takes longer is not looked at.
const readingMax = 20 * time.Millisecond

// watchSamplesMax bounds the readings that a watchdog keeps.
const watchSamplesMax = 1_000

// Watchdog decides from pairs of readings whether monotonic and wall time still agree. It reads no clock itself. The zero
// value has the default configuration.
type Watchdog struct {
	cfg     WatchdogConfig
	samples []sample
}

// sample is how far wall time was ahead of monotonic time at one moment.
type sample struct {
	at     time.Duration
	offset time.Duration
}

// NewWatchdog makes a watchdog.
func NewWatchdog(cfg WatchdogConfig) (*Watchdog, error) {
	const op rhumb.Op = "hlc.NewWatchdog"
	if err := cfg.Validate(); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	return &Watchdog{cfg: cfg.withDefaults()}, nil
}

// Check takes one reading of both clocks and gives the disagreement within the window: positive when wall time moved
// more than monotonic time. If trip is true, the caller must drop every lease it holds; the watchdog then starts afresh.
// Setting the wall clock by hand trips it as well, which costs one lease time of slower reads.
func (w *Watchdog) Check(boot time.Duration, wall time.Time) (disagree time.Duration, trip bool) {
	cfg := w.cfg.withDefaults()
	now := sample{at: boot, offset: time.Duration(wall.UnixNano()) - boot}
	// The latest reading stays whatever its age: after a long pause it is the only one to compare with.
	for len(w.samples) > 1 && (boot-w.samples[0].at > cfg.Window || len(w.samples) >= watchSamplesMax) {
		w.samples = append(w.samples[:0], w.samples[1:]...)
	}
	for _, s := range w.samples {
		if d := now.offset - s.offset; d.Abs() > disagree.Abs() {
			disagree = d
		}
	}
	if disagree.Abs() > cfg.DisagreeMax {
		w.samples = append(w.samples[:0], now)
		return disagree, true
	}
	w.samples = append(w.samples, now)
	return disagree, false
}

// Watch checks Boottime against the wall clock every Interval until ctx ends, and calls trip with the disagreement each
// time the caller has to drop its leases.
func (w *Watchdog) Watch(ctx context.Context, trip func(disagree time.Duration)) {
	w.watch(ctx, Boottime, time.Now, trip)
}

func (w *Watchdog) watch(ctx context.Context, boot func() time.Duration, wall func() time.Time, trip func(time.Duration)) {
	tick := time.NewTicker(w.cfg.withDefaults().Interval)
	defer tick.Stop()
	for {
		before, at := boot(), wall()
		// On a loaded machine much time may pass between the two readings, which are then not of one moment.
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
