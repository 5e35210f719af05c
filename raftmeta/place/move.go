package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// This file moves the copies of one range. Every operation that moves copies asks mover.move for the next step of a range, in each round.

// waitsForSplit is the obstacle of a move while the range is being split.
const waitsForSplit = "the range is being split"

// phase is how far the move of one copy is.
type phase uint8

const (
	phaseCopy   phase = iota // a new copy is missing, or is not in sync yet
	phaseHand                // the copy is in sync, and the one that leaves is still primary
	phaseRemove              // the copy that leaves is still a replica
	phaseGone                // it was removed from the replicas
)

// moveStep is the part of a move that one round plans: for the copies of a range that are to leave.
type moveStep struct {
	phase phase
	// commands carry the step out. There are none while a replica is to act, and while the range cannot move.
	commands []catalog.Command
	// waits names the event that the move waits for, or its obstacle. It is "" if there is none.
	waits string
	// busy reports that the move is under way: the record changes, a copy arrives, or the primary is to act. A range that cannot move now
	// occupies no disk and no link, so it takes no place of one that can (movesMax).
	busy bool
}

// move plans the next step of moving copies away from nodes, to a given node or to the best ones, and adds its commands to the plan.
// Several copies of a range move together: one change of the record is cheaper than three.
func (m *mover) move(r *rhumb.Range, to rhumb.NodeID, from ...rhumb.NodeID) moveStep {
	step := m.nextStep(r, to, from)
	m.out = append(m.out, step.commands...)
	// The catalog knows better what keeps the range from moving than the plan, which proposes the same again.
	if why := m.p.whyRefused(subject{Range: r.ID}); why != "" {
		step.waits, step.busy = why, false
	}
	return step
}

// nextStep returns the next step of a move.
func (m *mover) nextStep(r *rhumb.Range, to rhumb.NodeID, from []rhumb.NodeID) moveStep {
	from = slices.DeleteFunc(slices.Clone(from), func(id rhumb.NodeID) bool { return !r.IsReplica(id) })
	if len(from) == 0 {
		return moveStep{phase: phaseGone}
	}
	// The range is in both loops of the planner: as itself, and as the part that it reserves.
	// A reserved range gets the copies of the range that is to be split.
	if r.Birth != 0 {
		return moveStep{waits: waitsForSplit}
	}
	// keep holds the copies that stay, also those that are not in sync yet: they need not be created again. inSync holds those of
	// them that an election could choose now. Only these justify that another copy leaves.
	class, _ := m.s.Class(r.Class)
	wanted := class.Settings.Replicas
	keep := slices.DeleteFunc(slices.Clone(r.Replicas), func(id rhumb.NodeID) bool { return slices.Contains(from, id) || !m.stays(r, id) })
	inSync := slices.DeleteFunc(slices.Clone(keep), func(id rhumb.NodeID) bool { return !r.IsInSync(id) || !m.s.IsLive(id) })
	if step, needed := m.addCopies(r, keep, to, wanted); needed {
		return step
	}
	arrives := slices.ContainsFunc(keep, func(id rhumb.NodeID) bool { return m.p.awaits(m.now, m.s, r, id) })
	switch {
	// Metadata refuses that a copy leaves until the split is complete. An election would be worse than in vain: a copy that is new
	// is not a member of the reserved range, so its node cannot divide the range as primary.
	case isSplitting(m.s, r):
		return moveStep{waits: waitsForSplit, busy: arrives}
	case to != rhumb.NoNode && (m.p.stalls(m.now, r, to) || !r.IsInSync(to) && m.p.isFull(to)):
		return moveStep{waits: m.p.whyNotArrive(to)}
	// A node that is about to stop joins no in-sync set.
	case to != rhumb.NoNode && !r.IsInSync(to) && m.drains(to):
		return moveStep{waits: fmt.Sprintf("%s drains and takes no copy meanwhile (`rhumb node drain %s --undo` ends that)", to, to)}
	case to != rhumb.NoNode && !r.IsInSync(to):
		return moveStep{waits: fmt.Sprintf("the copy on %s is not in sync yet", to), busy: arrives}
	// Nobody leaves before as many others are in sync as the class demands: a move must not make data less safe.
	case len(inSync) < wanted:
		step := moveStep{waits: fmt.Sprintf("%d of %d copies elsewhere are in sync", len(inSync), wanted) + m.whyBehind(r, keep), busy: arrives}
		if slices.ContainsFunc(keep, m.drains) {
			return m.moveSome(r, from, wanted, step)
		}
		return step
	case slices.Contains(from, r.Primary) || slices.Contains(from, r.Preferred):
		return m.handOver(r, from, inSync, to)
	}
	return m.removeCopies(r, from)
}

// whyBehind names the nodes that keep copies of a range from counting, as the end of a reason, or "" if all copies arrive.
func (m *mover) whyBehind(r *rhumb.Range, keep []rhumb.NodeID) string {
	for _, id := range keep {
		switch {
		case m.drains(id):
			return fmt.Sprintf("; the one on %s does not count while that node drains (`rhumb node drain %s --undo` ends that)", id, id)
		case !r.IsInSync(id) && m.p.isAvoided(m.now, id):
			return "; " + m.p.whyNotArrive(id)
		}
	}
	return ""
}

// moveSome returns the step of a move that waits for a node which drains, while no other node can take its place (addCopies): copies leave that
// are not needed even without the one on that node. idle is the step if there are none. A drain lasts for as long as an operator likes, so a removal
// of a region should not keep all its copies until then.
//
// Only a drain is treated like this. Copies that arrive are in sync soon, and one change of the record for all that leave is cheaper than several.
func (m *mover) moveSome(r *rhumb.Range, from []rhumb.NodeID, wanted int, idle moveStep) moveStep {
	// The primary and the preferred one stay until the end, so that the range pauses for one handover only.
	leave := without(from, append(slices.Clone(r.InSync), r.Primary, r.Preferred))
	staying := slices.DeleteFunc(m.serving(r.InSync), r.IsQuarantined)
	for _, id := range from {
		// As many as the class demands stay in sync on nodes that are not about to stop. They also span regions, if they have to.
		others := without(staying, []rhumb.NodeID{id})
		if r.IsInSync(id) && id != r.Primary && id != r.Preferred && len(others) >= wanted && m.s.Spans(r.Class, others) {
			staying, leave = others, append(leave, id)
		}
	}
	if len(leave) == 0 {
		return idle
	}
	return m.removeCopies(r, leave)
}

// addCopies returns the step that adds the copies which a range lacks without those that leave. It is needed if there are any.
func (m *mover) addCopies(r *rhumb.Range, keep []rhumb.NodeID, to rhumb.NodeID, wanted int) (step moveStep, needed bool) {
	// If the node has its copy and a copy elsewhere is lost meanwhile, another node replaces that one. Otherwise the copy that is to leave
	// would stay, as the last one that is needed.
	if to != rhumb.NoNode && !r.IsReplica(to) {
		switch n, _ := m.s.Node(to); {
		case !m.s.TakesCopies(to):
			return moveStep{waits: fmt.Sprintf("%s takes no copies while it is %s", to, n.State)}, true
		case m.p.isFull(to):
			return moveStep{waits: m.p.whyNotArrive(to)}, true
		}
		return setReplicas(r, append(slices.Clone(r.Replicas), to)), true
	}
	// A copy that makes no progress is given up for one on another node, unless an operator chose its node.
	stalled := slices.DeleteFunc(slices.Clone(keep), func(id rhumb.NodeID) bool { return id == to || !m.p.stalls(m.now, r, id) })
	keep = without(keep, stalled)
	if len(keep) >= wanted {
		return m.standInForDrains(r, keep, wanted)
	}
	replicas := r.Replicas
	// The preferred primary must be a replica, and no copy may go while the range is being split.
	if !slices.Contains(stalled, r.Preferred) && !isSplitting(m.s, r) {
		replicas = without(replicas, stalled)
	}
	add := m.chooseNodes(r, keep, replicas, wanted)
	switch {
	case len(add) > 0:
		return setReplicas(r, slices.Concat(replicas, add)), true
	// It may still arrive, for example when its disk has room again.
	case len(stalled) > 0:
		return moveStep{waits: m.p.whyNotArrive(stalled[0]) + ", and no other node can take one"}, true
	}
	return moveStep{waits: fmt.Sprintf("%s: %d of %d copies would be left", m.p.noOther(), len(keep), wanted)}, true
}

// standInForDrains returns the step that adds copies in place of those on nodes that have been draining for as long as a dead node waits for its
// repair. It is not needed if there are none, or if no other node can take them. A copy on such a node may not be the reason why another one
// leaves, so the move would last as long as the drain. It is one too many when the drain ends, and is removed then (surplus).
func (m *mover) standInForDrains(r *rhumb.Range, keep []rhumb.NodeID, wanted int) (step moveStep, needed bool) {
	after := m.p.replaceAfter(m.s)
	staying := slices.DeleteFunc(slices.Clone(keep), func(id rhumb.NodeID) bool { return m.p.drainsLong(m.now, id, after) })
	if len(staying) >= wanted {
		return moveStep{}, false
	}
	add := m.chooseNodes(r, staying, r.Replicas, wanted)
	if len(add) == 0 {
		return moveStep{}, false
	}
	return setReplicas(r, slices.Concat(r.Replicas, add)), true
}

// chooseNodes returns the nodes for the copies that a range lacks besides those that it keeps. They are none of its replicas, nor those that
// it is about to lose.
func (m *mover) chooseNodes(r *rhumb.Range, keep, replicas []rhumb.NodeID, wanted int) (add []rhumb.NodeID) {
	if m.load == nil {
		m.load = measureLoad(m.s)
	}
	// Every range has a class.
	class, _ := m.s.Class(r.Class)
	var chosen []*rhumb.Node
	for _, id := range keep {
		n, _ := m.s.Node(id)
		chosen = append(chosen, n)
	}
	for len(chosen) < wanted && len(replicas)+len(add) < rhumb.ReplicasMax {
		// The zones of the copies that stay count, not those of the ones that leave.
		n := m.load.nextNode(chosen, m.pools.of(m.s, r, class), slices.Concat(r.Replicas, add, m.p.avoided(m.now))...)
		if n == nil {
			break
		}
		m.load.replicas[n.ID]++
		chosen, add = append(chosen, n), append(add, n.ID)
	}
	return add
}

// setReplicas returns the step that changes the replicas of a range.
func setReplicas(r *rhumb.Range, replicas []rhumb.NodeID) moveStep {
	return moveStep{busy: true, commands: []catalog.Command{catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: replicas}}}
}

// handOver returns the step that makes another node the primary, and the preferred primary.
func (m *mover) handOver(r *rhumb.Range, from, inSync []rhumb.NodeID, to rhumb.NodeID) moveStep {
	heir := m.heir(r, inSync, to)
	step, version := moveStep{phase: phaseHand, busy: true}, r.Version
	if slices.Contains(from, r.Preferred) {
		step.commands = append(step.commands, catalog.SetReplicas{Range: r.ID, Version: version, Replicas: r.Replicas, Preferred: heir})
		version++
	}
	if !slices.Contains(from, r.Primary) {
		step.waits = fmt.Sprintf("%s becomes the preferred primary", heir)
		return step
	}
	step.commands = append(step.commands, m.p.takeOver(m.now, m.s, r, version, heir, true)...)
	step.waits = fmt.Sprintf("%s takes over from %s", heir, r.Primary)
	return step
}

// heir returns who becomes primary: the node that takes the copy, else the one with the fewest primaries.
func (m *mover) heir(r *rhumb.Range, inSync []rhumb.NodeID, to rhumb.NodeID) rhumb.NodeID {
	if slices.Contains(inSync, to) {
		return to
	}
	if m.load == nil {
		m.load = measureLoad(m.s)
	}
	heir := slices.MinFunc(inSync, func(a, b rhumb.NodeID) int {
		return cmp.Or(cmp.Compare(m.load.primaries[a], m.load.primaries[b]), cmp.Compare(a, b))
	})
	m.load.primaries[heir]++
	return heir
}

// removeCopies returns the step that removes copies which nobody needs any more: they leave the in-sync set first.
func (m *mover) removeCopies(r *rhumb.Range, from []rhumb.NodeID) moveStep {
	// Metadata would refuse the last step. A copy that had left the in-sync set by then would stay outside of it.
	if region := m.s.BareRegion(r, without(r.Replicas, from)); region != "" {
		return moveStep{waits: fmt.Sprintf("region %s would have no copy, and the range needs copies in as many regions to survive the loss of one; add a node in another region", region)}
	}
	step := moveStep{phase: phaseRemove, busy: true}
	members := slices.DeleteFunc(slices.Clone(from), func(id rhumb.NodeID) bool { return !r.IsInSync(id) })
	if len(members) == 0 {
		step.commands = []catalog.Command{catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: without(r.Replicas, from)}}
		return step
	}
	if unmarked := slices.DeleteFunc(slices.Clone(members), r.IsLeaving); len(unmarked) > 0 {
		step.commands = []catalog.Command{catalog.SetLeaving{Range: r.ID, Version: r.Version, Leaving: append(slices.Clone(r.Leaving), unmarked...)}}
	}
	step.waits = fmt.Sprintf("the primary %s is to take %s out of the in-sync set", r.Primary, rhumb.NodeList(members))
	return step
}
