package rtt

import "time"

const (
	// smoothing is the inverse weight of a new sample in the average, variation its inverse weight
	// in the deviation: the constants of TCP, 1/8 and 1/4 (RFC 6298, section 2).
	smoothing = 8
	variation = 4
	// minWindow is the number of samples in a window of the minimum. A minimum expires after one to
	// two windows, so that the estimate follows a route that became longer.
	minWindow = 64
)

// Estimate is a running estimate of one round trip. It is a value: Observe returns the updated one.
// The zero value has no samples.
type Estimate struct {
	mean, deviation time.Duration
	// least is the minimum of the current window of samples, before the minimum of the previous
	// window.
	least, before time.Duration
	samples       uint64
}

// Observe returns the estimate after one more sample. It ignores negative samples: they come from a
// broken clock.
func (e Estimate) Observe(sample time.Duration) Estimate {
	switch {
	case sample < 0:
		return e
	case e.samples == 0:
		// Half the first sample is the initial deviation in RFC 6298 too.
		e.mean, e.deviation, e.least, e.before = sample, sample/2, sample, sample
	default:
		// The deviation is updated first because it is measured from the old mean.
		e.deviation += ((e.mean - sample).Abs() - e.deviation) / variation
		e.mean += (sample - e.mean) / smoothing
		e.least = min(e.least, sample)
	}
	e.samples++
	if e.samples%minWindow == 0 {
		// Starting a new window with the sample itself keeps Min defined without a special case.
		e.before, e.least = e.least, sample
	}
	return e
}

// Known reports whether there is any sample.
func (e Estimate) Known() bool { return e.samples > 0 }

// Samples returns the number of samples so far.
func (e Estimate) Samples() uint64 { return e.samples }

// Mean returns the exponentially weighted average, which predicts the duration of the next request.
func (e Estimate) Mean() time.Duration { return e.mean }

// Deviation returns the average distance of the samples from the mean.
func (e Estimate) Deviation() time.Duration { return e.deviation }

// Min returns the minimum of the last 64 to 128 samples: the path without queues. Use it to compare
// distances.
func (e Estimate) Min() time.Duration { return min(e.least, e.before) }

// Or returns Min, or assumed if there is no sample.
func (e Estimate) Or(assumed time.Duration) time.Duration {
	if !e.Known() {
		return assumed
	}
	return e.Min()
}
