package host

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/storage"
)

// skewed is a world of three nodes in which the wall clock of one differs by an amount that a test may change.
func skewed(t *testing.T, node rhumb.NodeID, by time.Duration) (*world, *atomic.Int64) {
	t.Helper()
	skew := new(atomic.Int64)
	skew.Store(int64(by))
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(cfg *Config) {
		if cfg.Self.Node != node {
			return
		}
		c, err := hlc.New(hlc.Config{
			Persist: cfg.Engine.SetHLCCeiling, Mono: hlc.Boottime,
			Wall: func() time.Time { return time.Now().Add(time.Duration(skew.Load())) },
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Clock = c
	})
	return w, skew
}

// primary returns the present primary of the range.
func (w *world) primary() rhumb.NodeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rec.Primary
}

// putAnywhere writes one key at whichever node is primary, again and again while the range is not served.
func (w *world) putAnywhere(name, value string) {
	w.t.Helper()
	w.eventually(func() error {
		_, err := w.propose(w.primary(), putOf(name, value), rhumb.RequestID{})
		return err
	})
}

// TestWrongClockCostsOneNode guards ruling 19: whichever node's clock is wrong, and in whichever direction, it is that node
// that is not primary any more, and the range is written.
func TestWrongClockCostsOneNode(t *testing.T) {
	for _, tt := range []struct {
		name string
		node rhumb.NodeID
		by   time.Duration
	}{
		{"the primary is ahead", 1, time.Minute},
		{"the primary is behind", 1, -time.Minute},
		{"a follower is behind", 3, -time.Minute},
		{"a follower is ahead", 3, time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, skew := skewed(t, tt.node, tt.by)
			w.putAnywhere("k", "0")
			w.eventually(func() error {
				if w.hosts[tt.node].Unfit() == "" || w.primary() == tt.node {
					return rhumb.Ef("test", rhumb.Unavailable, "primary is %s, n%d says %q", w.primary(), tt.node, w.hosts[tt.node].Unfit())
				}
				return nil
			})
			for id, h := range w.hosts {
				if why := h.Unfit(); id != tt.node && why != "" {
					t.Errorf("%s is blamed: %s", id, why)
				}
			}
			w.putAnywhere("k", "1")
			skew.Store(0)
			if tt.by > 0 {
				return // its ceiling is ahead from the start on: it stays out of office until the wall clock is there
			}
			w.eventually(func() error {
				if why := w.hosts[tt.node].Unfit(); why != "" {
					return rhumb.E("test", rhumb.Unavailable, why)
				}
				return nil
			})
		})
	}
}

// TestClockBlip guards that a wall clock which is an hour ahead for a while costs neither the range nor the node an hour:
// once it is right again the node may be primary within seconds, and what it gave out before stays below what it gives out.
func TestClockBlip(t *testing.T) {
	w, skew := skewed(t, 1, 0)
	w.put(1, "k", "0")
	clock := w.hosts[1].cfg.Clock
	skew.Store(int64(time.Hour))
	for range 3 {
		_ = clock.Refresh() // hlc.Clock.Run does this every second
		w.putAnywhere("k", "during")
	}
	before, err := clock.Now()
	if err != nil {
		t.Fatal(err)
	}
	skew.Store(0)
	_ = clock.Refresh()
	w.putAnywhere("k", "after")
	w.eventually(func() error {
		if why := w.hosts[1].Unfit(); why != "" {
			return rhumb.E("test", rhumb.Unavailable, why)
		}
		return nil
	})
	if lead := clock.Stats().Lead; lead > leadMax {
		t.Errorf("the hybrid clock is %v ahead", lead)
	}
	if after, err := clock.Now(); err != nil || after <= before {
		t.Errorf("%v after %v: %v", after, before, err)
	}
	w.elect(1, 1, 2, 3)
	w.put(1, "k", "again")
}

// TestStreamBrokenHeartbeatsPass guards ruling 18: the data path of a pair is broken and heartbeats pass. The member leaves,
// and the write that waits is acknowledged.
func TestStreamBrokenHeartbeatsPass(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "0")
	w.hosts[1].Connected(3, false)
	if _, err := w.propose(1, putOf("k", "1"), rhumb.RequestID{}); err != nil {
		t.Fatal(err)
	}
	st, err := w.hosts[1].Status(t.Context(), testRange)
	if err != nil || len(st.InSync) != 2 || len(w.hosts[1].Leases().Suspects()) > 0 {
		t.Errorf("in sync are %v, suspects %v: %v", st.InSync, w.hosts[1].Leases().Suspects(), err)
	}
}
