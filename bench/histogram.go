package bench

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts durations with an error below 1 in histogramSteps, whatever their number: a run of an hour has more writes than a
// slice of their durations should hold. The zero value is empty. It is not safe for concurrent use.
type histogram struct {
	counts [histogramSteps * 64]int64
	total  int64
	most   time.Duration // exact, because benchmarks look for single pauses
}

// histogramSteps is the number of buckets between a power of two and the next, a power of two itself.
const histogramSteps = 64

// bucketOf returns the bucket of a duration of us microseconds. Below histogramSteps there is one for each microsecond.
func bucketOf(us uint64) int {
	if us < histogramSteps {
		return int(us)
	}
	// The bits after the leading one select the step.
	shift := bits.Len64(us) - bits.Len64(histogramSteps-1) - 1
	return (shift+1)*histogramSteps + int(us>>shift) - histogramSteps
}

// edgeOf returns the smallest number of microseconds of a bucket.
func edgeOf(bucket int) uint64 {
	if bucket < histogramSteps {
		return uint64(bucket)
	}
	shift := bucket/histogramSteps - 1
	return uint64(histogramSteps+bucket%histogramSteps) << shift
}

// add counts a duration.
func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(uint64(max(d, 0)/time.Microsecond))]++
	h.total++
	h.most = max(h.most, d)
}

// quantiles returns the median, the 99th percentile and the maximum: zeros if nothing was counted.
func (h *histogram) quantiles() Quantiles {
	return Quantiles{h.at(0.5), h.at(0.99), float64(h.most.Nanoseconds()) / 1e3}
}

// at returns the duration below or at which a share of all durations are, in microseconds.
func (h *histogram) at(share float64) float64 {
	rank, seen := int64(math.Ceil(share*float64(h.total))), int64(0)
	for i, n := range h.counts {
		if seen += n; n > 0 && seen >= rank {
			return float64(edgeOf(i))
		}
	}
	return 0
}
