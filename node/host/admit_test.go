package host

import (
	"math"
	"testing"
	"time"
)

func TestWaterLevel(t *testing.T) {
	for _, tc := range []struct {
		sizes       []int64
		total, want int64
	}{
		{[]int64{10, 1, 1}, 6, 4},
		{[]int64{5, 5, 5}, 6, 2},
		{[]int64{9, 3, 1}, 7, 3},
		{[]int64{7}, 3, 3},
		{[]int64{1, 2, 3}, 6, math.MaxInt64},
		{[]int64{10, 100}, 115, math.MaxInt64},
		{nil, 5, math.MaxInt64}, // all fit
	} {
		got := waterLevel(tc.sizes, tc.total)
		var sum int64
		for _, s := range tc.sizes {
			sum += min(s, got)
		}
		if sum > tc.total || got != tc.want {
			t.Errorf("sizes %v cut to %d: %d, which is %d together, want %d", tc.sizes, tc.total, got, sum, tc.want)
		}
	}
}

// TestPace guards that a pace shrinks once for slow answers that arrive together, never below its
// minimum, and grows only while it is the limit.
func TestPace(t *testing.T) {
	p := newPace(16 << 20)
	p.recordAnswer(time.Second, paceSlow+1, 1, 16<<20)
	p.recordAnswer(time.Second+1, paceSlow+1, 1, 16<<20)
	if want := int64(16<<20) * 7 / 10; p.limit != want {
		t.Fatalf("the pace is %d after slow answers, want %d", p.limit, want)
	}
	for i := range 100 {
		p.recordAnswer(time.Duration(i+2)*time.Second, paceSlow+1, 1, 16<<20)
	}
	if p.limit != paceMin {
		t.Fatalf("the pace fell to %d, want %d", p.limit, paceMin)
	}
	p.recordAnswer(time.Hour, time.Millisecond, 1<<20, paceMin/2)
	if p.limit != paceMin {
		t.Fatalf("the pace grew to %d although little was taken in", p.limit)
	}
	for range 1_000 {
		p.recordAnswer(time.Hour, time.Millisecond, 1<<20, p.limit)
	}
	if p.limit != 16<<20 {
		t.Fatalf("the pace is %d after many quick answers, want all of it", p.limit)
	}
}

// TestAdmission guards that a stuck batch does not use up the room of others, and that it is not
// counted twice if it is answered after all.
func TestAdmission(t *testing.T) {
	a := &admission{clock: func() time.Duration { return time.Hour }, pace: newPace(100)}
	stuck, ok := a.admitBatch(a.clock(), 80)
	if _, more := a.admitBatch(a.clock(), 30); !ok || more {
		t.Fatal("80 bytes of 100 are not taken in, or 110 are")
	}
	stuck.since -= stuckAfter + 1
	next, ok := a.admitBatch(a.clock(), 30)
	if used, _ := a.readUsage(); !ok || used != 30 {
		t.Fatalf("%d bytes count beside a batch that is stuck, want 30", used)
	}
	a.endBatch(a.clock(), stuck)
	a.endBatch(a.clock(), next)
	if used, _ := a.readUsage(); used != 0 {
		t.Fatalf("%d bytes count when all is answered", used)
	}
	if _, ok := a.admitBatch(a.clock(), 1_000); !ok {
		t.Fatal("a batch above the bound never goes")
	}
}

// TestRetryAfter guards that the pause suggested by a rejection follows the time that batches take,
// within its bounds.
func TestRetryAfter(t *testing.T) {
	now := time.Hour
	a := &admission{clock: func() time.Duration { return now }, pace: newPace(1 << 20)}
	if got := a.retryAfter(); got != retryAfterMin {
		t.Errorf("%v before any answer, want %v", got, retryAfterMin)
	}
	answer := func(took time.Duration) {
		for range 20 * latencyWeight {
			b, ok := a.admitBatch(a.clock(), 1)
			if !ok {
				t.Fatal("a batch of one byte does not go")
			}
			now += took
			a.endBatch(a.clock(), b)
		}
	}
	answer(300 * time.Millisecond)
	if got := a.retryAfter(); got < 299*time.Millisecond || got > 300*time.Millisecond {
		t.Errorf("%v when batches take 300 ms", got)
	}
	answer(time.Minute)
	if got := a.retryAfter(); got != retryAfterMax {
		t.Errorf("%v when batches take a minute, want %v", got, retryAfterMax)
	}
}
