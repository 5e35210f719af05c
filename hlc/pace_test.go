package hlc

import (
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// paced is a clock with a wall clock and a monotonic one that a test moves.
func paced(t *testing.T) (c *Clock, wall, mono *time.Duration) {
	t.Helper()
	wall, mono = new(time.Duration), new(time.Duration)
	*wall = 1_000 * time.Hour
	c, err := New(Config{
		Persist: func(rhumb.Timestamp) error { return nil }, Mono: func() time.Duration { return *mono },
		Wall: func() time.Time { return time.Unix(0, int64(*wall)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c, wall, mono
}

// TestCeilingIsNotDrivenAhead guards docs/replication.md#rule-clocks: a wall clock that is an hour ahead for a minute takes the durable ceiling
// along for about a minute, and for a few seconds when it is known to be wrong; timestamps grow all the while.
func TestCeilingIsNotDrivenAhead(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		c, wall, mono := paced(t)
		var last rhumb.Timestamp
		pass := func(d time.Duration) {
			for end := *mono + d; *mono < end; {
				*mono += time.Second
				*wall += time.Second
				if err := c.Refresh(); err != nil {
					t.Fatal(err)
				}
				now, err := c.Now()
				if err != nil || now <= last {
					t.Fatalf("%v after %v: %v", now, last, err)
				}
				last = now
			}
		}
		pass(time.Minute)
		*wall += time.Hour
		pass(3 * time.Second)
		c.Distrust(wrong)
		pass(57 * time.Second)
		*wall -= time.Hour
		c.Distrust(false)
		ahead := c.Ceiling().Sub(timestampOf(c.Wall()))
		most := WindowDefault + 61*time.Second
		if wrong {
			most = WindowDefault + 5*time.Second
		}
		if ahead > most {
			t.Errorf("known to be wrong %v: the ceiling is %v ahead, want at most %v", wrong, ahead, most)
		}
		pass(2 * time.Minute)
		if lead := c.Stats().Lead; lead > 0 {
			t.Errorf("known to be wrong %v: two minutes later the clock is still %v ahead", wrong, lead)
		}
	}
}

// TestClockSetOnPurpose guards that a wall clock that was set ahead for good is followed after a while.
func TestClockSetOnPurpose(t *testing.T) {
	c, wall, mono := paced(t)
	*wall += time.Hour
	for range int(jumpHold/time.Second) + 2 {
		*mono += time.Second
		*wall += time.Second
		if err := c.Refresh(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := c.Ceiling(), timestampOf(c.Wall()); got < want {
		t.Errorf("the ceiling is %v, the wall clock shows %v", got, want)
	}
	if now, err := c.Now(); err != nil || timestampOf(c.Wall()).Sub(now) > time.Second {
		t.Errorf("%v, %v", now, err)
	}
}
