package hlc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The watchdog trips on what a lease could not survive and stays quiet on what a disciplined clock does.
func TestWatchdogCheck(t *testing.T) {
	const tick = 50 * time.Millisecond
	for _, c := range []struct {
		name string
		// extra is what wall time moves more than monotonic time in each of 200 readings.
		extra func(i int) time.Duration
		trips int
	}{
		{"agree", func(int) time.Duration { return 0 }, 0},
		{"slewed by 0.05 %", func(int) time.Duration { return tick / 2000 }, 0},
		{"step of 90 ms", one(100, 90*time.Millisecond), 0},
		{"step of 110 ms", one(100, 110*time.Millisecond), 1},
		{"step back of a minute", one(100, -time.Minute), 1},
		{"uncounted pause of 2 s", one(7, 2*time.Second), 1},
		{"two steps apart by more than the window", func(i int) time.Duration {
			if i == 20 || i == 120 {
				return 60 * time.Millisecond
			}
			return 0
		}, 0},
		{"two steps within the window", func(i int) time.Duration {
			if i == 20 || i == 30 {
				return 60 * time.Millisecond
			}
			return 0
		}, 1},
		{"many small pauses", func(i int) time.Duration { return 10 * time.Millisecond }, 18},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w Watchdog
			boot, wall := time.Hour, time.UnixMilli(1_700_000_000_000)
			trips := 0
			for i := range 200 {
				if _, trip := w.Check(boot, wall); trip {
					trips++
				}
				boot, wall = boot+tick, wall.Add(tick+c.extra(i))
			}
			if trips != c.trips {
				t.Errorf("tripped %d times, want %d", trips, c.trips)
			}
		})
	}
}

func one(at int, d time.Duration) func(int) time.Duration {
	return func(i int) time.Duration {
		if i == at {
			return d
		}
		return 0
	}
}

// A pause longer than the window is still compared with the reading before it.
func TestWatchdogLongPause(t *testing.T) {
	var w Watchdog
	wall := time.UnixMilli(1_700_000_000_000)
	w.Check(time.Hour, wall)
	d, trip := w.Check(time.Hour+time.Minute, wall.Add(3*time.Minute))
	if !trip || d != 2*time.Minute {
		t.Fatalf("disagreement %v, trip %v after an uncounted pause of two minutes", d, trip)
	}
	if len(w.samples) != 1 {
		t.Fatalf("%d readings kept after a trip", len(w.samples))
	}
}

// The driver reads both clocks every interval, reports each trip once, and ends with its context.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Watchdog
		start := time.Now()
		boot := func() time.Duration { return time.Since(start) }
		wall := func() time.Time {
			if time.Since(start) > time.Second {
				return time.Now().Add(300 * time.Millisecond)
			}
			return time.Now()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var trips []time.Duration
		w.watchClocks(ctx, boot, wall, func(d time.Duration) { trips = append(trips, d) })
		if len(trips) != 1 || trips[0] != 300*time.Millisecond {
			t.Errorf("trips %v, want one of 300 ms", trips)
		}
	})
}

// Boottime runs as fast as Go's clock does while the machine is awake.
func TestBoottime(t *testing.T) {
	a := Boottime()
	if a <= 0 {
		t.Fatalf("Boottime %v", a)
	}
	start := time.Now()
	for time.Since(start) < 2*time.Millisecond {
	}
	if d := Boottime() - a; d < 2*time.Millisecond {
		t.Errorf("Boottime moved by %v in 2 ms", d)
	}
}
