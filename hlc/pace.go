package hlc

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// jumpMax is how far the wall clock may jump ahead of monotonic time and be followed at once.
	jumpMax = time.Second
	// jumpHold is how long a wall clock must stay ahead before it is followed all the same: somebody set it on purpose.
	jumpHold = 5 * time.Minute
)

// pace is the time that the ceiling follows. It is the wall clock, but for one that jumps ahead: that is followed at twice
// the speed of time at most, and not at all while it is distrusted. A wall clock that is an hour ahead for a minute then
// leaves the ceiling a minute ahead, or a few seconds, and not an hour. A step back is followed at once: the ceiling itself
// never goes back.
type pace struct {
	wall       time.Time     // as far as it is believed
	at         time.Duration // when
	ahead      time.Duration // since when the wall clock has been ahead of what is believed; 0 when it is not
	distrusted bool
}

func (p *pace) start(c *Config) {
	p.wall = c.Wall()
	if c.Mono != nil {
		p.at = c.Mono()
	}
}

// follow moves on and returns the time that is believed.
func (p *pace) follow(c *Config) rhumb.Timestamp {
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

// timestampOf returns a wall clock reading as a timestamp with a count of zero, held between 1970 and far in the future.
func timestampOf(wall time.Time) rhumb.Timestamp {
	return rhumb.MakeTimestamp(min(max(0, wall.UnixMilli()), wallMsMax), 0)
}

// Distrust says whether the wall clock is known to be wrong, because most other nodes say so. Then the ceiling does not
// follow it ahead.
func (c *Clock) Distrust(wrong bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace.distrusted = wrong
}
