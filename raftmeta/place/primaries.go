package place

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// BalancePrimaries returns SetReplicas commands that move the preferred primary of hash slots to the replica
// with the fewest, until the counts of nodes that share ranges differ by at most one. It does not
// move slots in a node's own blocks, where the node is the preferred primary. It ignores nodes that
// are not live, because they may return, and ranges with a copy that moves.
func (p *Planner) BalancePrimaries(s *catalog.State) []catalog.Command {
	count := make(map[rhumb.NodeID]int)
	var hashed []*rhumb.Range
	for r := range s.Ranges() {
		// A reserved range has no primary yet that could move.
		if b, ok := s.BlockOf(r.ID); ok && b.Node == rhumb.NoNode && r.Birth == 0 {
			hashed = append(hashed, r)
			count[r.Preferred]++
		}
	}
	var out []catalog.Command
	merging := mergingRanges(s)
	for _, r := range hashed {
		if len(out) == PlanMax {
			break
		}
		// Two ranges that are to be one get one primary. Until then the two nodes look uneven.
		if merging[r.ID] {
			continue
		}
		// A range that returns to its former node has a preferred primary for that time only.
		if !s.TakesCopies(r.Preferred) || r.Former != rhumb.NoNode {
			continue
		}
		// A copy moves, and its mover decides who is preferred. If both did, each would undo what the other has done, in every round.
		if class, ok := s.Class(r.Class); ok && len(r.Replicas) > class.Settings.Replicas {
			continue
		}
		to := r.Preferred
		for _, id := range r.Replicas {
			if s.TakesCopies(id) && !r.IsLeaving(id) && staysHome(s, r, id) && count[id] < count[to] {
				to = id
			}
		}
		// A difference of one is left alone: moving it would only swap the two nodes, again and again.
		if count[r.Preferred]-count[to] > 1 {
			count[r.Preferred]--
			count[to]++
			out = append(out, catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: r.Replicas, Preferred: to})
		}
	}
	return out
}

// staysHome reports whether balance may make a replica the preferred primary. A table that survives the loss of a region has copies in several
// regions, and writes of its home would cross the distance to the primary if a region with more nodes had more room for primaries.
func staysHome(s *catalog.State, r *rhumb.Range, id rhumb.NodeID) bool {
	at, _ := s.Node(id)
	from, _ := s.Node(r.Preferred)
	// A range whose home has no copy left stays in the region that it is in.
	return at.Region == from.Region || at.Region == s.HostRegion(r.ID.Region)
}
