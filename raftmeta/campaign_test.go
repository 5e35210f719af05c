package raftmeta

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestCampaign checks in which ticks voters campaign: one after another, the leader that fell
// silent last, and nobody before the others may answer.
func TestCampaign(t *testing.T) {
	voters := []uint64{3, 1, 2}
	for _, tc := range []struct {
		name   string
		self   uint64
		before func(c *campaign)
		want   []int
	}{
		{"the first of those that remain", 1, func(c *campaign) { c.noteLeader(2) }, []int{11, 15, 19, 23}},
		{"the second of those that remain", 3, func(c *campaign) { c.noteLeader(2) }, []int{13, 17, 21}},
		{"a leader that lost its place", 2, func(c *campaign) { c.noteLeader(2) }, []int{13, 19}},
		{"nobody leads after a start", 1, func(c *campaign) { c.noteLeaderless() }, []int{1, 7, 13, 19}},
		{"nobody leads after a start, the last", 3, func(c *campaign) { c.noteLeaderless() }, []int{5, 11, 17, 23}},
		{"a new term", 1, func(c *campaign) { c.noteLeaderless(); c.noteTerm() }, []int{11, 17, 23}},
		{"the first one, with a wrong clock", 1, func(c *campaign) { c.noteLeader(2); c.late = true }, []int{15, 19, 23}},
		{"a leader with a wrong clock that lost its place", 2, func(c *campaign) { c.noteLeader(2); c.late = true }, []int{19}},
		{"nobody leads after a start, a wrong clock", 1, func(c *campaign) { c.noteLeaderless(); c.late = true }, []int{7, 13, 19}},
		{"no voter", 4, func(c *campaign) { c.noteLeaderless() }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := campaign{timeout: 10}
			tc.before(&c)
			var got []int
			for tick := 1; tick <= 24; tick++ {
				if c.tick(tc.self, voters) {
					got = append(got, tick)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("asks in ticks %v, want %v", got, tc.want)
			}
		})
	}
}

// TestAsksInTurn checks when a voter may ask for pre-votes, whoever's timer makes it want to: in
// its turn, and when a round of turns has elected nobody.
func TestAsksInTurn(t *testing.T) {
	const timeout = 10
	for _, c := range []struct {
		self, leader uint64
		want         []bool // from the end of the timeout on
		late         bool
	}{
		{1, 3, []bool{false, true, false, false, false, true, true}, false},
		{2, 3, []bool{false, false, false, true, false, true, true}, false},
		{3, 3, []bool{false, false, false, false, false, true, false, true, true}, false}, // it heard itself last
		{1, 0, []bool{false, true, false, false, false, false, false, true, true}, false},
		{1, 3, []bool{false, false, false, false, false, true, true}, true}, // a wrong clock
		{9, 3, []bool{false, false, false, false, false, true}, false},      // a learner
	} {
		for i, want := range c.want {
			ca := campaign{timeout: timeout, quiet: timeout + i, leader: c.leader, late: c.late}
			if got := ca.mayAsk(c.self, []uint64{1, 2, 3}); got != want {
				t.Errorf("voter %d, last led by %d, %d ticks after the timeout: asks %v, want %v", c.self, c.leader, i, got, want)
			}
		}
	}
}

// TestLeaderDiesNear kills the leader of voters that are near each other. One of the others leads
// within one near timeout and the turns of the voters, in a single election.
func TestLeaderDiesNear(t *testing.T) {
	near := func(c *Config) {
		c.RTT = func(rhumb.NodeID) (time.Duration, bool) { return time.Millisecond, true }
	}
	inBubble(t, 3, near, func(c *cluster) {
		c.awaitVoters(3)
		time.Sleep(paceEvery * 100 * time.Millisecond) // until all voters run at the near pace
		old := c.leader()
		_, term := c.groups[old].Leader()
		c.kill(old)
		died := time.Now()
		c.await("another node leads", func() bool {
			for _, g := range c.groups {
				if g.IsLeader() {
					return true
				}
			}
			return false
		})
		if took, most := time.Since(died), (10+1+campaignSlot+2)*60*time.Millisecond; took > most {
			t.Errorf("another node led after %v, want at most %v", took, most)
		}
		if _, now := c.groups[c.leader()].Leader(); now != term+1 {
			t.Errorf("term %d follows term %d, want one election", now, term)
		}
	})
}

// TestRestartElectsAtOnce restarts a whole group. Its voters must not wait for a leader that cannot
// exist.
func TestRestartElectsAtOnce(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		c.awaitVoters(3)
		for _, id := range c.ids() {
			c.kill(id)
		}
		start := time.Now()
		for id := range c.kvs {
			c.open(id)
		}
		c.leader()
		if took, most := time.Since(start), 500*time.Millisecond; took > most {
			t.Errorf("a node leads %v after the start, want at most %v", took, most)
		}
	})
}
