package rtt

import "time"

const (
	// smoothing is the weight of a new sample in the average, and variation that in the deviation: 1/8 and 1/4, the
	// constants of TCP (RFC 6298, section 2).
	smoothing = 8
	variation = 4
	// minWindow is how many samples a minimum is kept for at the least; it is forgotten after at most twice as many, so
	// that a route that became longer is believed.
	minWindow = 64
)

// Estimate is what has been learnt of one round trip from samples. It is a value: Observe returns the next one. The zero
// value has seen nothing.
type Estimate struct {
	mean, deviation time.Duration
	// least is the minimum of the running window of samples, before that of the one before it.
	least, before time.Duration
	samples       uint64
}

// Observe gives the estimate after one more sample. Samples below 0 are ignored: they come from a broken clock.
func (e Estimate) Observe(sample time.Duration) Estimate {
	switch {
	case sample < 0:
		return e
	case e.samples == 0:
		e.mean, e.deviation, e.least, e.before = sample, sample/2, sample, sample
	default:
		e.deviation += ((e.mean - sample).Abs() - e.deviation) / variation
		e.mean += (sample - e.mean) / smoothing
		e.least = min(e.least, sample)
	}
	e.samples++
	if e.samples%minWindow == 0 {
		e.before, e.least = e.least, sample
	}
	return e
}

// Known reports whether there was any sample.
func (e Estimate) Known() bool { return e.samples > 0 }

// Samples gives the number of samples seen.
func (e Estimate) Samples() uint64 { return e.samples }

// Mean gives the exponentially weighted average: what a request will likely take.
func (e Estimate) Mean() time.Duration { return e.mean }

// Deviation gives the average distance of samples from the mean.
func (e Estimate) Deviation() time.Duration { return e.deviation }

// Min gives the least of the last 64 to 128 samples: the way itself, without queues. Compare distances by it.
func (e Estimate) Min() time.Duration { return min(e.least, e.before) }

// Or gives the least sample, or what was assumed while there is none.
func (e Estimate) Or(assumed time.Duration) time.Duration {
	if !e.Known() {
		return assumed
	}
	return e.Min()
}
