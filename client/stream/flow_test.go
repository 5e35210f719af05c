package stream

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// grow answers requests of 64 KiB with a full window until it has the size, and returns their
// number.
func grow(t *testing.T, f *flow, now time.Time, until int) (answers int) {
	t.Helper()
	for ; f.window < until; answers++ {
		f.inflight = f.window
		f.onAnswer(now, time.Millisecond, 64<<10)
		if answers > 1e6 {
			t.Fatalf("the window stays at %d", f.window)
		}
	}
	return answers
}

// A flow doubles at first; it halves once for refusals that come together, and for slow answers,
// never below its least; then it grows little by little, if it is used.
func TestFlow(t *testing.T) {
	f := newFlow()
	now := time.Unix(1_000, 0)
	if f.isNarrow() || !f.hasRoom(windowMax, 0) || f.hasRoom(1, windowFirst) {
		t.Fatalf("a new flow: %+v", f)
	}
	if n := grow(t, &f, now, 8<<20); n != 6<<20/(64<<10) {
		t.Errorf("%d answers of 64 KiB let a window of 2 MiB grow to 8 MiB", n)
	}
	f.inflight = 8 << 20
	f.onRefusal(now)
	f.onRefusal(now.Add(cutPause - 1))
	if f.window != 4<<20 || !f.isNarrow() || f.hasRoom(1, 0) {
		t.Fatalf("the window is %d after refusals with 8 MiB under way, want 4 MiB", f.window)
	}
	now = now.Add(cutPause)
	f.inflight = 4 << 20
	f.onAnswer(now, easyWait+2*time.Millisecond, 1)
	if f.window != 4<<20 {
		t.Fatalf("the window is %d after an answer that was neither quick nor slow, want 4 MiB", f.window)
	}
	f.onAnswer(now, SlowWait+2*time.Millisecond, 1)
	if f.window != 2<<20 {
		t.Fatalf("the window is %d after a slow answer with 4 MiB under way, want 2 MiB", f.window)
	}
	for i := range 20 {
		f.onRefusal(now.Add(time.Duration(i+1) * cutPause))
	}
	f.inflight = 0
	f.onAnswer(now, 0, 64<<10)
	if f.window != windowMin || !f.hasRoom(2*windowMin, 0) {
		t.Fatalf("the window is %d after many refusals, want %d, and one large request goes all the same", f.window, windowMin)
	}
	if n := grow(t, &f, now, windowMax); n < 10_000 || f.isNarrow() {
		t.Fatalf("the window was wide again after %d answers of 64 KiB", n)
	}
}

// The time for the flight grows with what a node makes requests wait, never takes all, and falls
// when the node is quick again.
func TestFlight(t *testing.T) {
	f := newFlow()
	now := time.Unix(1_000, 0)
	const most = 3 * time.Second
	if got := f.flight(most); got != most/2 {
		t.Errorf("%v are for the flight to a node that never answered, want half of %v", got, most)
	}
	answer := func(n int, took time.Duration) {
		for range n {
			f.onAnswer(now, took, 1)
		}
	}
	answer(1, 250*time.Millisecond) // a far region: that is no waiting
	if got := f.flight(300 * time.Millisecond); got != 250*time.Millisecond {
		t.Errorf("%v of 300 ms are for a flight that takes 250 ms without waiting, want 250 ms", got)
	}
	answer(100, 900*time.Millisecond)
	if got := f.flight(most); got < 2*time.Second || got > 2250*time.Millisecond {
		t.Errorf("%v are for the flight when answers wait for 650 ms, want about 2.2 s", got)
	}
	f.onTimeout(now, most)
	f.onTimeout(now, most)
	if got, want := f.flight(most), most-most/turnShare; got != want {
		t.Errorf("%v are for the flight after requests that were given up, want %v", got, want)
	}
	answer(100, 250*time.Millisecond)
	if got := f.flight(most); got != most/2 {
		t.Errorf("%v are for the flight to a node that is quick again, want half", got)
	}
	f.cut = time.Time{}
	if !f.isWorking(now) || f.isWorking(now.Add(freshFor)) {
		t.Error("a node works as long as its last answer is fresh, and no longer")
	}
}

// TestTurn guards how long a request waits for its turn: until it can no longer be answered in
// time, with a look at the node whenever an attempt would be over, and only while the node works.
func TestTurn(t *testing.T) {
	now := time.Unix(1_000, 0)
	const timeout = 3 * time.Second // half of it is for the flight while answers are fast
	for _, x := range []struct {
		name        string
		heard, left time.Duration
		want        time.Duration
	}{
		{"much time is left", 0, 10 * time.Second, timeout / 2},
		{"the deadline comes before the next look", 0, 2 * time.Second, 500 * time.Millisecond},
		{"just too late to be answered", 0, timeout / 2, 0},
		{"the deadline has passed", 0, -time.Second, 0},
		{"the last answer is nearly too old", freshFor - 1, 10 * time.Second, timeout / 2},
		{"the node does not answer", freshFor, 10 * time.Second, 0},
	} {
		f := newFlow()
		f.onAnswer(now, time.Millisecond, 1)
		if got := f.turn(now.Add(x.heard), timeout, x.left); got != x.want {
			t.Errorf("%s: waits for %v, want %v", x.name, got, x.want)
		}
	}
	f := newFlow()
	if got := f.turn(now, timeout, 10*time.Second); got != 0 {
		t.Errorf("waits %v for a node that was never heard of", got)
	}
	f.onRefusal(now)
	if got := f.turn(now, timeout, 10*time.Second); got != timeout/2 {
		t.Errorf("waits %v for a node that refuses requests, which works, want %v", got, timeout/2)
	}
}

// TestFullRetry guards that a full queue asks for the pause in which the node answers half of it,
// within the bounds.
func TestFullRetry(t *testing.T) {
	now := time.Unix(1_000, 0)
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: fullRetryMin, 10 * time.Millisecond: 160 * time.Millisecond, 5 * time.Second: fullRetryMax,
	} {
		f := newFlow()
		f.onAnswer(now, took, 1)
		if got := f.fullRetry(32 * f.window); got != want {
			t.Errorf("a pause of %v while answers take %v, want %v", got, took, want)
		}
	}
}

// TestFlowBounds guards, for any sequence of events, the bounds of the window, that the flight
// never takes the whole timeout, and that a request always has room while nothing is in flight.
func TestFlowBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFlow()
		now := time.Unix(1_000, 0)
		for range 100 {
			now = now.Add(time.Duration(rapid.IntRange(0, 500).Draw(t, "pause")) * time.Millisecond)
			took := time.Duration(rapid.IntRange(0, 5_000).Draw(t, "took")) * time.Millisecond
			size := rapid.IntRange(1, 8<<20).Draw(t, "size")
			f.inflight = rapid.IntRange(size, 2*windowMax).Draw(t, "inflight")
			before, wasCut := f.window, now.Sub(f.cut) < cutPause
			switch rapid.IntRange(0, 2).Draw(t, "event") {
			case 0:
				f.onAnswer(now, took, size)
				if f.window > before+size {
					t.Fatalf("an answer of %d bytes lets the window grow from %d to %d", size, before, f.window)
				}
			case 1:
				f.onRefusal(now)
			default:
				f.onTimeout(now, took)
			}
			if f.window < windowMin || f.window > windowMax {
				t.Fatalf("the window is %d", f.window)
			}
			if wasCut && f.window < before {
				t.Fatal("the window was cut twice within the pause")
			}
			for _, timeout := range []time.Duration{time.Millisecond, 3 * time.Second} {
				flight := f.flight(timeout)
				if flight < timeout/2 || flight >= timeout {
					t.Fatalf("%v of %v are for the flight", flight, timeout)
				}
				left := time.Duration(rapid.Int64Range(-1, int64(2*timeout)).Draw(t, "left"))
				if turn := f.turn(now, timeout, left); turn < 0 || turn > 0 && (turn+flight > left || turn+flight > timeout) {
					t.Fatalf("a request waits for %v with %v left and a flight of %v", turn, left, flight)
				}
			}
			f.inflight = 0
			if !f.hasRoom(queueBytesMax+1, 0) {
				t.Fatal("an idle flow has no room")
			}
		}
	})
}

// TestFrames guards that one frame at a time gathers requests while answers are fast, and several when they are slow.
func TestFrames(t *testing.T) {
	f := newFlow()
	now := time.Unix(1, 0)
	answer := func(took time.Duration) {
		for range 4 * smoothing {
			f.onAnswer(now, took, 1)
		}
	}
	if got := f.frames(); got != 1 {
		t.Errorf("before the first answer: %d", got)
	}
	answer(300 * time.Microsecond)
	if got := f.frames(); got != 1 {
		t.Errorf("fast answers: %d", got)
	}
	answer(20 * time.Millisecond)
	if got := f.frames(); got != framesMax {
		t.Errorf("slow answers: %d", got)
	}
	answer(300 * time.Microsecond)
	if got := f.frames(); got != 1 {
		t.Errorf("fast again: %d", got)
	}
}
