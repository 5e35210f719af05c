package place

import (
	"cmp"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// VoterCount returns the number of voters of the metadata group: 5 for five regions or more, 3 for
// three nodes or more, otherwise 1. An even number survives no more failures than the odd one below
// it, and more voters than regions only add copies that fail together.
func VoterCount(nodes, regions int) int {
	switch {
	case regions >= rhumb.VotersMax && nodes >= rhumb.VotersMax:
		return rhumb.VotersMax
	case nodes >= 3:
		return 3
	}
	return 1
}

// Voters returns the ids of the nodes that should vote, in ascending order. current are the present
// voters; isReady reports whether a node's copy of the metadata is close enough to the leader's to
// receive a vote. The result differs from current in as few nodes as the spread over regions, then
// over zones, allows. A voter that was fenced less than VoterReplaceAfter ago, or is draining,
// keeps its vote, so that a restart does not change the group. The number of voters never shrinks
// while nodes are down.
func (p *Planner) Voters(now time.Duration, s *catalog.State, current []rhumb.NodeID, isReady func(rhumb.NodeID) bool) []rhumb.NodeID {
	pool, regions := p.voterPool(now, s, current, isReady)
	// Voters that are to leave for good lose their votes, even if nobody takes them: if one of two nodes leaves, only one
	// vote is left.
	staying, late := 0, false
	for n := range s.Nodes() {
		// A node that catches up takes a vote soon. Until then the group does not shrink.
		late = late || n.State == rhumb.NodeLive && !slices.Contains(current, n.ID) && !isReady(n.ID)
	}
	for _, id := range current {
		if n, ok := s.Node(id); ok && !mayNotVote(n) {
			staying++
		}
	}
	// With too few candidates any change could lose the majority, so the group stays unchanged.
	if len(pool) < staying || len(pool) == 0 || len(pool) < len(current) && late {
		return slices.Sorted(slices.Values(current))
	}
	want := VoterCount(len(pool), regions)
	if want < len(current) && len(pool) >= len(current) {
		want = len(current)
	}
	var chosen []*rhumb.Node
	for len(chosen) < want {
		chosen = append(chosen, nextVoter(chosen, pool, current))
	}
	out := make([]rhumb.NodeID, len(chosen))
	for i, n := range chosen {
		out[i] = n.ID
	}
	slices.Sort(out)
	return out
}

// mayNotVote reports whether a node is to have no vote: it leaves, or another one runs in its place.
func mayNotVote(n *rhumb.Node) bool {
	return n.Leaving || n.Forgotten || n.ReplacedBy != rhumb.NoNode
}

// voterPool returns the nodes that may vote, and the number of their regions.
func (p *Planner) voterPool(now time.Duration, s *catalog.State, current []rhumb.NodeID, isReady func(rhumb.NodeID) bool) ([]*rhumb.Node, int) {
	var pool []*rhumb.Node
	regions := make(map[rhumb.RegionID]bool)
	for n := range s.Nodes() {
		voter := slices.Contains(current, n.ID)
		if mayNotVote(n) {
			continue
		}
		stays := voter && !p.isGone(now, n.ID, p.config.VoterReplaceAfter)
		joins := !voter && n.State == rhumb.NodeLive && isReady(n.ID)
		if stays || joins {
			pool = append(pool, n)
			regions[n.Region] = true
		}
	}
	return pool, len(regions)
}

// nextVoter returns the node to add to chosen: from the least used region, then a present voter,
// then from the least used zone, then a live one, then the one with the lowest id.
func nextVoter(chosen, pool []*rhumb.Node, current []rhumb.NodeID) *rhumb.Node {
	regions := make(map[rhumb.RegionID]int)
	type zone struct {
		region rhumb.RegionID
		name   string
	}
	zones := make(map[zone]int)
	for _, c := range chosen {
		regions[c.Region]++
		zones[zone{c.Region, c.Zone}]++
	}
	rank := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	free := slices.DeleteFunc(slices.Clone(pool), func(n *rhumb.Node) bool { return slices.Contains(chosen, n) })
	// Present voters come before zones, so that a better spread inside a region moves no vote.
	return slices.MinFunc(free, func(a, b *rhumb.Node) int {
		return cmp.Or(
			cmp.Compare(regions[a.Region], regions[b.Region]),
			cmp.Compare(rank(slices.Contains(current, a.ID)), rank(slices.Contains(current, b.ID))),
			cmp.Compare(zones[zone{a.Region, a.Zone}], zones[zone{b.Region, b.Zone}]),
			cmp.Compare(rank(a.State == rhumb.NodeLive), rank(b.State == rhumb.NodeLive)),
			cmp.Compare(a.ID, b.ID),
		)
	})
}
