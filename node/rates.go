package node

import (
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
)

// rateHalfLife is the time after which a measured speed counts half. Balance acts on these speeds, and a copy takes
// minutes to move, so a burst of seconds must not show.
const rateHalfLife = time.Minute

// rate is the smoothed speed of two counters of a range. It is a pure value.
type rate struct {
	at             time.Duration
	bytes, entries uint64
	started        bool

	bytesPer, entriesPer float64 // per second
}

// observe notes the counters at a time. A counter that falls, after an undo or a copy of the range, counts as unchanged.
func (r *rate) observe(now time.Duration, bytes, entries uint64) {
	if dt := (now - r.at).Seconds(); r.started && dt > 0 {
		// A sample counts by the time that it covers, so a late survey weighs more than one in time.
		keep := math.Exp2(-dt / rateHalfLife.Seconds())
		add := func(old float64, from, to uint64) float64 {
			return keep*old + (1-keep)*float64(max(to, from)-from)/dt
		}
		r.bytesPer, r.entriesPer = add(r.bytesPer, r.bytes, bytes), add(r.entriesPer, r.entries, entries)
	}
	r.at, r.bytes, r.entries, r.started = now, bytes, entries, true
}

// rates are the rates of the ranges whose primary is this node. One goroutine uses them.
type rates map[rhumb.RangeID]rate

// observe notes the counters of a range and returns its rates.
func (rs rates) observe(now time.Duration, id rhumb.RangeID, bytes, entries uint64) rate {
	r := rs[id]
	r.observe(now, bytes, entries)
	rs[id] = r
	return r
}

// forget drops the ranges that were not observed at a time: their primary is another node.
func (rs rates) forget(now time.Duration) {
	for id, r := range rs {
		if r.at < now {
			delete(rs, id)
		}
	}
}
