package digest

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// retryMost is the pause after a comparison that failed, or that could not be decided; shorter intervals win.
const retryMost = 10 * time.Minute

// plan decides which range is compared next. It is a pure value: the caller provides the time.
type plan struct {
	interval time.Duration
	due      map[rhumb.RangeID]time.Duration
}

func newPlan(interval time.Duration) plan {
	return plan{interval: interval, due: map[rhumb.RangeID]time.Duration{}}
}

// next returns the range that is due the longest, of those whose primary is here. The first comparison of
// a range is at a moment of the interval that its place in the keyspace determines: so a node that
// starts does not compare all ranges at once, nor in a burst every interval after.
func (p *plan) next(now time.Duration, primaries []rhumb.RangeID) (id rhumb.RangeID, ok bool) {
	for known := range p.due {
		if !slices.Contains(primaries, known) {
			delete(p.due, known)
		}
	}
	var best time.Duration
	for _, r := range primaries {
		at, known := p.due[r]
		if !known {
			// A multiplicative hash spreads neighbouring slots.
			part := (uint64(r.Slot)*0x9E3779B97F4A7C15 + uint64(r.Region)*0xC2B2AE3D27D4EB4F) >> 40
			at = now + time.Duration(float64(p.interval)*float64(part)/float64(1<<24))
			p.due[r] = at
		}
		if at <= now && (!ok || at < best || at == best && r.Compare(id) < 0) {
			id, best, ok = r, at, true
		}
	}
	return id, ok
}

// done records a comparison. One without a result is repeated earlier.
func (p *plan) done(now time.Duration, id rhumb.RangeID, settled bool) {
	wait := p.interval
	if !settled {
		wait = min(wait, retryMost)
	}
	p.due[id] = now + wait
}
