package place

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// seats says where operators want votes: pinned nodes keep their votes or get them as soon as they can. left is a node whose vote is
// being moved away, once the node that gets it can take it.
type seats struct {
	pinned map[rhumb.NodeID]bool
	left   rhumb.NodeID
}

// wishes returns the seats. While a vote moves, all votes stay where they are but this one, so that the cluster does not answer a
// move by moving others. canTake reports whether a node could vote now.
func wishes(s *catalog.State, current []rhumb.NodeID, canTake func(rhumb.NodeID) bool) seats {
	w := seats{pinned: make(map[rhumb.NodeID]bool)}
	// Pins of nodes that are dead, leave or lag count too. Such nodes are not in the pool, so that others take their places
	// meanwhile, and the pins bring them back later.
	for n := range s.Nodes() {
		if n.VotePinned {
			w.pinned[n.ID] = true
		}
	}
	for o := range s.Operations() {
		// A paused move begins nothing. A vote that has moved already stays, or pausing would move it back.
		if o.Kind != rhumb.OperationMoveVote || o.State.IsOver() || o.State == rhumb.OperationPaused && !slices.Contains(current, o.Target) {
			continue
		}
		// The pins of a move are not in the state before its end: a move that fails or is cancelled must leave the automatic choice as
		// it was, and there would be nobody to take them back.
		for _, id := range current {
			w.pinned[id] = true
		}
		// Until the target has caught up nothing changes: the group never has fewer voters that are up to date.
		if canTake(o.Target) {
			w.pinned[o.Target], w.left = true, o.Node
			delete(w.pinned, o.Node)
		}
	}
	return w
}

// Voters returns the ids of the nodes that should vote, in ascending order. current are the present
// voters; isReady reports whether a node's copy of the metadata is close enough to the leader's to
// receive a vote. The result differs from current in as few nodes as the spread over regions, then
// over zones, allows. A voter that was fenced less than VoterReplaceAfter ago, or is draining,
// keeps its vote, so that a restart does not change the group. The number of voters never shrinks
// while nodes are down, but to an odd one.
//
// Votes that an operator has pinned come first (rhumb.Node.VotePinned). While a pinned node is gone, another one votes in its place:
// a group without majority helps nobody.
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
	want := rhumb.VoterCount(len(pool), regions)
	if want < len(current) && len(pool) >= len(current) {
		// An even number, which is left when others got votes before the only voter lost its own, survives no more failures than the odd one
		// below it, and fewer if two of four are in one of three regions.
		want = max(want, len(current)-1+len(current)%2)
	}
	wish := wishes(s, current, func(id rhumb.NodeID) bool {
		return slices.ContainsFunc(pool, func(n *rhumb.Node) bool { return n.ID == id })
	})
	var chosen []*rhumb.Node
	for len(chosen) < want {
		chosen = append(chosen, nextVoter(chosen, pool, current, wish))
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

// nextVoter returns the node to add to chosen: a pinned one, then one from the least used region, then a witness, then a present
// voter, then from the least used zone, then a live one, then the one with the lowest id. A node whose vote is being moved away
// comes last.
func nextVoter(chosen, pool []*rhumb.Node, current []rhumb.NodeID, wish seats) *rhumb.Node {
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
			cmp.Compare(rank(a.ID != wish.left), rank(b.ID != wish.left)),
			cmp.Compare(rank(wish.pinned[a.ID]), rank(wish.pinned[b.ID])),
			cmp.Compare(regions[a.Region], regions[b.Region]),
			// A witness does nothing else, so a node with data is left to its data.
			cmp.Compare(rank(a.Witness), rank(b.Witness)),
			cmp.Compare(rank(slices.Contains(current, a.ID)), rank(slices.Contains(current, b.ID))),
			cmp.Compare(zones[zone{a.Region, a.Zone}], zones[zone{b.Region, b.Zone}]),
			cmp.Compare(rank(a.State == rhumb.NodeLive), rank(b.State == rhumb.NodeLive)),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// WhyVotes returns, for people, why each voter of the metadata group has its vote. It judges the votes as they are in the state.
func WhyVotes(s *catalog.State) map[rhumb.NodeID]string {
	out := make(map[rhumb.NodeID]string)
	// The reasons follow from the votes as they are, and not from a record of the choice: a record would be about a state that has
	// changed since, for example because a region was added.
	votes, all := make(map[rhumb.RegionID]int), 0
	var absent []string
	for n := range s.Nodes() {
		if n.Voter {
			votes[n.Region]++
			all++
		} else if n.VotePinned {
			absent = append(absent, n.ID.String())
		}
	}
	for n := range s.Nodes() {
		if !n.Voter {
			continue
		}
		region, _ := s.Region(n.Region)
		switch {
		case n.VotePinned:
			out[n.ID] = "pinned by an operator"
		// Nothing records who stands in for whom, so all votes that nobody chose name all pinned nodes without one.
		case len(absent) > 0:
			out[n.ID] = fmt.Sprintf("votes while %s, which %s pinned, cannot", strings.Join(absent, ", "), oneOrMore(len(absent), "is", "are"))
		case n.Witness:
			out[n.ID] = fmt.Sprintf("witness of region %s", region.Name)
		case all == 1:
			out[n.ID] = "the only vote: the cluster has fewer than three nodes that can vote"
		case votes[n.Region] == 1:
			out[n.ID] = fmt.Sprintf("the vote of region %s; %d votes are spread over regions first", region.Name, all)
		default:
			out[n.ID] = fmt.Sprintf("one of %d votes in region %s, in zone %s; votes are spread over regions, then over zones", votes[n.Region], region.Name, n.Zone)
		}
	}
	return out
}

// oneOrMore returns the word that fits a number.
func oneOrMore(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}
