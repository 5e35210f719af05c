package host

import (
	"fmt"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/storage"
)

// TestClosedAcrossHosts guards that every replica learns how far its range is closed, that a
// primary whose clock is ahead of the ceilings of the others can close, and that its successor,
// whose clock is slower, writes above everything that was closed.
func TestClosedAcrossHosts(t *testing.T) {
	const ahead = 6 * time.Second // beyond hlc.WindowDefault, within rhumb.ClockAheadMax
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) {
		if c.Self.Node != 1 {
			return
		}
		clock, err := hlc.New(hlc.Config{Persist: c.Engine.SetHLCCeiling, Wall: func() time.Time { return time.Now().Add(ahead) }})
		if err != nil {
			t.Fatal(err)
		}
		c.Clock = clock
	})
	put := func(n rhumb.NodeID) (o rhumb.Outcome) {
		t.Helper()
		w.eventually(func() (err error) {
			o, err = w.propose(n, putOf("k", "v"), rhumb.RequestID{})
			return err
		})
		return o
	}
	// closed waits until all replicas know that their range is closed up to a write, and returns
	// the greatest timestamp that they know.
	closed := func(o rhumb.Outcome) (greatest rhumb.Timestamp) {
		t.Helper()
		for n, h := range w.hosts {
			w.eventually(func() error {
				if at := h.Closed(testRange, o.Seq-1); at >= o.Version.HLC {
					t.Fatalf("%s calls the range closed up to %v without entry %d, written at %v", n, at, o.Seq, o.Version.HLC)
				}
				at := h.Closed(testRange, o.Seq)
				greatest = max(greatest, at)
				if at < o.Version.HLC {
					return fmt.Errorf("%s knows the range to be closed up to %v, not %v", n, at, o.Version.HLC)
				}
				return nil
			})
		}
		return greatest
	}
	at := closed(put(1))
	w.isolate(1, true)
	w.elect(2, 2, 3)
	w.mu.Lock()
	delete(w.hosts, 1)
	w.mu.Unlock()
	o := put(2)
	if o.Version.HLC <= at {
		t.Fatalf("the new primary writes at %v, the range was closed up to %v", o.Version.HLC, at)
	}
	closed(o)
}
