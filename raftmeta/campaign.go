package raftmeta

import (
	"slices"
	"time"
)

const (
	// campaignSlot is the time in ticks that a voter has to win before the next voter asks for votes.
	campaignSlot = 2
	// paceEvery is how often, in ticks, the driver compares the round trips to the other voters with NearMax.
	paceEvery = 10
)

// campaign decides when a voter without a leader asks for votes. Raft draws that time at random from one to two election
// timeouts. Here the voters take turns in the order of their numbers, so that one of them asks as soon as the others may
// answer, and no two ask at the same time. Raft's own random timeout remains for the case that the voters do not agree
// about the turns. Safety does not depend on any of this. It is a value without I/O or clock.
type campaign struct {
	// timeout is Raft's election timeout in ticks. A voter that heard of a leader more recently answers no vote request.
	timeout int
	// quiet counts the ticks since a leader was heard, or since the term changed.
	quiet int
	// leader is the last leader that was heard, 0 for none.
	leader uint64
}

// heard notes that the leader, which may be this replica itself, was heard.
func (c *campaign) noteLeader(leader uint64) { c.leader, c.quiet = leader, 0 }

// newTerm notes that the term changed: its leader has a timeout to be heard.
func (c *campaign) noteTerm() { c.quiet = 0 }

// leaderless notes that nobody leads as far as the voters say, so that nobody needs to wait for a leader.
func (c *campaign) noteLeaderless() { c.leader, c.quiet = 0, c.timeout }

// tick counts a tick and reports whether this voter asks for votes now.
func (c *campaign) tick(self uint64, voters []uint64) bool {
	c.quiet++
	order := slices.DeleteFunc(slices.Sorted(slices.Values(voters)), func(id uint64) bool { return id == c.leader && id != self })
	turn := slices.Index(order, self)
	over := c.quiet - c.timeout - 1 // ticks of two voters are up to one apart
	return turn >= 0 && over >= 0 && over%(campaignSlot*len(order)) == campaignSlot*turn
}

// heardLeader notes a message of the leader.
func (d *driver) noteLeader(from uint64) {
	if from == d.lead {
		d.campaign.noteLeader(from)
	}
}

// campaignOnTurn asks for votes when it is this voter's turn.
func (d *driver) campaignOnTurn() {
	if d.isLead {
		d.campaign.noteLeader(uint64(d.config.Node))
		return
	}
	if d.campaign.tick(uint64(d.config.Node), votingMembers(d.conf)) && d.proof.mayCampaign() {
		if err := d.node.Campaign(); err != nil {
			d.config.logger().Debug("not a candidate", "error", err)
		}
	}
}

// setPace lets Raft's time run at the pace that the round trips to the other voters allow.
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

// isNear reports whether all other voters whose round trip is known are near, and at least one is.
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
