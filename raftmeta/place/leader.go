package place

import (
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// leadStep is how much nearer to a majority of the voters another node must be, in microseconds of a round trip, before a witness
// hands the leadership to it. Measurements of distances vary by as much.
const leadStep = 2_000

// NextLeader returns the voter to which a witness that leads the metadata group hands the leadership: the one with the shortest way
// to a majority of the live voters, if that is shorter than the witness's own way. It is rhumb.NoNode if the leader stays, which is
// always so if it is not a witness: each handover of this kind ends at a node with data, so the leadership cannot go back and forth.
// canLead reports whether a voter is in contact and lacks few entries.
//
// Raft elects the voter that notices the loss of the leader first, wherever it is. Every change of the fleet, and every failover,
// then takes a round trip from there.
func NextLeader(s *catalog.State, leader rhumb.NodeID, canLead func(rhumb.NodeID) bool) rhumb.NodeID {
	if n, ok := s.Node(leader); !ok || !n.Witness {
		return rhumb.NoNode
	}
	voters, live := liveVoters(s)
	// Distances are those between regions, as nodes measure them, or by metres where none is recorded yet. Zones do not count: within
	// a region any voter is near enough.
	//
	// In the order of the nodes, so that the lowest of several equal ones is chosen each time.
	best, least := rhumb.NoNode, majorityMicros(s, leader, live, voters)-leadStep
	for _, n := range live {
		if n.Witness || mayNotVote(n) || !canLead(n.ID) {
			continue
		}
		if way := majorityMicros(s, n.ID, live, voters); way < least {
			best, least = n.ID, way
		}
	}
	return best
}

// Clocks is a comparison of the wall clock of a node with those of the nodes in contact. The zero value knows nothing and blames nobody.
type Clocks struct {
	// Wrong reports that the clock of the node itself differs from those of the majority.
	Wrong bool
	// Right are the other nodes in contact whose clocks agree with the majority.
	Right []rhumb.NodeID
}

// IsRight reports whether the clock of another node agrees with the majority.
func (c Clocks) IsRight(id rhumb.NodeID) bool { return slices.Contains(c.Right, id) }

// ClockHeir returns the voter to which a leader whose clock is wrong hands the leadership of the metadata group: of those with a right
// clock, one with data before a witness, and of these the one with the shortest way to a majority. It is rhumb.NoNode if the
// leader stays: because its clock is right, or because no voter has one. A leader with a wrong clock is better than none, so the
// clocks of voters that are out of contact, or lack entries, do not matter. canLead reports whether a voter is in contact and lacks few entries.
func ClockHeir(s *catalog.State, leader rhumb.NodeID, clocks Clocks, canLead func(rhumb.NodeID) bool) rhumb.NodeID {
	if !clocks.Wrong {
		return rhumb.NoNode
	}
	voters, live := liveVoters(s)
	best, least, witness := rhumb.NoNode, int64(0), false
	for _, n := range live {
		if n.ID == leader || mayNotVote(n) || !clocks.IsRight(n.ID) || !canLead(n.ID) {
			continue
		}
		way := majorityMicros(s, n.ID, live, voters)
		if best == rhumb.NoNode || witness && !n.Witness || witness == n.Witness && way < least {
			best, least, witness = n.ID, way, n.Witness
		}
	}
	return best
}

// liveVoters returns the number of voters, and those that are live, in the order of the nodes: commits wait for live voters only, and a
// node that drains is about to stop.
func liveVoters(s *catalog.State) (voters int, live []*rhumb.Node) {
	for n := range s.Nodes() {
		if n.Voter {
			voters++
		}
		if n.Voter && n.State.Serves() {
			live = append(live, n)
		}
	}
	return voters, live
}

// majorityMicros returns the round trip from a node to the farthest voter of the nearest majority, the node itself included.
func majorityMicros(s *catalog.State, from rhumb.NodeID, live []*rhumb.Node, voters int) int64 {
	at, _ := s.Node(from)
	var ways []int64
	for _, n := range live {
		if n.ID != from {
			ways = append(ways, s.RegionMicros(at.Region, n.Region))
		}
	}
	slices.Sort(ways)
	// The node itself is one of the majority. Without enough live voters nothing is committed from anywhere.
	others := voters / 2
	switch {
	case others == 0:
		return 0
	case others > len(ways):
		return catalog.DistanceMicrosMax
	}
	return ways[others-1]
}
