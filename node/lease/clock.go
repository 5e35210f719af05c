package lease

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// clockOffMax is how far this node's wall clock may differ from the median of all clocks, and
// clockOffBeats is the number of consecutive comparisons in which it must differ before it is
// called wrong (docs/replication.md#rule-clocks). The limit is below rhumb.ClockAheadMax, at which peers reject entries,
// so a node yields its primaries before its writes fail.
const (
	clockOffMax   = rhumb.ClockAheadMax * 8 / 10
	clockOffBeats = 3
)

// clockView is this node's view of the wall clocks of the cluster.
type clockView struct {
	// wall is this node's wall clock since 1970, as last set by SetWall.
	wall time.Duration
	// next is the time of the next comparison.
	next time.Duration
	// off is how far this node's clock is ahead of the median. bad and good count consecutive
	// comparisons with either result, and wrong is the verdict.
	off       time.Duration
	bad, good int
	wrong     bool
	// right are the peers whose clocks did not differ from the median at the last comparison, ascending.
	right []rhumb.NodeID
}

// SetWall sets the reading of this node's wall clock, as a duration since 1970. Call it before Tick
// and Receive.
func (p *Pairs) SetWall(wall time.Duration) { p.clocks.wall = wall }

// ClockOff reports whether this node's wall clock is wrong: it has differed from the median of all
// clocks by more than clockOffMax in three consecutive heartbeats. ahead is how far it is ahead, or
// negative if it is late.
//
// The median is taken over the clocks of this node and of all peers in contact. For an even number
// of clocks it is whichever of the two in the middle favours this node. So two nodes alone never
// blame each other: neither can know whose clock is wrong.
func (p *Pairs) ClockOff() (ahead time.Duration, wrong bool) { return p.clocks.off, p.clocks.wrong }

// RightClocks returns the peers in contact whose wall clocks differ from the median of all by clockOffMax at most, ascending. The
// caller must not change the slice.
func (p *Pairs) RightClocks() []rhumb.NodeID { return p.clocks.right }

// recordWall stores the offset of the peer's wall clock. rtt is the round trip that the frame
// completes.
func (q *peer) recordWall(now, ours, theirs, rtt time.Duration) {
	// The frame was on its way for about half of the round trip, during which the peer's clock
	// advanced.
	q.offset, q.offsetAt = theirs+rtt/2-ours, now
}

// compareClocks compares the clocks once per heartbeat.
func (p *Pairs) compareClocks(now time.Duration) {
	c := &p.clocks
	if now < c.next {
		return
	}
	c.next = now + RegionTiming().Heartbeat
	// A verdict takes clockOffBeats equal results in a row, in both directions: it makes the node
	// hand over all its primaries.
	offset := p.medianOffset(now)
	c.off, c.right = -offset, nil
	for _, q := range p.peers {
		if q.isCompared(now) && (q.offset-offset).Abs() <= clockOffMax {
			c.right = append(c.right, q.id)
		}
	}
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
	// This node's own clock is one of those compared.
	offsets := []time.Duration{0}
	for _, q := range p.peers {
		if q.isCompared(now) {
			offsets = append(offsets, q.offset)
		}
	}
	return MedianOffset(offsets)
}

// isCompared reports whether the clock of a peer counts. An offset is as old as the last answer. The clock of a peer that is out of
// contact may have been set since.
func (q *peer) isCompared(now time.Duration) bool {
	return q.watched && q.offsetAt > 0 && now-q.offsetAt <= q.timing.Suspect
}

// MedianOffset returns the median of the offsets of clocks from a clock, which is one of them with the offset 0. Of the two in the middle
// of an even number it returns the one that favours that clock. It sorts the offsets.
func MedianOffset(offsets []time.Duration) time.Duration {
	slices.Sort(offsets)
	low, high := offsets[(len(offsets)-1)/2], offsets[len(offsets)/2]
	if low.Abs() < high.Abs() {
		return low
	}
	return high
}
