package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestClockOff guards docs/replication.md#rule-clocks: a node whose wall clock is far from the median knows it after
// three heartbeats, and the others are not blamed. Without a majority that agrees, nobody is
// blamed.
func TestClockOff(t *testing.T) {
	beat := RegionTiming().Heartbeat
	const limit = clockOffMax
	for _, tt := range []struct {
		name  string
		ahead []time.Duration // of each node's clock
		wrong []bool
	}{
		{"all agree", []time.Duration{0, 0, 0}, []bool{false, false, false}},
		{"one is ahead", []time.Duration{0, 0, time.Hour}, []bool{false, false, true}},
		{"one is behind", []time.Duration{0, -time.Minute, 0}, []bool{false, true, false}},
		{"one is a little off", []time.Duration{0, 0, limit - time.Second}, []bool{false, false, false}},
		{"of two nobody can tell", []time.Duration{0, time.Hour}, []bool{false, false}},
		{"two against two", []time.Duration{0, 0, time.Hour, time.Hour}, []bool{false, false, false, false}},
		{"one of four", []time.Duration{0, 0, 0, time.Hour}, []bool{false, false, false, true}},
		{"two of five, apart", []time.Duration{0, 0, 0, time.Hour, -time.Hour}, []bool{false, false, false, true, true}},
		{"all differ", []time.Duration{0, time.Hour, 2 * time.Hour}, []bool{true, false, true}},
		{"alone", []time.Duration{time.Hour}, []bool{false}},
	} {
		c := newCrew(len(tt.ahead), RegionTiming())
		for _, m := range c.nodes {
			c.start(m, true)
		}
		// A wall clock a little after 1970.
		since := rhumb.ClockAheadMax * 1_000
		pass := func(d time.Duration) {
			for end := c.now + d; c.now < end; {
				for i, m := range c.nodes {
					m.pairs.SetWall(since + c.now + tt.ahead[i])
				}
				c.pass(10 * time.Millisecond)
			}
		}
		if pass(2 * beat); c.nodes[0].pairs.clocks.wrong {
			t.Errorf("%s: a verdict after two heartbeats", tt.name)
		}
		pass(4 * beat)
		for i, m := range c.nodes {
			if ahead, wrong := m.pairs.ClockOff(); wrong != tt.wrong[i] {
				t.Errorf("%s: n%d is %v ahead, wrong: %v", tt.name, i+1, ahead, wrong)
			}
			// If this clock is the only one that is called wrong, everybody else is right.
			if slices.Equal(wrongOf(tt.wrong), []int{i}) && len(m.pairs.RightClocks()) != len(c.nodes)-1 {
				t.Errorf("%s: n%d takes the clocks of %v for right", tt.name, i+1, m.pairs.RightClocks())
			}
			for _, id := range m.pairs.RightClocks() {
				if tt.wrong[id-1] {
					t.Errorf("%s: n%d takes the clock of %s for right", tt.name, i+1, id)
				}
			}
		}
		// All clocks are corrected.
		clear(tt.ahead)
		pass(6 * beat)
		for i, m := range c.nodes {
			if _, wrong := m.pairs.ClockOff(); wrong {
				t.Errorf("%s: n%d is still called wrong", tt.name, i+1)
			}
		}
	}
}

// wrongOf returns the indexes of the clocks that are wrong.
func wrongOf(wrong []bool) (out []int) {
	for i, is := range wrong {
		if is {
			out = append(out, i)
		}
	}
	return out
}

// TestVia guards that nodes without contact find a node in contact with both: in a ring of five
// nodes, each of which reaches its two neighbours, every node reaches every other. Nobody leads to
// a dead node.
func TestVia(t *testing.T) {
	c := newCrew(5, RegionTiming())
	for _, m := range c.nodes {
		c.start(m, true)
	}
	c.pass(time.Second)
	if via, ok := c.nodes[0].pairs.Via(c.clock(c.nodes[0]), 3); ok {
		t.Errorf("nothing is cut, and n3 is reached by way of %s", via)
	}
	neighbours := func(a, b rhumb.NodeID) bool { return (a-b+5)%5 == 1 || (b-a+5)%5 == 1 }
	for a := rhumb.NodeID(1); a <= 5; a++ {
		for b := rhumb.NodeID(1); b <= 5; b++ {
			c.cut[[2]rhumb.NodeID{a, b}] = a != b && !neighbours(a, b)
		}
	}
	c.pass(3 * time.Second)
	for _, m := range c.nodes {
		for to := rhumb.NodeID(1); to <= 5; to++ {
			via, ok := m.pairs.Via(c.clock(m), to)
			switch {
			case to == m.id || neighbours(m.id, to):
				if ok {
					t.Errorf("%s reaches its neighbour %s by way of %s", m.id, to, via)
				}
			case !ok || !neighbours(m.id, via) || !neighbours(via, to):
				t.Errorf("%s reaches %s by way of %s, %v", m.id, to, via, ok)
			}
		}
	}
	clear(c.cut)
	c.pass(time.Second)
	c.nodes[4].pairs = nil
	c.pass(time.Second)
	if via, ok := c.nodes[0].pairs.Via(c.clock(c.nodes[0]), 5); ok {
		t.Errorf("a dead node is reached by way of %s", via)
	}
}
