package host

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/storage"
)

// skewed returns a world of three nodes in which the wall clock of one differs by an amount that a
// test may change.
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

// putAnywhere writes one key at whichever node is primary, and retries while the range is not
// served.
func (w *world) putAnywhere(name, value string) {
	w.t.Helper()
	w.eventually(func() error {
		_, err := w.propose(w.primary(), putOf(name, value), rhumb.RequestID{})
		return err
	})
}

// TestWrongClockCostsOneNode guards docs/replication.md#rule-clocks: if the clock of a node is wrong, in either
// direction, that node stops being primary, and the range is written.
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
				// The ceiling was ahead from the start, so the node stays unfit until its wall
				// clock reaches it.
				return
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

// TestClockBlip guards that a wall clock that is an hour ahead for a while costs neither the range
// nor the node an hour. Once the clock is right again, the node may be primary within seconds, and
// its timestamps continue to increase.
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

// TestStreamBrokenHeartbeatsPass guards docs/replication.md#rule-progress: data between two nodes is lost while heartbeats
// pass. The member leaves the set, and the waiting write is acknowledged.
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

// TestNamesOfTwoPrimaries guards docs/replication.md#rule-names: two successive primaries of one range never assign the
// same name, however often each of them has started.
func TestNamesOfTwoPrimaries(t *testing.T) {
	w := newWorld(t, 3)
	insert := func(at rhumb.NodeID, value string) (name string) {
		m := rhumb.Mutation{Kind: rhumb.Insert, Value: rhumb.EncodeOpaque(nil, []byte(value))}
		w.eventually(func() error {
			o, err := w.propose(at, m, rhumb.RequestID{})
			if err == nil {
				name = string(o.Names[0])
			}
			return err
		})
		return name
	}
	first := insert(1, "precious")
	w.elect(2, 2, 3)
	if second := insert(2, "other"); second == first {
		t.Errorf("n1 and n2 both gave the name %x", first)
	}
	w.eventually(func() error {
		got, err := w.get(2, first)
		if err == nil && got != "precious" {
			t.Fatalf("the record that n1 inserted holds %q", got)
		}
		return err
	})
}
