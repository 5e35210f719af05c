package hlc

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// WindowDefault is how far the durable ceiling is set ahead of the wall clock.
	WindowDefault = 3 * time.Second
	// RefreshDefault is how often the ceiling is moved on.
	RefreshDefault = time.Second

	// headroom is how far the ceiling is set above a clock that is ahead of wall time. A millisecond holds 65,536
	// timestamps, so this is enough for 6.5 million of them between two refreshes.
	headroom = 100 * time.Millisecond
)

// timestampMax bounds timestamps to the year 6429, so that adding to one never overflows.
const timestampMax rhumb.Timestamp = 1<<63 - 1

// wallMsMax holds the wall clock below timestampMax by more than anything that is ever added to it.
const wallMsMax = 1 << 46

// ReserveMax bounds the timestamps of one Reserve.
const ReserveMax = rhumb.BatchOpsMax

// Config says where a clock gets its time and where it keeps its ceiling.
type Config struct {
	// Wall reads the wall clock. Default time.Now.
	Wall func() time.Time
	// Mono reads a clock that nobody sets, Boottime for one. With it, the ceiling follows a wall clock that jumps ahead only
	// slowly (see the package comment). Default nil, which trusts the wall clock whatever it does.
	Mono func() time.Duration
	// Ceiling is the durable ceiling that the store holds: what Persist last stored there, or 0 for a fresh store.
	Ceiling rhumb.Timestamp
	// Persist makes a ceiling durable before it returns. It is called by one goroutine at a time, with growing values.
	// Required.
	Persist func(ceiling rhumb.Timestamp) error
	// Window is how far the ceiling is set ahead of the wall clock. Default WindowDefault.
	Window time.Duration
	// Refresh is how often Run moves the ceiling on; less than Window. Default RefreshDefault.
	Refresh time.Duration
	// AheadMax is how far a peer's timestamp may lie ahead of the wall clock. Default rhumb.ClockAheadMax.
	AheadMax time.Duration
}

// withDefaults fills the fields that are zero.
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

// Validate lists every fault of the configuration, after defaults.
func (c Config) Validate() error {
	const op rhumb.Op = "hlc.Config.Validate"
	c = c.withDefaults()
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, rhumb.Ef(op, rhumb.InvalidArgument, format, args...))
	}
	if c.Persist == nil {
		fault("Persist is not set; the clock needs a durable ceiling")
	}
	if c.Refresh <= 0 || c.Refresh >= c.Window {
		fault("Refresh %v must be above 0 and below Window %v", c.Refresh, c.Window)
	}
	if c.AheadMax <= 0 {
		fault("AheadMax %v must be above 0", c.AheadMax)
	}
	return errors.Join(faults...)
}

// Clock issues the timestamps of one store. Make it with New, keep it alive with Run or regular calls of Refresh.
type Clock struct {
	cfg Config

	// last is the greatest timestamp issued, or passed by Update or Forward. last <= ceiling always.
	last atomic.Uint64
	// ceiling is durable: it is stored here only after Persist has returned.
	ceiling atomic.Uint64

	// mu is held while the ceiling is raised, so that Persist sees growing values.
	mu sync.Mutex
	// wallSeen is the wall clock at the last Refresh; guarded by mu.
	wallSeen time.Time
	// pace is what the ceiling follows; guarded by mu.
	pace pace

	counters counters
}

// New makes a clock that starts above cfg.Ceiling, and makes its first ceiling durable.
func New(cfg Config) (*Clock, error) {
	const op rhumb.Op = "hlc.New"
	if err := cfg.Validate(); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	c := &Clock{cfg: cfg.withDefaults()}
	c.last.Store(uint64(cfg.Ceiling))
	c.ceiling.Store(uint64(cfg.Ceiling))
	c.pace.start(&c.cfg)
	if err := c.Refresh(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return c, nil
}

// Now issues a timestamp greater than every one before. It fails, as Unavailable, only when the ceiling is used up and
// cannot be raised because the store does not accept it.
func (c *Clock) Now() (rhumb.Timestamp, error) { return c.Reserve(1) }

// Reserve issues n timestamps in a row, 1 <= n <= ReserveMax, and gives the first; the others follow by adding one. It
// fails as Now does.
func (c *Clock) Reserve(n int) (first rhumb.Timestamp, err error) {
	const op rhumb.Op = "hlc.Clock.Reserve"
	if n < 1 || n > ReserveMax {
		return 0, rhumb.Ef(op, rhumb.InvalidArgument, "%d timestamps asked for; 1 to %d can be reserved at once", n, ReserveMax)
	}
	for {
		last := c.last.Load()
		ceiling := c.ceiling.Load()
		next := last + 1
		// A wall clock beyond the ceiling is not followed before the ceiling has been raised; until then the
		// clock runs on logically, so that a stalled disk delays time instead of failing writes.
		if wall := uint64(c.wall()); wall > next && wall+uint64(n-1) <= ceiling {
			next = wall
		}
		end := next + uint64(n-1)
		if end > ceiling {
			c.counters.exhausted.Add(1)
			if err := c.raise(rhumb.Timestamp(end)); err != nil {
				return 0, rhumb.WrapKind(op, rhumb.Unavailable, err)
			}
			continue
		}
		if c.last.CompareAndSwap(last, end) {
			return rhumb.Timestamp(next), nil
		}
	}
}

// Read gives the clock's time without issuing it: nothing issued so far is greater. It is for judging ages and for
// reports, never for stamping a version.
func (c *Clock) Read() rhumb.Timestamp {
	return max(rhumb.Timestamp(c.last.Load()), min(c.wall(), c.Ceiling()))
}

// Ceiling gives the durable ceiling. Who derives a timestamp without the clock (the last one of a log plus one) must
// stay at or below it.
func (c *Clock) Ceiling() rhumb.Timestamp { return rhumb.Timestamp(c.ceiling.Load()) }

// Wall returns what the wall clock shows.
func (c *Clock) Wall() time.Time { return c.cfg.Wall() }

// Limit returns the greatest timestamp that a peer's entry may carry: AheadMax above the wall clock, or above this clock
// where it is ahead itself, as after a restart with a ceiling that was far ahead. Entries beyond it are refused unless their
// log is as far ahead (replica.Replica.SetClockLimit).
func (c *Clock) Limit() rhumb.Timestamp {
	return max(c.wall(), rhumb.Timestamp(c.last.Load())).Add(c.cfg.AheadMax)
}

// Update moves the clock past a peer's timestamp. A timestamp more than AheadMax ahead of the wall clock is refused as
// InvalidArgument: the peer's clock or this one is wrong. When Update returns nil, everything issued later is greater,
// also after a crash; it waits for the disk where that needs a higher ceiling.
func (c *Clock) Update(ts rhumb.Timestamp) error {
	const op rhumb.Op = "hlc.Clock.Update"
	wall := c.wall()
	if ts > wall.Add(c.cfg.AheadMax) {
		c.counters.refused.Add(1)
		return rhumb.Ef(op, rhumb.InvalidArgument,
			"timestamp %v is more than ClockAheadMax %v ahead of this node's clock, which shows %v; check the clocks of both nodes", ts, c.cfg.AheadMax, wall)
	}
	if ts > wall {
		storeMax(&c.counters.peerAheadMax, int64(ts.Sub(wall)))
	}
	return rhumb.Wrap(op, c.Forward(ts))
}

// Forward is Update without the bound, for timestamps that stand in a log or on disk already and cannot be refused any
// more. Only what no clock can have issued, above timestampMax, is refused as InvalidArgument.
func (c *Clock) Forward(ts rhumb.Timestamp) error {
	const op rhumb.Op = "hlc.Clock.Forward"
	if ts > timestampMax {
		return rhumb.Ef(op, rhumb.InvalidArgument, "timestamp %d is not one that a clock can issue; its source is damaged", uint64(ts))
	}
	for {
		last := c.last.Load()
		if uint64(ts) <= last {
			return nil
		}
		if ts > c.Ceiling() {
			if err := c.raise(ts); err != nil {
				return rhumb.WrapKind(op, rhumb.Unavailable, err)
			}
		}
		if c.last.CompareAndSwap(last, uint64(ts)) {
			return nil
		}
	}
}

// wall gives the wall clock as a timestamp with a count of zero, held between 1970 and far in the future.
func (c *Clock) wall() rhumb.Timestamp {
	return timestampOf(c.cfg.Wall())
}
