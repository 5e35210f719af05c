package load

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestRun checks the basis of the figures: each caller has one call in progress and uses its own
// keys, only calls that end in the measured time count, and errors are not throughput.
func TestRun(t *testing.T) {
	c := Case{Op: Put, Callers: 4, ValueBytes: 10, Keys: 3, Warm: 20 * time.Millisecond, Measure: 200 * time.Millisecond}
	var mu sync.Mutex
	keys := map[[2]int]int{}
	var busy [4]atomic.Int32
	var total atomic.Int64
	r := Run(t.Context(), c, []int{os.Getpid()}, func(_ context.Context, s Step) error {
		caller := s.Caller
		if n := busy[caller].Add(1); n != 1 || s.Op != Put || len(s.Value) != c.ValueBytes || s.Keys != 1 {
			t.Errorf("%d calls of caller %d at once, of %s of %d keys with %d bytes", n, caller, s.Op, s.Keys, len(s.Value))
		}
		defer busy[caller].Add(-1)
		total.Add(1)
		mu.Lock()
		keys[[2]int{caller, s.Key}]++
		mu.Unlock()
		for begin := time.Now(); time.Since(begin) < 200*time.Microsecond; { // work, so that there is processor time
		}
		if caller == 3 {
			return errors.New("refused")
		}
		return nil
	})
	if len(keys) != c.Callers*c.Keys {
		t.Errorf("%d keys were used, want %d", len(keys), c.Callers*c.Keys)
	}
	if r.Ops == 0 || r.Errors == 0 || r.Ops+r.Errors > total.Load() || r.FirstError != "refused" {
		t.Errorf("%d calls, %d errors, first %q, of %d calls made", r.Ops, r.Errors, r.FirstError, total.Load())
	}
	if r.P50 < 200 || r.P50 > r.P99 || r.P99 > r.P999 || r.P999 > r.Max {
		t.Errorf("p50 %d, p99 %d, max %d µs of calls that take 200 µs", r.P50, r.P99, r.Max)
	}
	if most := float64(r.Ops) / c.Measure.Seconds(); r.OpsPerSecond <= 0 || r.OpsPerSecond > most {
		t.Errorf("%.0f calls a second, %d calls in at least %v", r.OpsPerSecond, r.Ops, c.Measure)
	}
	if r.ServerCPU <= 0 {
		t.Errorf("%.1f µs of processor time per call of a process that works", r.ServerCPU)
	}
}

// TestRunCountsLongCalls checks that a call that began before the measured time and ended in it
// counts: calls under overload take as long as the measurement.
func TestRunCountsLongCalls(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := Case{Op: Put, Callers: 1, Keys: 2, Warm: time.Millisecond, Measure: time.Hour}
	r := Run(ctx, c, nil, func(_ context.Context, s Step) error {
		if s.Key == 0 {
			time.Sleep(300 * c.Warm)
			return nil
		}
		cancel()
		return errors.New("the end")
	})
	if r.Ops != 1 {
		t.Errorf("%d calls were counted, want 1", r.Ops)
	}
}

// TestCreateTakesNewKeys checks that no key number of a creation occurs twice, however few keys the
// case has.
func TestCreateTakesNewKeys(t *testing.T) {
	var mu sync.Mutex
	keys := map[[2]int]int{}
	Run(t.Context(), Case{Op: Create, Callers: 2, Keys: 3, Measure: 20 * time.Millisecond}, nil, func(_ context.Context, s Step) error {
		mu.Lock()
		defer mu.Unlock()
		keys[[2]int{s.Caller, s.Key}]++
		return nil
	})
	for k, n := range keys {
		if n > 1 {
			t.Fatalf("caller %d created key %d %d times", k[0], k[1], n)
		}
	}
	if len(keys) <= 2*3 {
		t.Fatalf("%d keys were created", len(keys))
	}
}

// TestBatches checks that keys are counted and not calls, that calls do not share keys, and that
// processor time is per key.
func TestBatches(t *testing.T) {
	for _, op := range []Op{Create, Put} {
		var mu sync.Mutex
		firsts := map[int]int{}
		calls := 0
		r := Run(t.Context(), Case{Op: op, Callers: 1, Batch: 7, Keys: 21, Measure: 50 * time.Millisecond}, []int{os.Getpid()}, func(_ context.Context, s Step) error {
			mu.Lock()
			defer mu.Unlock()
			calls++
			firsts[s.Key]++
			if s.Keys != 7 {
				t.Errorf("a call has %d keys", s.Keys)
			}
			if calls%4 == 0 {
				return errors.New("refused")
			}
			return nil
		})
		for key := range firsts {
			if key%7 != 0 || op == Put && key >= 21 {
				t.Fatalf("%s: a call began at key %d", op, key)
			}
		}
		if op == Create && len(firsts) != calls || op == Put && len(firsts) != 3 {
			t.Errorf("%s: %d calls began at %d keys", op, calls, len(firsts))
		}
		if r.Ops < 7 || r.Ops%7 != 0 || r.Errors < 7 || r.Errors%7 != 0 || r.Ops+r.Errors > int64(7*calls) {
			t.Errorf("%s: %d keys, %d failed, of %d calls", op, r.Ops, r.Errors, calls)
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	r := Run(ctx, Case{Op: Get, Callers: 2, Keys: 1, Warm: time.Hour, Measure: time.Hour}, nil, func(ctx context.Context, _ Step) error {
		once.Do(cancel)
		return ctx.Err()
	})
	if r.Ops != 0 {
		t.Errorf("%d calls were measured", r.Ops)
	}
}

func TestCPU(t *testing.T) {
	before := CPU([]int{os.Getpid()})
	for deadline := time.Now().Add(20 * time.Second); CPU([]int{os.Getpid()}) < before+5*clockTick; {
		if time.Now().After(deadline) {
			t.Fatal("a process that works uses no processor time")
		}
	}
	if d := CPU([]int{-1}); d != 0 {
		t.Errorf("a process that is not there has used %v", d)
	}
}
