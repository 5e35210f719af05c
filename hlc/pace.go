package hlc

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// jumpMax is how far the wall clock may jump ahead of monotonic time and still be followed at
	// once.
	jumpMax = time.Second
	// jumpHold is how long a wall clock must stay ahead before it is followed anyway: somebody set
	// it on purpose.
	jumpHold = 5 * time.Minute
)

// pace computes the time that the ceiling follows. It is the wall clock, except after a jump ahead:
// then pace advances at twice the speed of time at most, and at the speed of time while the wall
// clock is distrusted. If the wall clock is an hour ahead for a minute, the ceiling is a minute
// ahead afterwards, or a few seconds, instead of an hour. pace follows a step back at once; the
// ceiling itself never decreases.
type pace struct {
	wall       time.Time     // the time that pace believes
	at         time.Duration // monotonic time of the last reading
	ahead      time.Duration // monotonic time at which the wall clock jumped ahead; 0 if it is not ahead
	distrusted bool          // peers contradict the wall clock
}

// startAt takes the first reading, which is believed.
func (p *pace) startAt(c *Config) {
	p.wall = c.Wall()
	if c.Mono != nil {
		p.at = c.Mono()
	}
}

// followWall takes a reading and returns the time that pace believes.
func (p *pace) followWall(c *Config) rhumb.Timestamp {
	wall := c.Wall().Round(0)
	if c.Mono == nil {
		return timestampOf(wall)
	}
	now := c.Mono()
	passed := max(0, now-p.at)
	expected := p.wall.Round(0).Add(passed)
	jump := wall.Sub(expected)
	switch {
	case jump <= jumpMax:
		p.ahead = 0
	case p.ahead == 0:
		p.ahead = now
	}
	// Three cases follow the wall clock at once: a step back, a small deviation, and a jump that lasted.
	// A distrusted clock may still step back, since that only slows the ceiling.
	switch {
	case jump <= 0, jump <= jumpMax && !p.distrusted, p.ahead > 0 && now-p.ahead >= jumpHold && !p.distrusted:
		p.wall = wall
	case p.distrusted:
		p.wall = expected
	default:
		p.wall = expected.Add(min(jump, passed))
	}
	p.at = now
	return timestampOf(p.wall)
}

// timestampOf returns a wall clock reading as a timestamp with a count of zero, limited to the
// range of timestamps.
func timestampOf(wall time.Time) rhumb.Timestamp {
	return rhumb.MakeTimestamp(min(max(0, wall.UnixMilli()), wallMsMax), 0)
}

// Distrust sets whether the wall clock is known to be wrong because most other nodes contradict it.
// While it is, the ceiling does not follow the wall clock ahead.
func (c *Clock) Distrust(wrong bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace.distrusted = wrong
}
