package raftmeta

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// TestClockYield checks when a leader with a wrong clock tries to hand the leadership over: at once, and then not more often than
// every clockYieldPause, whatever heirs there are.
func TestClockYield(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name string
		heir func(at time.Duration) rhumb.NodeID
		want []time.Duration
	}{
		{"nobody", func(time.Duration) rhumb.NodeID { return rhumb.NoNode }, nil},
		{"the same heir, which never takes over", func(time.Duration) rhumb.NodeID { return 2 }, []time.Duration{0, clockYieldPause, 2 * clockYieldPause}},
		{"an heir that comes later", func(at time.Duration) rhumb.NodeID {
			if at < 3*s {
				return rhumb.NoNode
			}
			return 2
		}, []time.Duration{3 * s, 3*s + clockYieldPause}},
		{"others in turn", func(at time.Duration) rhumb.NodeID { return 2 + rhumb.NodeID(at/s)%2 }, []time.Duration{0, clockYieldPause, 2 * clockYieldPause}},
	} {
		var y clockYield
		var got []time.Duration
		for at := time.Duration(0); at <= 2*clockYieldPause; at += s {
			if y.next(at, tc.heir(at)) {
				got = append(got, at)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: tries at %v, want %v", tc.name, got, tc.want)
		}
	}
}

// wrongClocks are the nodes of a test whose clocks are wrong.
type wrongClocks struct {
	mu  sync.Mutex // guards ids
	ids []rhumb.NodeID
}

func (w *wrongClocks) set(ids ...rhumb.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids = ids
}

// configure makes a node see the clocks of nodes 1 to n.
func (w *wrongClocks) configure(n rhumb.NodeID) func(*Config) {
	return func(c *Config) {
		self := c.Node
		c.Clocks = func() (out place.Clocks) {
			w.mu.Lock()
			defer w.mu.Unlock()
			out.Wrong = slices.Contains(w.ids, self)
			for id := rhumb.NodeID(1); id <= n; id++ {
				if id != self && !slices.Contains(w.ids, id) {
					out.Right = append(out.Right, id)
				}
			}
			return out
		}
	}
}

// TestWrongClockLeader guards that a leader whose clock is wrong hands the leadership to a voter whose clock is right, within a second and
// without an election timeout, that it stays the leader when there is no such voter, and that nothing happens when
// its clock is right again.
func TestWrongClockLeader(t *testing.T) {
	for _, tc := range []struct {
		name string
		// nodes is the size of the group, wrong are the clocks that become wrong, and yields says whether the leader, which is node 1, changes.
		nodes  int
		wrong  []rhumb.NodeID
		yields bool
	}{
		{"one of three", 3, []rhumb.NodeID{1}, true},
		{"two of three", 3, []rhumb.NodeID{1, 2}, true},
		{"the only voter of two members", 2, []rhumb.NodeID{1}, false},
		{"all", 3, []rhumb.NodeID{1, 2, 3}, false},
		{"the only voter", 1, []rhumb.NodeID{1}, false},
		{"another one", 3, []rhumb.NodeID{2}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var clocks wrongClocks
			inBubble(t, tc.nodes, clocks.configure(rhumb.NodeID(tc.nodes)), func(c *cluster) {
				if tc.nodes > 2 {
					c.awaitVoters(tc.nodes)
				}
				c.await("node 1 leads", func() bool {
					if c.leader() != 1 {
						_ = c.groups[1].Lead(c.t.Context(), 1)
					}
					return c.leader() == 1
				})
				clocks.set(tc.wrong...)
				began := time.Now()
				if tc.yields {
					c.await("another leads", func() bool { return c.leader() != 1 })
					if took := time.Since(began); took > time.Second {
						t.Errorf("it took %v", took)
					}
				}
				// Nothing else happens: no election follows, also none when the clocks are right again.
				leader, term := c.groups[1].Leader()
				for i := range 60 {
					if i == 40 {
						clocks.set()
					}
					time.Sleep(time.Second) // of fake time
					if now, at := c.groups[1].Leader(); now != leader || at != term {
						t.Fatalf("after %v, %s leads in term %d; it was %s in %d", time.Since(began), now, at, leader, term)
					}
				}
				if tc.yields != (leader != 1) || tc.yields && slices.Contains(tc.wrong, leader) {
					t.Errorf("%s leads", leader)
				}
			})
		})
	}
}

// TestWrongClockCampaignsLast guards that a voter whose clock is wrong lets others win the election after the leader died, and that it
// leads nevertheless, within another round of turns, if it is the only one that can.
func TestWrongClockCampaignsLast(t *testing.T) {
	for _, alone := range []bool{false, true} {
		var clocks wrongClocks
		inBubble(t, 3, clocks.configure(3), func(c *cluster) {
			c.awaitVoters(3)
			if err := c.groups[1].Lead(c.t.Context(), 3); err != nil {
				t.Fatal(err)
			}
			c.awaitAlike()
			if alone {
				// Node 2 gets nothing while node 1 and the leader decide, so its log is too short to win.
				c.net.cut(1, 2, true)
				c.net.cut(2, 3, true)
				c.propose(3, registration(4, 1))
			}
			// The first in the order of the turns.
			clocks.set(1)
			c.kill(3)
			if alone {
				c.net.cut(1, 2, false)
			}
			died := time.Now()
			want := rhumb.NodeID(2)
			if alone {
				want = 1
			}
			if got := c.leader(); got != want {
				t.Errorf("alone %v: %s leads, want %s", alone, got, want)
			}
			// One election timeout, and two rounds of the turns of three voters with the slack of a tick each.
			if took, most := time.Since(died), time.Duration(10+2*campaignSlot*3+3)*100*time.Millisecond; took > most {
				t.Errorf("alone %v: a leader after %v, most %v", alone, took, most)
			}
		})
	}
}
