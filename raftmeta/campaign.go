package raftmeta

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb/raftmeta/place"
)

const (
	// campaignSlot is the time in ticks that a voter has to win an election before the next voter
	// campaigns.
	campaignSlot = 2
	// paceEvery is the interval, in ticks, at which the driver compares the round trips to the
	// other voters with NearMax.
	paceEvery = 10
)

// campaign decides when a voter without a leader campaigns. Raft would draw the time at random
// between one and two election timeouts. Here the voters take turns in the order of their ids: one
// of them campaigns as soon as the others may answer, and two do not campaign at the same time.
// Raft's random timeout remains as a fallback for voters that do not agree on the turns; it counts
// only after a whole round of turns. Safety does not depend on campaign. It is a value without I/O
// or clock.
type campaign struct {
	// timeout is Raft's election timeout in ticks. A voter that heard from a leader within it
	// answers no vote request.
	timeout int
	// quiet counts the ticks since a leader was heard, or since the term changed.
	quiet int
	// leader is the leader that was heard last, or 0.
	leader uint64
	// late is set while the clock of this voter is wrong and that of another voter in contact is right. It then takes no turn in
	// the first round, and lets the others win. If none of them does, for example because their logs are shorter, it takes its
	// turns from the second round on: a leader with a wrong clock is better than none.
	late bool
}

// noteLeader records a message of the leader, which may be this replica itself.
func (c *campaign) noteLeader(leader uint64) { c.leader, c.quiet = leader, 0 }

// noteTerm records a change of term. Its leader has one timeout to make itself heard.
func (c *campaign) noteTerm() { c.quiet = 0 }

// noteLeaderless records that no voter knows a leader, so that nobody waits for one: a full restart
// elects at once.
func (c *campaign) noteLeaderless() { c.leader, c.quiet = 0, c.timeout }

// tick counts a tick and reports whether it is this voter's turn to campaign.
func (c *campaign) tick(self uint64, voters []uint64) bool {
	c.quiet++
	over, turn, round := c.turns(self, voters)
	return turn >= 0 && over >= c.firstTurn(round) && over%round == turn
}

// mayAsk reports whether this voter may ask for pre-votes now: in its turn, or when every voter has
// had one and nobody leads, which happens when voters do not agree on the turns. Raft's own random
// timeout begins together with the turns, so without this rule two voters often asked in one tick,
// and the vote was split.
func (c *campaign) mayAsk(self uint64, voters []uint64) bool {
	over, turn, round := c.turns(self, voters)
	return over >= round || turn >= 0 && over == turn && !c.late
}

// firstTurn returns the tick of turns from which on this voter takes its turns.
func (c *campaign) firstTurn(round int) int {
	if c.late {
		return round
	}
	return 0
}

// turns returns how many ticks of turns have passed, or a negative number before the first turn;
// the tick of this voter's turn, or a negative number if it has none; and the length of a round of
// turns.
func (c *campaign) turns(self uint64, voters []uint64) (over, turn, round int) {
	// The last leader is dead or cut off, so its turn would be wasted. It keeps its own turn in its
	// own view, in case it is neither.
	order := slices.DeleteFunc(slices.Sorted(slices.Values(voters)), func(id uint64) bool { return id == c.leader && id != self })
	// A learner has no turn.
	turn = campaignSlot * slices.Index(order, self)
	// Turns repeat until a leader is heard. One extra tick makes up for the tickers of two voters,
	// which can be up to a tick apart: an earlier request would meet voters that still expect the
	// old leader and ignore it.
	over = c.quiet - c.timeout - 1
	return over, turn, campaignSlot * max(1, len(order))
}

// noteLeader records a message of the leader. Messages of deposed leaders do not count.
func (d *driver) noteLeader(from uint64) {
	if from == d.lead {
		d.campaign.noteLeader(from)
	}
}

// setLate compares the clock of this voter with those of the others. Only voters count: of a learner with a right clock no leader can come.
func (d *driver) setLate() {
	clocks := d.clocks()
	d.campaign.late = clocks.Wrong && slices.ContainsFunc(nodeIDs(votingMembers(d.conf)), clocks.IsRight)
}

// clocks returns the comparison of wall clocks that this node has made.
func (g *Group) clocks() place.Clocks {
	if g.config.Clocks == nil {
		return place.Clocks{}
	}
	return g.config.Clocks()
}

// campaignOnTurn campaigns when it is this voter's turn.
func (d *driver) campaignOnTurn() {
	// A leader hears itself, so its turn does not come right after it steps down.
	if d.isLead {
		d.campaign.noteLeader(uint64(d.config.Node))
		return
	}
	d.setLate()
	if d.campaign.tick(uint64(d.config.Node), votingMembers(d.conf)) && d.proof.mayCampaign() {
		if err := d.node.Campaign(); err != nil {
			d.config.logger().Debug("not a candidate", "error", err)
		}
	}
}

// setPace sets the length of Raft's tick. While all voters are near each other, a shorter tick
// detects a dead leader sooner.
func (d *driver) setPace() {
	tick := d.config.Tick
	if d.isNear() {
		tick = min(tick, d.config.NearTick)
	}
	if tick == d.pace {
		return
	}
	if d.stopTicks != nil {
		d.stopTicks()
	}
	d.pace = tick
	d.stopTicks = d.rt.Every(tick, false, func() {
		d.due.Store(true)
		d.wakeDriver()
	})
}

// isNear reports whether the round trip to at least one other voter is known, and all known round
// trips are short. An unknown one does not count: it belongs to a voter that is down or has just
// started.
func (d *driver) isNear() bool {
	if d.config.RTT == nil {
		return false
	}
	var far time.Duration
	for _, id := range nodeIDs(votingMembers(d.conf)) {
		if rtt, ok := d.config.RTT(id); ok && id != d.config.Node {
			far = max(far, rtt)
		}
	}
	return far > 0 && far <= NearMax
}
