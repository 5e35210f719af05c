package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	evidence "github.com/rhumbdb/rhumb/raftmeta/place"
)

// In strict seeds the metadata leader refuses registrations that were signed too far from the time by its clock, as in package node. After the
// other faults of some of these seeds, the clock of the leader is an hour off while other nodes restart. They must be registered within
// registerMost (docs/replication.md#rule-clock-leads).

const (
	// registrationAgeMax is how far a registration may be from the time of its judge, as in package node.
	registrationAgeMax = 30 * time.Second
	// registerMost is how long the registration of a node may take while the clock of the leader is wrong: the verdict about the clock, a
	// transfer or an election, and some attempts, each for up to registerTimeout.
	registerMost = 15 * time.Second
	// misledBy is how far the clock of the leader is off.
	misledBy = time.Hour
)

// judgesRegistrations reports whether registrations carry a time that is judged. If all clocks jump, nobody could be registered.
func (p *profile) judgesRegistrations() bool { return p.strict && !p.trusting }

// clocks returns the comparison of clocks that the node has made.
func (n *node) clocks() evidence.Clocks {
	if n.host == nil || n.w.cfg.Bug == LeadWithWrongClock {
		return evidence.Clocks{}
	}
	_, wrong, right := n.host.Leases().ClockOff()
	return evidence.Clocks{Wrong: wrong, Right: right}
}

// checkRegistration refuses a registration that was signed too far from now.
func (n *node) checkRegistration(c catalog.RegisterNode) error {
	now := n.wallNow()
	recent := func() bool { return now.Sub(time.Unix(0, c.Proof.At)).Abs() <= registrationAgeMax }
	if n.host != nil && n.w.cfg.Bug != LeadWithWrongClock {
		if ahead, wrong, _ := n.host.Leases().ClockOff(); wrong {
			now = now.Add(-ahead)
		}
		if !recent() {
			now = n.wallNow().Add(n.askOffset())
		}
	}
	if !recent() {
		return rhumb.Ef("sim.checkRegistration", rhumb.Unauthenticated, "%s: the registration was signed at %v", n.id, time.Unix(0, c.Proof.At))
	}
	return nil
}

// askOffset returns how far the median of the clocks of the nodes that answer is ahead, the own one included. The questions of package
// node take no time here.
func (n *node) askOffset() time.Duration {
	offsets := []time.Duration{0}
	for _, m := range n.w.nodes {
		if m != n && !m.down && !m.paused && !n.w.net.isCut(n.at, m.at) && !n.w.net.isCut(m.at, n.at) {
			offsets = append(offsets, m.wallNow().Sub(n.wallNow()))
		}
	}
	return lease.MedianOffset(offsets)
}

// misleadLeader sets the clock of the metadata leader an hour off, and restarts other nodes meanwhile. A node that was down before is
// the harder case: with three nodes, the leader and the one that is left cannot know whose clock is wrong.
func (w *world) misleadLeader() {
	if w.err != nil || !w.p.misled || w.damage != nil && !w.damage.isRepaired() {
		return
	}
	w.awaitLive(w.now)
	leader := w.metadataLeader()
	var others []*node
	left := 0
	for _, n := range w.nodes {
		// A removed node registers no more and has no vote, also while it has not heard of its removal: its disk may have stalled
		// (seed 151). Outside of the simulator it asks the others (node/removed.go).
		if n.retired || w.isForgotten(n.id) {
			continue
		}
		left++
		if n != leader && !n.down && w.maySpare(n) {
			others = append(others, n)
		}
	}
	// Of two nodes that are left after a region was lost, nobody can tell whose clock is wrong (seed 173).
	if w.err != nil || leader == nil || len(others) == 0 || left < votersLeast || w.stats.Lost+w.stats.Quarantined > 0 {
		return
	}
	// One clock of a strict seed is ever wrong. With another one, logs that are hours ahead would have to be taken over by nodes that are
	// not (docs/roadmap.md, an entry with a wrong clock).
	if leader.index != w.p.wrong && slices.ContainsFunc(w.p.faults, func(k FaultKind) bool { return k == faultJump || k == faultClock }) {
		return
	}
	early, by := w.chance.IntN(2) == 0, misledBy
	if w.chance.IntN(2) == 0 {
		by = -by
	}
	w.stats.Misled++
	w.misled = leader
	mislead := func() {
		w.tracef("fault", "the clock of the metadata leader %s is off by %v", leader.id, by)
		leader.clock.skew = leader.clock.right + by
		w.until(w.now + w.drawDuration(0, 2*time.Second))
	}
	// One after the other, so that the group keeps its majority.
	for i, n := range others[:min(len(others), 2)] {
		if i == 0 && !early {
			mislead()
		}
		if w.err != nil || n.down {
			return
		}
		n.stop()
		if i == 0 && early {
			mislead()
		}
		w.until(w.now + w.drawDuration(0, 2*time.Second))
		if w.err != nil {
			return
		}
		n.start()
		w.awaitRegistered(n)
		w.until(w.now + time.Second)
	}
	leader.clock.skew = leader.clock.right
	w.awaitLive(w.now)
}

// awaitRegistered waits until a node that has just started serves in its new life, at most registerMost.
func (w *world) awaitRegistered(n *node) {
	for end := w.now + registerMost; w.err == nil && n.host == nil; w.until(w.now + 100*time.Millisecond) {
		if w.now >= end {
			w.failf("%s is not registered %v after its start; the clock of %s is wrong: %s", n.id, registerMost, w.misled.id, w.describeLeaders())
		}
	}
}

// describeLeaders returns which nodes believe to lead the metadata group.
func (w *world) describeLeaders() string {
	var leaders []rhumb.NodeID
	for _, n := range w.nodes {
		if !n.down && n.group != nil && n.group.IsLeader() {
			leaders = append(leaders, n.id)
		}
	}
	slices.Sort(leaders)
	return fmt.Sprintf("the metadata is led by %v", leaders)
}
