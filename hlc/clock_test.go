package hlc

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rhumbdb/rhumb"
)

// world is a wall clock and a disk that a test moves by hand.
type world struct {
	mu      sync.Mutex
	wall    time.Time
	durable rhumb.Timestamp
	broken  error
}

func newWorld() *world { return &world{wall: time.UnixMilli(1_700_000_000_000)} }

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wall
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wall = w.wall.Add(d)
}

func (w *world) persist(ts rhumb.Timestamp) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return w.broken
	}
	w.durable = ts
	return nil
}

// start opens a clock on what the disk holds, as a restarted node does.
func (w *world) start(t testing.TB) *Clock {
	t.Helper()
	c, err := New(Config{Wall: w.now, Ceiling: w.durable, Persist: w.persist})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustNow(t testing.TB, c *Clock) rhumb.Timestamp {
	t.Helper()
	ts, err := c.Now()
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

// Timestamps follow the wall clock and count within the millisecond.
func TestNowFollowsWall(t *testing.T) {
	w := newWorld()
	c := w.start(t)
	a, b := mustNow(t, c), mustNow(t, c)
	if a.WallMs() != w.wall.UnixMilli() || a.Logical() != 0 || b != a+1 {
		t.Fatalf("got %v, %v at wall %v", a, b, w.wall)
	}
	w.advance(5 * time.Millisecond)
	if d := mustNow(t, c); d.Sub(a) != 5*time.Millisecond || d.Logical() != 0 {
		t.Fatalf("after 5 ms the clock went from %v to %v", a, d)
	}
}

// A wall clock that is set back does not take the clock with it: the logical part grows until wall time has caught up.
func TestWallSetBack(t *testing.T) {
	w := newWorld()
	c := w.start(t)
	before := mustNow(t, c)
	w.advance(-time.Hour)
	if err := c.Refresh(); err != nil {
		t.Fatal(err)
	}
	if after := mustNow(t, c); after != before+1 {
		t.Fatalf("got %v after %v and a step back of an hour", after, before)
	}
	s := c.Stats()
	if s.WallBack != 1 || s.WallBackMax != time.Hour || s.Lead != time.Hour {
		t.Fatalf("stats %+v do not show one step of an hour", s)
	}
	w.advance(time.Hour + time.Second)
	if after := mustNow(t, c); after.Sub(before) != time.Second {
		t.Fatalf("the clock did not rejoin wall time: %v after %v", after, before)
	}
}

// Nothing is issued above the durable ceiling, and a restart begins above everything issued before, whatever the wall
// clock says then.
func TestCeilingBoundsRestart(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, 0, time.Second, time.Minute} {
		t.Run(step.String(), func(t *testing.T) {
			w := newWorld()
			c := w.start(t)
			issued := mustNow(t, c)
			w.advance(2 * time.Second)
			issued = max(issued, mustNow(t, c))
			if issued > w.durable {
				t.Fatalf("issued %v above the durable ceiling %v", issued, w.durable)
			}
			old := w.durable
			w.advance(step)
			if next := mustNow(t, w.start(t)); next <= issued || next <= old {
				t.Fatalf("restart issued %v, before it %v under ceiling %v", next, issued, old)
			}
		})
	}
}

// A node that restarts in a loop must not run away from its peers: each start begins at the old ceiling, and only time
// that has passed may lift it.
func TestRestartLoopStaysNear(t *testing.T) {
	w := newWorld()
	for range 100 {
		mustNow(t, w.start(t))
		w.advance(200 * time.Millisecond)
	}
	if lead := w.durable.Sub(rhumb.MakeTimestamp(w.wall.UnixMilli(), 0)); lead > WindowDefault+headroom {
		t.Fatalf("after 100 restarts the ceiling leads wall time by %v", lead)
	}
}

// A disk that does not take the ceiling delays the clock but does not stop it, until the ceiling is used up; then Now
// says Unavailable, and never issues above the ceiling.
func TestStalledDisk(t *testing.T) {
	w := newWorld()
	c := w.start(t)
	w.broken = errors.New("no space left on device")
	w.advance(time.Minute)
	if err := c.Refresh(); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Fatalf("Refresh on a broken disk: %v", err)
	}
	a := mustNow(t, c)
	if b := mustNow(t, c); b != a+1 || b > w.durable {
		t.Fatalf("issued %v, %v under ceiling %v", a, b, w.durable)
	}
	if err := c.Forward(c.Ceiling()); err != nil {
		t.Fatalf("Forward up to the ceiling: %v", err)
	}
	if ts, err := c.Now(); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Fatalf("Now gave %v, %v with the ceiling used up", ts, err)
	}
	if err := c.Update(c.Ceiling() + 1); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Fatalf("Update above a ceiling that cannot be raised: %v", err)
	}
	if s := c.Stats(); s.Exhausted == 0 || s.PersistErrors == 0 {
		t.Fatalf("stats %+v hide the stall", s)
	}
	w.broken = nil
	if ts := mustNow(t, c); ts.Time().Before(w.wall) && ts <= a {
		t.Fatalf("issued %v after the disk came back", ts)
	}
	if mustNow(t, c) > w.durable {
		t.Fatal("issued above the durable ceiling")
	}
}

// What a peer has seen lies in this node's past afterwards; this is what makes an acknowledged closed timestamp hold,
// also across a crash right after the acknowledgement.
func TestUpdateSurvivesCrash(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Second, 0, time.Second, 5 * time.Second, rhumb.ClockAheadMax} {
		w := newWorld()
		c := w.start(t)
		peer := rhumb.MakeTimestamp(w.wall.UnixMilli(), 0).Add(ahead)
		if err := c.Update(peer); err != nil {
			t.Fatalf("ahead %v: %v", ahead, err)
		}
		if ts := mustNow(t, c); ts <= peer {
			t.Errorf("ahead %v: issued %v, the peer had %v", ahead, ts, peer)
		}
		w.advance(-time.Minute)
		if ts := mustNow(t, w.start(t)); ts <= peer {
			t.Errorf("ahead %v: issued %v after a crash, the peer had %v", ahead, ts, peer)
		}
	}
}

// A peer whose clock is far ahead is refused and leaves the clock alone.
func TestUpdateRefusesFarAhead(t *testing.T) {
	w := newWorld()
	c := w.start(t)
	before := mustNow(t, c)
	far := rhumb.MakeTimestamp(w.wall.UnixMilli(), 0).Add(rhumb.ClockAheadMax)
	for _, ts := range []rhumb.Timestamp{far + 1, far.Add(time.Hour), 1 << 62, 1 << 63, ^rhumb.Timestamp(0)} {
		if err := c.Update(ts); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("Update(%d): %v", uint64(ts), err)
		}
	}
	if after := mustNow(t, c); after != before+1 {
		t.Fatalf("a refused timestamp moved the clock from %v to %v", before, after)
	}
	if s := c.Stats(); s.Refused != 5 || s.PeerAheadMax != 0 {
		t.Fatalf("stats %+v, want 5 refused", s)
	}
	if err := c.Forward(far.Add(time.Hour)); err != nil {
		t.Fatalf("Forward must take what stands in a log: %v", err)
	}
	if err := c.Forward(1 << 63); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Fatalf("Forward of a damaged timestamp: %v", err)
	}
}

func TestReserve(t *testing.T) {
	w := newWorld()
	c := w.start(t)
	a, err := c.Reserve(100)
	if err != nil {
		t.Fatal(err)
	}
	if b := mustNow(t, c); b != a+100 {
		t.Fatalf("reserved 100 from %v, then got %v", a, b)
	}
	for _, n := range []int{-1, 0, ReserveMax + 1} {
		if _, err := c.Reserve(n); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("Reserve(%d): %v", n, err)
		}
	}
}

// Read never shows less than what was issued, and never issues.
func TestRead(t *testing.T) {
	w := newWorld()
	c := w.start(t)
	a := mustNow(t, c)
	if r := c.Read(); r != a {
		t.Fatalf("read %v after issuing %v", r, a)
	}
	w.advance(time.Second)
	if r := c.Read(); r.Sub(a) != time.Second {
		t.Fatalf("read %v a second after %v", r, a)
	}
}

// Callers at the same time get different, growing timestamps below the ceiling.
func TestConcurrent(t *testing.T) {
	const callers, each = 8, 2_000
	w := newWorld()
	c := w.start(t)
	got := make([][]rhumb.Timestamp, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for k := range each {
				ts, err := c.Now()
				if err != nil || ts > c.Ceiling() {
					t.Errorf("issued %v, %v under ceiling %v", ts, err, c.Ceiling())
					return
				}
				if n := len(got[i]); n > 0 && got[i][n-1] >= ts {
					t.Errorf("%v after %v", ts, got[i][n-1])
					return
				}
				got[i] = append(got[i], ts)
				if k%100 == 0 {
					w.advance(time.Duration(i-1) * 10 * time.Millisecond)
					if err := c.Update(ts.Add(time.Second)); err != nil && rhumb.KindOf(err) != rhumb.InvalidArgument {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	seen := make(map[rhumb.Timestamp]bool)
	for _, list := range got {
		for _, ts := range list {
			if seen[ts] {
				t.Fatalf("%v was issued twice", ts)
			}
			seen[ts] = true
		}
	}
}

// Run keeps the ceiling ahead of the wall clock, reports a disk that refuses, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		c, err := New(Config{Persist: w.persist})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var reports int
		done := make(chan error)
		go func() { done <- c.Run(ctx, func(error) { reports++ }) }()
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if lead := time.Until(w.durable.Time()); lead < WindowDefault-RefreshDefault || lead > WindowDefault {
			t.Errorf("after 10 s the ceiling leads wall time by %v", lead)
		}
		w.mu.Lock()
		w.broken = errors.New("read-only file system")
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if reports != 2 {
			t.Errorf("%d reports of a broken disk in two refreshes", reports)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
}

func TestConfigValidate(t *testing.T) {
	persist := func(rhumb.Timestamp) error { return nil }
	for name, c := range map[string]struct {
		cfg    Config
		faults int
	}{
		"defaults":       {Config{Persist: persist}, 0},
		"no persister":   {Config{}, 1},
		"slow refresh":   {Config{Persist: persist, Refresh: 3 * time.Second}, 1},
		"all are listed": {Config{Refresh: -1, AheadMax: -1}, 3},
	} {
		err := c.cfg.Validate()
		var n int
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			n = len(j.Unwrap())
		}
		if n != c.faults {
			t.Errorf("%s: %d faults, want %d: %v", name, n, c.faults, err)
		}
		if _, newErr := New(c.cfg); (newErr == nil) != (c.faults == 0) {
			t.Errorf("%s: New gave %v", name, newErr)
		}
	}
	broken := errors.New("input/output error")
	if _, err := New(Config{Persist: func(rhumb.Timestamp) error { return broken }}); !errors.Is(err, broken) {
		t.Errorf("New on a broken disk: %v", err)
	}
}

func BenchmarkNow(b *testing.B) {
	c, err := New(Config{Persist: func(rhumb.Timestamp) error { return nil }})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := c.Now(); err != nil {
			b.Fatal(err)
		}
	}
}
