package place

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// This file moves everything away from a node that is decommissioned or replaced, and judges beforehand whether that is possible.

// advanceNode moves the copies of a node away, then its vote, and removes a replaced node.
func (m *mover) advanceNode(o *rhumb.Operation) {
	n, ok := m.s.Node(o.Node)
	if !ok || n.Forgotten {
		m.record(o, rhumb.OperationDone, workLeft{}, 3)
		return
	}
	// A node that is to be the new one, and leaves itself, would hold the old one up without end. Any other node will do then.
	to := o.Target
	if m.leaves(to) {
		to = rhumb.NoNode
	}
	t := m.moveAll(o.Node, to)
	step := 0
	state := rhumb.OperationRunning
	switch {
	case t.left > 0:
	case n.Voter:
		step, t.waits = 1, "another node is to get its vote in the metadata group"
	case o.Kind == rhumb.OperationReplace:
		step, t.waits = 2, m.p.whyRefused(subject{Node: n.ID})
		m.out = append(m.out, catalog.ForgetNode{Node: n.ID, Boot: n.Boot, Empty: true})
	default:
		step, state = 2, rhumb.OperationDone
	}
	m.record(o, state, t, step)
}

// leaves reports whether a node is to hold nothing any more.
func (m *mover) leaves(id rhumb.NodeID) bool {
	n, ok := m.s.Node(id)
	return ok && mayNotVote(n)
}

// moveAll advances the moves of all copies on a node, movesMax at a time. Ranges that cannot move now hold up no others.
func (m *mover) moveAll(from, to rhumb.NodeID) workLeft {
	var t workLeft
	for r := range m.s.Ranges() {
		if !r.IsReplica(from) {
			continue
		}
		m.weigh(&t, r.ID)
		if t.moving < movesMax && len(m.out) < PlanMax {
			t.note(m.move(r, to, from), r)
		}
	}
	return t
}

// forgetReplaced removes nodes that returned with an empty disk as other nodes, once nothing depends on them.
func (m *mover) forgetReplaced() {
	for n := range m.s.Nodes() {
		if n.ReplacedBy != rhumb.NoNode && !n.Forgotten && m.s.WhyNotForget(n) == "" {
			m.out = append(m.out, catalog.ForgetNode{Node: n.ID, Boot: n.Boot, Empty: true})
		}
	}
}

// WhyNotReplace returns why a node cannot be replaced by another one, or "". A node that has a copy of every range of the one that goes can
// take none of its copies: it replaces nothing, and others have to take them, as in a decommissioning. A node that takes them suffices unless
// other nodes leave too.
func WhyNotReplace(s *catalog.State, node, by rhumb.NodeID) string {
	// The catalog says which nodes can replace each other at all. A number that does not exist would be refused as if nodes were missing.
	from, known := s.Node(node)
	to, exists := s.Node(by)
	if !known || !exists || node == by || from.Region != to.Region {
		return ""
	}
	has := false
	for r := range s.Ranges() {
		if r.IsReplica(node) {
			has = true
			if !r.IsReplica(by) {
				return whyTooFewStay(s, node)
			}
		}
	}
	// Without any copy it may still be about to get those of a node that it replaces.
	if !has {
		return whyTooFewStay(s, node)
	}
	if why := WhyNotLeave(s, node); why != "" {
		return fmt.Sprintf("%s has copies of all ranges of %s already, and the other nodes cannot take them: %s", by, node, why)
	}
	return ""
}

// whyTooFewStay returns why a node cannot be replaced by any other one, or "": other nodes of its region leave too, and those that stay are fewer
// than the copies of a table. Two replacements by the same node are an example: the copies of each would wait for a node that
// the other one takes away. Dead nodes count as staying, because a replacement is how a region with several dead nodes is repaired.
func whyTooFewStay(s *catalog.State, id rhumb.NodeID) string {
	n, ok := s.Node(id)
	if !ok {
		return ""
	}
	stays := func(other *rhumb.Node) bool { return other.ID != id && !other.Witness && !mayNotVote(other) }
	if why := whyNoSpread(s, id, stays); why != "" {
		return why + " (`rhumb operation ls` shows what leaves)"
	}
	left := 0
	for other := range s.Nodes() {
		if other.Region == n.Region && stays(other) {
			left++
		}
	}
	most, tables := tooFewCopies(s, id, left)
	if most == 0 {
		return ""
	}
	region, _ := s.Region(n.Region)
	return fmt.Sprintf("without %s and the nodes that leave already, region %s would keep %d of its nodes, but these tables keep more copies: %s; add %s to the region first (`rhumb operation ls` shows what leaves)",
		id, region.Name, left, strings.Join(tables, ", "), moreNodes(most-left))
}

// WhyNotLeave returns why the copies of a node cannot be moved away, with what would fit, or "". It judges the nodes that are
// live and not leaving.
func WhyNotLeave(s *catalog.State, id rhumb.NodeID) string {
	n, ok := s.Node(id)
	if !ok {
		return fmt.Sprintf("node %s does not exist", id)
	}
	// The other nodes of its region leave too: their number would be a reason that no further node removes.
	if at, ok := s.Region(n.Region); ok && at.Into != 0 && !at.Removed {
		return fmt.Sprintf("its region %s is being removed, and %s with it (`rhumb operation ls`)", at.Name, id)
	}
	left := 0
	for other := range s.Nodes() {
		if other.Region == n.Region && other.ID != id && s.TakesCopies(other.ID) {
			left++
		}
	}
	if why := whyNoSpread(s, id, func(other *rhumb.Node) bool { return other.ID != id && s.TakesCopies(other.ID) }); why != "" {
		return why
	}
	most, tables := tooFewCopies(s, id, left)
	if most == 0 {
		return ""
	}
	region, _ := s.Region(n.Region)
	return fmt.Sprintf("without %s, the live nodes of region %s would be %d, but these tables keep more copies: %s; add %s to the region first, or replace %s by a new node (rhumb node replace)",
		id, region.Name, left, strings.Join(tables, ", "), moreNodes(most-left), id)
}

// whyNoSpread returns why the nodes that stay cannot hold the copies of the tables that survive the loss of a region and have copies on a node
// that leaves, or "". Their copies may move to other regions, within the bounds of the goal.
func whyNoSpread(s *catalog.State, id rhumb.NodeID, stays func(*rhumb.Node) bool) string {
	for class := range s.Classes() {
		if class.Dropping || class.Settings.Survival != rhumb.SurviveRegion || !holdsClass(s, id, class.ID) {
			continue
		}
		for home := range s.Regions() {
			_, has := s.HashBlock(home.ID, class.ID)
			if p := newPoolOf(s, home.ID, class.Settings, stays); has && !p.hasRoom() {
				return fmt.Sprintf("without %s and the nodes that leave already, the copies of %s would not survive the loss of a region: they need nodes in %d regions, at most %d copies in each, and %s; add nodes in another region first",
					id, strings.Join(classTables(s, class.ID), ", "), class.Settings.RegionsMin(), class.Settings.RegionReplicasMax(), strings.Join(p.counts(s), ", "))
			}
		}
	}
	return ""
}

// moreNodes names a number of nodes.
func moreNodes(count int) string {
	if count > 1 {
		return fmt.Sprintf("%d nodes", count)
	}
	return "a node"
}

// tooFewCopies returns the largest number of copies that a table on the node keeps, and the tables that keep more than left, with their
// numbers. most is 0 if left nodes suffice for all. Tables that survive the loss of a region do not count: their copies may go elsewhere.
func tooFewCopies(s *catalog.State, id rhumb.NodeID, left int) (most int, tables []string) {
	for class := range s.Classes() {
		// The ranges of a dropped class disappear before anybody moves them.
		if class.Dropping || class.Settings.Survival == rhumb.SurviveRegion || class.Settings.Replicas <= left || !holdsClass(s, id, class.ID) {
			continue
		}
		most = max(most, class.Settings.Replicas)
		for t := range s.Tables() {
			if t.Class == class.ID {
				tables = append(tables, fmt.Sprintf("%s (%d)", t.Name, class.Settings.Replicas))
			}
		}
	}
	return most, tables
}

// holdsClass reports whether a node has a copy of a range of the class, or is to get one: it replaces a node that has one.
func holdsClass(s *catalog.State, id rhumb.NodeID, class rhumb.ClassID) bool {
	holders := []rhumb.NodeID{id}
	for o := range s.Operations() {
		if o.Kind == rhumb.OperationReplace && o.Target == id && !o.State.IsOver() {
			holders = append(holders, o.Node)
		}
	}
	for r := range s.Ranges() {
		if r.Class == class && slices.ContainsFunc(holders, r.IsReplica) {
			return true
		}
	}
	return false
}
