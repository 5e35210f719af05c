package place

import (
	"fmt"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Holding lists the roles and copies of a node according to the metadata.
type Holding struct {
	// Copies counts the copies of ranges, and Primaries those of them that are primary.
	Copies, Primaries int
	// Operation is the operation that empties the node, 0 if there is none.
	Operation rhumb.OperationID
	// Stays says what keeps the node from being removed for good, or which operation removes it. It is "" if `rhumb node rm` removes it now.
	Stays string
}

// Holdings returns the holding of each node. Operators ask for it before they remove a node, so it says why that is not possible yet.
func Holdings(s *catalog.State) map[rhumb.NodeID]Holding {
	out := make(map[rhumb.NodeID]Holding)
	for r := range s.Ranges() {
		for _, id := range r.Replicas {
			h := out[id]
			h.Copies++
			if r.Primary == id {
				h.Primaries++
			}
			out[id] = h
		}
	}
	for n := range s.Nodes() {
		h := out[n.ID]
		if o := emptiedBy(s, n); o != nil {
			h.Operation, h.Stays = o.ID, h.leaves(s, n, o)
		} else {
			h.Stays = h.waits(s, n)
		}
		out[n.ID] = h
	}
	return out
}

// emptiedBy returns the operation that moves everything away from a node, or nil. The removal of a region names no node, but empties all of the
// region.
func emptiedBy(s *catalog.State, n *rhumb.Node) *rhumb.Operation {
	for o := range s.Operations() {
		switch {
		// Moves of single ranges, merges and moves of votes name nodes too, and empty none.
		case o.State.IsOver() || n.Forgotten:
		case o.Kind == rhumb.OperationRemoveRegion && o.Region == n.Region:
			return o
		case o.Node == n.ID && (o.Kind == rhumb.OperationDecommission || o.Kind == rhumb.OperationReplace || o.Kind == rhumb.OperationRepair):
			return o
		}
	}
	return nil
}

// describe returns the copies and the vote of a node in words, or "" for a node without either.
func (h Holding) describe(voter bool) string {
	var parts []string
	switch {
	case h.Copies == 1 && h.Primaries == 1:
		parts = append(parts, "1 copy (primary)")
	case h.Copies == 1:
		parts = append(parts, "1 copy")
	case h.Primaries > 0:
		parts = append(parts, fmt.Sprintf("%d copies (%d primary)", h.Copies, h.Primaries))
	case h.Copies > 0:
		parts = append(parts, fmt.Sprintf("%d copies", h.Copies))
	}
	if voter {
		parts = append(parts, "a vote in the metadata group")
	}
	return strings.Join(parts, " and ")
}

// leaves returns the reason for a node that an operation empties: the copies and the vote that are left, the operation, and its obstacle.
func (h Holding) leaves(s *catalog.State, n *rhumb.Node, o *rhumb.Operation) string {
	name := fmt.Sprintf("%s (%s)", o.ID, o.Kind)
	if region, ok := s.Region(o.Region); ok && o.Kind == rhumb.OperationRemoveRegion {
		name = fmt.Sprintf("%s (%s %s)", o.ID, o.Kind, region.Name)
	}
	// A repair copies from other nodes, because a dead one sends nothing.
	does := "moves that away"
	if o.Kind == rhumb.OperationRepair {
		does = "makes the copies on other nodes"
	}
	held := h.describe(n.Voter)
	// The last step of these two removes the node. A decommissioning ends when the node is empty, and leaves the removal to an operator.
	switch {
	case held == "" && (o.Kind == rhumb.OperationRemoveRegion || o.Kind == rhumb.OperationReplace):
		held, does = "nothing", "removes the node"
		// The nodes of a region are removed together, so an empty one waits for the others.
		if o.Kind == rhumb.OperationRemoveRegion {
			does = "removes the node when all nodes of the region are empty"
		}
	case held == "":
		return ""
	}
	switch {
	// A paused operation keeps the obstacle of the time before, which explains nothing now.
	case o.State == rhumb.OperationPaused:
		return fmt.Sprintf("%s: %s %s, and is paused (`rhumb operation resume %s`)", held, name, does, o.ID)
	case o.Waits != "":
		return fmt.Sprintf("%s: %s %s; it waits: %s", held, name, does, o.Waits)
	}
	return fmt.Sprintf("%s: %s %s", held, name, does)
}

// waits returns why a node that no operation empties cannot be removed, or "".
func (h Holding) waits(s *catalog.State, n *rhumb.Node) string {
	held := h.describe(n.Voter)
	switch {
	case n.Forgotten || held == "":
		return s.WhyNotForget(n)
	// A cancelled operation leaves a node that takes copies again, so this one failed, or a copy came back.
	case n.Leaving:
		return fmt.Sprintf("%s: no operation moves that away; run `rhumb node decommission %s`", held, n.ID)
	case n.State == rhumb.NodeFenced && h.Copies == 0:
		return held + ": another node gets it within seconds, if one can vote"
	case n.State == rhumb.NodeFenced:
		return fmt.Sprintf("%s: other nodes get copies when this one has been dead for as long as the setting %s says; add a node if the region has too few",
			held, rhumb.SettingReplaceAfter)
	}
	return s.WhyNotForget(n)
}
