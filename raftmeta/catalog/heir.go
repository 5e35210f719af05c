package catalog

import (
	"slices"

	"github.com/rhumbdb/rhumb"
)

// Who takes over a range. The rule is here once: fencing, restarts, quarantines and drains apply it, and the plan of a
// failover (place.PlanFailover) asks it beforehand. Every replica of the catalog must reach the same decision, so nothing but
// the state may influence it.

// HeirWithout returns who takes over a range when the nodes that lost names cannot serve it any more: the live, unquarantined
// in-sync member nearest to the preferred primary, or NoNode. Nearest is the shorter round trip, then fewer metres, then the
// same zone. Members that are equally near take turns by range.
//
// What speaks against a member counts before its distance (heirCost). While the range is being split, a member that can divide it
// comes before all others: any other one could neither complete the split, nor hand the range over, because a split that is
// not complete forbids handovers.
//
// Nothing in this order depends on which node failed first, or on who was primary in between. So a zone whose nodes are fenced
// one by one ends with the same primaries as one that is fenced at once, in any order, and a plan can name them.
func (s *State) HeirWithout(r *rhumb.Range, lost func(rhumb.NodeID) bool) rhumb.NodeID {
	best, bestRank := rhumb.NoNode, heirRank{}
	var turns []rhumb.NodeID
	for _, id := range r.InSync {
		// A quarantined member may lack acknowledged entries, and a member that is not live cannot serve.
		if lost(id) || !s.IsLive(id) || r.IsQuarantined(id) {
			continue
		}
		// Most ranges have two candidates, and most clusters ask for thousands of ranges at once.
		if turns == nil {
			turns = heirTurns(r)
		}
		rank := heirRank{cost: s.heirCost(r, id), span: s.spanBetween(r.Preferred, id), zoned: !s.ShareZone(r.Preferred, id), turn: slices.Index(turns, id)}
		if best == rhumb.NoNode || rank.less(bestRank) {
			best, bestRank = id, rank
		}
	}
	return best
}

// IsNearer reports whether a is nearer to the preferred primary of a range than b, or otherwise better as its primary. Turns do
// not count: they share ranges among nodes that are equally near, and are no reason to move one.
func (s *State) IsNearer(r *rhumb.Range, a, b rhumb.NodeID) bool {
	rank := func(id rhumb.NodeID) heirRank {
		return heirRank{cost: s.heirCost(r, id), span: s.spanBetween(r.Preferred, id), zoned: !s.ShareZone(r.Preferred, id)}
	}
	return rank(a).less(rank(b))
}

// heirRank orders the members that could take over a range; the least does.
type heirRank struct {
	cost int
	span span
	// zoned is set for a member in another zone than the preferred primary.
	zoned bool
	turn  int
}

// less compares the ranks field by field, in the order of the type.
func (a heirRank) less(b heirRank) bool {
	switch {
	case a.cost != b.cost:
		return a.cost < b.cost
	case a.span != b.span:
		return a.span.less(b.span)
	case a.zoned != b.zoned:
		return b.zoned
	}
	return a.turn < b.turn
}

// golden is 2^32 divided by the golden ratio. The fractions of its multiples spread evenly over 0 to 1 for consecutive
// numbers, and for every n-th one too (Knuth, volume 3, 6.4): the slots of a node's primaries are such a sequence.
const golden = 2_654_435_769

// heirTurns returns the replicas of a range in the order in which they take over when they are equally near. The order is one
// of all possible ones, chosen by the range's first slot, so that the ranges of a failed node spread over the others, and
// those of a second one as well. It does not shrink with the in-sync set: the order of those that are left stays.
func heirTurns(r *rhumb.Range) []rhumb.NodeID {
	left := slices.Clone(r.Replicas)
	out := make([]rhumb.NodeID, 0, len(left))
	// The preferred primary comes first. Without it the others divide the whole fraction.
	if i := slices.Index(left, r.Preferred); i >= 0 {
		out, left = append(out, left[i]), slices.Delete(left, i, i+1)
	}
	// The fraction is read as digits in the bases n, n-1, ..., which number the orders of n nodes.
	fraction := uint32(r.ID.Slot) * golden
	for len(left) > 0 {
		digit := uint64(fraction) * uint64(len(left))
		i := int(digit >> 32)
		out, left = append(out, left[i]), slices.Delete(left, i, i+1)
		fraction = uint32(digit)
	}
	return out
}

// ShareZone reports whether two nodes, which must exist, are in one zone of one region.
func (s *State) ShareZone(a, b rhumb.NodeID) bool {
	x, _ := s.nodes.get(uint64(a))
	y, _ := s.nodes.get(uint64(b))
	return x.Region == y.Region && x.Zone == y.Zone
}

// NearestHeir returns who takes over a range from a node, or NoNode. It is HeirWithout for that node, except at cluster versions
// without the feature: there it is the live in-sync member nearest to the node that is replaced, then the one with the
// fewest primaries according to load, then the lowest id. All nodes of a cluster must decide alike, whatever their program.
func (s *State) NearestHeir(r *rhumb.Range, of rhumb.NodeID, load map[rhumb.NodeID]int) rhumb.NodeID {
	if s.Has(rhumb.FeatureFailover) {
		return s.HeirWithout(r, func(id rhumb.NodeID) bool { return id == of })
	}
	best, nearest, bestCost := rhumb.NoNode, span{}, 0
	// Kept as it was: the log of a cluster that is being upgraded has commands which older programs applied like this.
	for _, id := range r.InSync {
		if id == of || !s.IsLive(id) || r.IsQuarantined(id) {
			continue
		}
		// InSync is sorted, so the strict comparisons below leave ties to the lowest id.
		d, cost := s.spanBetween(of, id), s.heirCost(r, id)
		better := cost == bestCost && (d.less(nearest) || d == nearest && load[id] < load[best])
		if best == rhumb.NoNode || cost < bestCost || better {
			best, nearest, bestCost = id, d, cost
		}
	}
	return best
}

// heirCost ranks what speaks against a member as primary, whatever its distance. Each of them is better than no heir.
func (s *State) heirCost(r *rhumb.Range, id rhumb.NodeID) (cost int) {
	// A member that leaves would have to hand over again.
	if s.isLeaving(r, id) {
		cost++
	}
	// A copy cannot leave before the split is complete, so this weighs more.
	if !s.CanDivide(r, id) {
		cost += 2
	}
	return cost
}

// countPrimaries returns the number of ranges of each primary. Turns do not need it, so it is empty from the feature on.
func (t *tx) countPrimaries() map[rhumb.NodeID]int {
	load := make(map[rhumb.NodeID]int)
	if t.Has(rhumb.FeatureFailover) {
		return load
	}
	for r := range t.Ranges() {
		load[r.Primary]++
	}
	return load
}

// CanShrink reports whether a range can go on without the nodes that lost names: enough live, intact members of its in-sync
// set are left, and they fulfil its survival goal. It returns those members.
func (s *State) CanShrink(r *rhumb.Range, lost func(rhumb.NodeID) bool) (left []rhumb.NodeID, ok bool) {
	for _, id := range r.InSync {
		if !lost(id) && s.IsLive(id) && !r.IsQuarantined(id) {
			left = append(left, id)
		}
	}
	return left, s.mayShrinkWithout(r, left, lost)
}
