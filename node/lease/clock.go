package lease

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// clockOffMax is how far this node's wall clock may lie from the median of all before it is called wrong, clockOffBeats in
// how many heartbeats running it must (ruling 19). Entries are refused a little later, at rhumb.ClockAheadMax.
const (
	clockOffMax   = rhumb.ClockAheadMax * 8 / 10
	clockOffBeats = 3
)

// clockView is what this node knows of the wall clocks.
type clockView struct {
	wall time.Duration // this node's, since 1970, as SetWall said last
	next time.Duration // when to look again
	// off is how far this node's clock is ahead of the median, counted in bad or good looks running; wrong is the verdict.
	off       time.Duration
	bad, good int
	wrong     bool
}

// SetWall says what this node's wall clock shows, since 1970. Call it before Tick and Receive.
func (p *Pairs) SetWall(wall time.Duration) { p.clocks.wall = wall }

// ClockOff reports whether this node's wall clock is wrong: it has been more than 8 s off the median of all clocks in three
// heartbeats running. ahead is by how much it is ahead; below zero it is behind.
//
// The median is that of the clocks of this node and of all peers in contact. Of an even number the one of the two in the
// middle counts that favours this node. So of two nodes nobody can tell whose clock is wrong, and nobody is blamed.
func (p *Pairs) ClockOff() (ahead time.Duration, wrong bool) { return p.clocks.off, p.clocks.wrong }

// heardWall takes the peer's clock out of a frame; rtt is the round trip that the frame ends.
func (q *peer) heardWall(now, ours, theirs, rtt time.Duration) {
	q.offset, q.offsetAt = theirs+rtt/2-ours, now
}

// lookAtClocks compares the clocks, once per heartbeat.
func (p *Pairs) lookAtClocks(now time.Duration) {
	c := &p.clocks
	if now < c.next {
		return
	}
	c.next = now + RegionTiming().Heartbeat
	c.off = -p.medianOffset(now)
	if c.off.Abs() > clockOffMax {
		c.bad, c.good = c.bad+1, 0
	} else {
		c.bad, c.good = 0, c.good+1
	}
	switch {
	case c.bad >= clockOffBeats:
		c.wrong = true
	case c.good >= clockOffBeats:
		c.wrong = false
	}
}

// medianOffset returns how far the median of all clocks is ahead of this node's.
func (p *Pairs) medianOffset(now time.Duration) time.Duration {
	offsets := []time.Duration{0}
	for _, q := range p.peers {
		if q.watched && q.offsetAt > 0 && now-q.offsetAt <= q.timing.Suspect {
			offsets = append(offsets, q.offset)
		}
	}
	slices.Sort(offsets)
	low, high := offsets[(len(offsets)-1)/2], offsets[len(offsets)/2]
	if low.Abs() < high.Abs() {
		return low
	}
	return high
}
