package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestHistogram compares the quantiles of random durations with those of the sorted slice.
func TestHistogram(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var h histogram
		var all []time.Duration
		// From microseconds to an hour, so that most buckets are reached.
		scale := time.Duration(1) << rng.IntN(42)
		for range 1 + rng.IntN(2_000) {
			d := time.Microsecond + time.Duration(rng.Int64N(int64(scale)))
			all = append(all, d)
			h.add(d)
		}
		got, want := h.quantiles(), quantilesOf(slices.Clone(all))
		for _, q := range [][2]float64{{got.P50, want.P50}, {got.P99, want.P99}} {
			// The slice counts nanoseconds, the histogram whole microseconds.
			if math.Abs(q[0]-q[1]) > 1+q[1]/histogramSteps {
				t.Fatalf("scale %v, %d durations: %v instead of %v", scale, len(all), q[0], q[1])
			}
		}
		if got.Max != want.Max || h.total != int64(len(all)) {
			t.Fatalf("the maximum of %d durations is %v instead of %v", h.total, got.Max, want.Max)
		}
	}
}

// TestHistogramBuckets checks that each bucket begins where its edge says.
func TestHistogramBuckets(t *testing.T) {
	for i := range len((&histogram{}).counts) - 6*histogramSteps {
		if e := edgeOf(i); bucketOf(e) != i || i > 0 && bucketOf(e-1) != i-1 {
			t.Fatalf("bucket %d begins at %d, which is in bucket %d", i, e, bucketOf(e))
		}
	}
}
