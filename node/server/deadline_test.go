package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestLateContext guards that a context whose timer is made late ends like one whose timer was made at once: by its
// deadline, its parent or its end, whether or not somebody waits, and together with contexts that were derived from it.
func TestLateContext(t *testing.T) {
	type key struct{}
	for _, tt := range []struct {
		name          string
		own, parent   time.Duration // deadlines
		cancel        bool          // the parent is cancelled after a second
		stop          bool          // the context is stopped after a second
		want          error
		after, expect time.Duration // when Err is asked, and when Done must be closed
	}{
		{name: "deadline", own: 2 * time.Second, parent: time.Hour, want: context.DeadlineExceeded, after: 2 * time.Second, expect: 2 * time.Second},
		{name: "parent's deadline", own: time.Hour, parent: 2 * time.Second, want: context.DeadlineExceeded, after: 2 * time.Second, expect: 2 * time.Second},
		{name: "parent cancelled", own: time.Hour, parent: time.Hour, cancel: true, want: context.Canceled, after: time.Second, expect: time.Second},
		{name: "stopped", own: time.Hour, parent: time.Hour, stop: true, want: context.Canceled, after: time.Second, expect: time.Second},
		{name: "in time", own: time.Hour, parent: time.Hour, after: 2 * time.Second, expect: time.Hour},
	} {
		for _, waits := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, 7), tt.parent)
				defer cancel()
				c := newLateContext(parent, tt.own)
				defer c.stop()
				begin := time.Now()
				if c.Value(key{}) != 7 || c.Err() != nil {
					t.Errorf("%s: value %v, error %v", tt.name, c.Value(key{}), c.Err())
				}
				ended := make(chan time.Duration, 1)
				if waits {
					child, end := context.WithCancel(c)
					defer end()
					go func() { <-child.Done(); ended <- time.Since(begin) }()
				}
				if tt.cancel {
					time.AfterFunc(time.Second, cancel)
				}
				if tt.stop {
					time.AfterFunc(time.Second, c.stop)
				}
				time.Sleep(tt.after)
				synctest.Wait()
				if err := c.Err(); err != tt.want {
					t.Errorf("%s, waited for %v: error %v, want %v", tt.name, waits, err, tt.want)
				}
				if (c.waited != nil) != waits {
					t.Errorf("%s: a timer was made: %v, want %v", tt.name, c.waited != nil, waits)
				}
				if waits {
					if at := <-ended; at != tt.expect {
						t.Errorf("%s: it ended after %v, want %v", tt.name, at, tt.expect)
					}
				}
				// Whoever begins to wait late learns of the end as well.
				if tt.want != nil {
					<-c.Done()
				}
			})
		}
	}
}
