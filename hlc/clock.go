package hlc

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// WindowDefault is how far the durable ceiling is set ahead of the wall clock. It bounds how
	// far a clock is ahead after a restart.
	WindowDefault = 3 * time.Second
	// RefreshDefault is the time between two raises of the ceiling.
	RefreshDefault = time.Second

	// headroom is how far the ceiling is set above a clock that is ahead of wall time. A
	// millisecond holds 65,536 timestamps, so headroom allows 6.5 million of them between two
	// refreshes.
	headroom = 100 * time.Millisecond
)

// timestampMax limits timestamps to the year 6429, so that adding to one never overflows.
const timestampMax rhumb.Timestamp = 1<<63 - 1

// wallMsMax keeps the wall clock so far below timestampMax that no sum reaches it.
const wallMsMax = 1 << 46

// ReserveMax is the largest number of timestamps that one Reserve issues.
const ReserveMax = rhumb.BatchOpsMax

// Config configures a clock.
type Config struct {
	// Wall reads the wall clock. Default time.Now.
	Wall func() time.Time
	// Mono reads a clock that nobody sets, such as Boottime. With it, the ceiling follows a wall
	// clock that jumps ahead only slowly (see the package comment). Default nil, which follows
	// every jump.
	Mono func() time.Duration
	// Ceiling is the durable ceiling in the store: the last value that Persist stored, or 0 for a
	// new store.
	Ceiling rhumb.Timestamp
	// Persist makes a ceiling durable before it returns. It is called by one goroutine at a time,
	// with increasing values. Required.
	Persist func(ceiling rhumb.Timestamp) error
	// Window is how far the ceiling is set ahead of the wall clock. Default WindowDefault.
	Window time.Duration
	// Refresh is how often Run raises the ceiling. It must be less than Window. Default
	// RefreshDefault.
	Refresh time.Duration
	// AheadMax is how far a peer's timestamp may be ahead of the wall clock. Default
	// rhumb.ClockAheadMax.
	AheadMax time.Duration
}

// withDefaults returns c with defaults in its zero fields.
func (c Config) withDefaults() Config {
	if c.Wall == nil {
		c.Wall = time.Now
	}
	if c.Window == 0 {
		c.Window = WindowDefault
	}
	if c.Refresh == 0 {
		c.Refresh = RefreshDefault
	}
	if c.AheadMax == 0 {
		c.AheadMax = rhumb.ClockAheadMax
	}
	return c
}

// Validate returns an error that lists every fault of the configuration after defaults are applied.
func (c Config) Validate() error {
	const op rhumb.Op = "hlc.Config.Validate"
	c = c.withDefaults()
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, rhumb.Ef(op, rhumb.InvalidArgument, format, args...))
	}
	if c.Persist == nil {
		fault("hlc: Persist is not set; the clock needs a durable ceiling")
	}
	if c.Refresh <= 0 || c.Refresh >= c.Window {
		fault("hlc: Refresh is %v, but must be above 0 and below Window, which is %v", c.Refresh, c.Window)
	}
	if c.AheadMax <= 0 {
		fault("hlc: AheadMax is %v, but must be above 0", c.AheadMax)
	}
	return errors.Join(faults...)
}

// Clock issues the timestamps of one store. New returns one; Run or regular calls of Refresh keep
// its ceiling ahead.
type Clock struct {
	cfg Config

	// last is the greatest timestamp that was issued or passed to Update or Forward. last <=
	// ceiling always holds.
	last atomic.Uint64
	// ceiling is durable: it is stored here only after Persist has returned.
	ceiling atomic.Uint64

	// mu is held while the ceiling is raised, so that Persist sees increasing values. Now does not
	// take it.
	mu sync.Mutex
	// wallSeen is the wall clock at the last Refresh. Guarded by mu.
	wallSeen time.Time
	// pace is the time that the ceiling follows. Guarded by mu.
	pace pace

	counters counters
}

// New returns a clock that starts above cfg.Ceiling, after making its first ceiling durable.
func New(cfg Config) (*Clock, error) {
	const op rhumb.Op = "hlc.New"
	if err := cfg.Validate(); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	c := &Clock{cfg: cfg.withDefaults()}
	// Every timestamp issued before the restart is at or below the old ceiling, so starting there keeps
	// timestamps increasing across restarts.
	c.last.Store(uint64(cfg.Ceiling))
	c.ceiling.Store(uint64(cfg.Ceiling))
	c.pace.startAt(&c.cfg)
	if err := c.Refresh(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return c, nil
}

// Now issues a timestamp greater than all earlier ones. It fails with Unavailable only if the
// ceiling is reached and the store fails to raise it.
func (c *Clock) Now() (rhumb.Timestamp, error) { return c.Reserve(1) }

// Reserve issues n consecutive timestamps, 1 <= n <= ReserveMax, and returns the first. It fails as
// Now does.
func (c *Clock) Reserve(n int) (first rhumb.Timestamp, err error) {
	const op rhumb.Op = "hlc.Clock.Reserve"
	if n < 1 || n > ReserveMax {
		return 0, rhumb.Ef(op, rhumb.InvalidArgument, "cannot reserve %d timestamps; reserve 1 to %d at once", n, ReserveMax)
	}
	for {
		last := c.last.Load()
		ceiling := c.ceiling.Load()
		next := last + 1
		// The clock does not follow a wall clock beyond the ceiling before the ceiling is raised.
		// Until then it runs on logically, so that a stalled disk delays time instead of failing
		// writes.
		if wall := uint64(c.wallTimestamp()); wall > next && wall+uint64(n-1) <= ceiling {
			next = wall
		}
		end := next + uint64(n-1)
		if end > ceiling {
			// Run normally raises the ceiling in time. The count shows a window that is too small.
			c.counters.exhausted.Add(1)
			if err := c.raiseCeiling(rhumb.Timestamp(end)); err != nil {
				return 0, rhumb.WrapKind(op, rhumb.Unavailable, err)
			}
			continue
		}
		// Another caller may have issued timestamps meanwhile; then everything is computed again.
		if c.last.CompareAndSwap(last, end) {
			return rhumb.Timestamp(next), nil
		}
	}
}

// Read returns the time of the clock without issuing it: no timestamp issued so far is greater. Use
// it for ages and reports, never for the version of a record.
func (c *Clock) Read() rhumb.Timestamp {
	return max(rhumb.Timestamp(c.last.Load()), min(c.wallTimestamp(), c.Ceiling()))
}

// Ceiling returns the durable ceiling. A caller that derives a timestamp without the clock, such as
// the last one of a log plus one, must not exceed it.
func (c *Clock) Ceiling() rhumb.Timestamp { return rhumb.Timestamp(c.ceiling.Load()) }

// Wall returns the reading of the wall clock.
func (c *Clock) Wall() time.Time { return c.cfg.Wall() }

// Limit returns the greatest timestamp that an entry of a peer may have: AheadMax above the wall
// clock, or above this clock if this clock is ahead, as after a restart with a high ceiling.
// Replicas reject entries beyond it unless their log is as far ahead
// (replica.Replica.SetClockLimit).
func (c *Clock) Limit() rhumb.Timestamp {
	return max(c.wallTimestamp(), rhumb.Timestamp(c.last.Load())).Add(c.cfg.AheadMax)
}

// Update advances the clock past a peer's timestamp. It rejects a timestamp more than AheadMax
// ahead of the wall clock with InvalidArgument: one of the two clocks is wrong. After Update
// returns nil, every timestamp issued later is greater, even after a crash. Update waits for the
// disk if that requires a higher ceiling.
func (c *Clock) Update(ts rhumb.Timestamp) error {
	const op rhumb.Op = "hlc.Clock.Update"
	wall := c.wallTimestamp()
	if ts > wall.Add(c.cfg.AheadMax) {
		c.counters.refused.Add(1)
		return rhumb.Ef(op, rhumb.InvalidArgument,
			"timestamp %v is more than %v ahead of this node's clock, which shows %v; check the clocks of both nodes", ts, c.cfg.AheadMax, wall)
	}
	if ts > wall {
		storeMax(&c.counters.peerAheadMax, int64(ts.Sub(wall)))
	}
	return rhumb.Wrap(op, c.Forward(ts))
}

// Forward is Update without the bound, for timestamps that are already in a log or on disk and can
// no longer be rejected. It rejects only timestamps above timestampMax, which no clock issues.
func (c *Clock) Forward(ts rhumb.Timestamp) error {
	const op rhumb.Op = "hlc.Clock.Forward"
	if ts > timestampMax {
		return rhumb.Ef(op, rhumb.InvalidArgument, "timestamp %d is beyond what any clock issues; the data that contains it is damaged", uint64(ts))
	}
	for {
		last := c.last.Load()
		if uint64(ts) <= last {
			return nil
		}
		// The ceiling is raised before last moves, which keeps last <= ceiling for concurrent readers.
		if ts > c.Ceiling() {
			if err := c.raiseCeiling(ts); err != nil {
				return rhumb.WrapKind(op, rhumb.Unavailable, err)
			}
		}
		if c.last.CompareAndSwap(last, uint64(ts)) {
			return nil
		}
	}
}

// wallTimestamp returns the wall clock as a timestamp with a count of zero, limited to the range of
// timestamps.
func (c *Clock) wallTimestamp() rhumb.Timestamp {
	return timestampOf(c.cfg.Wall())
}
