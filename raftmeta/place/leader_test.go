package place

import (
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestNextLeader: a witness that is far from everybody hands the leadership to the voter that is nearest to a majority, one that is in
// the middle keeps it, and a node with data always does.
func TestNextLeader(t *testing.T) {
	none := func(rhumb.NodeID) bool { return false }
	lacks := func(id rhumb.NodeID) func(rhumb.NodeID) bool { return func(n rhumb.NodeID) bool { return n != id } }
	for name, test := range map[string]struct {
		leader  rhumb.NodeID
		ab      uint32 // the round trip between the regions with data, in microseconds
		aw, bw  uint32 // from them to the witness
		canLead func(rhumb.NodeID) bool
		fenced  rhumb.NodeID
		want    rhumb.NodeID
	}{
		"a far witness":                     {3, 20_000, 150_000, 150_000, always1, 0, 1},
		"the nearer one is behind":          {3, 20_000, 150_000, 150_000, lacks(1), 0, 2},
		"nobody can lead":                   {3, 20_000, 150_000, 150_000, none, 0, 0},
		"a witness in the middle":           {3, 90_000, 40_000, 50_000, always1, 0, 0},
		"hardly nearer":                     {3, 39_000, 40_000, 40_000, always1, 0, 0},
		"a node with data":                  {1, 200_000, 10_000, 10_000, always1, 0, 0},
		"only the witness is left of a way": {3, 20_000, 150_000, 150_000, always1, 2, 0},
	} {
		s := build(t, spec{"fra", "a", 0}, spec{"par", "a", 0}, spec{"nyc", "a", 0})
		s = apply(t, s, catalog.SetDistances{Distances: []rhumb.RegionDistance{{A: 1, B: 2, Micros: test.ab}, {A: 1, B: 3, Micros: test.aw}, {A: 2, B: 3, Micros: test.bw}}})
		s = asWitness(t, s, 3)
		s = apply(t, s, catalog.SetVoters{Voters: []rhumb.NodeID{1, 2, 4}})
		leader := test.leader
		if leader == 3 {
			leader = 4
		}
		if test.fenced != rhumb.NoNode {
			n, _ := s.Node(test.fenced)
			s = apply(t, s, catalog.FenceNode{Node: n.ID, Boot: n.Boot})
		}
		if got := NextLeader(s, leader, test.canLead); got != test.want {
			t.Errorf("%s: the next leader is %s, want %s", name, got, test.want)
		}
	}
}

// TestClockHeir: a leader whose clock is wrong hands the leadership to a voter that can lead and whose clock is right: one with data before a
// witness, the nearest to a majority, the first of several. Without one it stays.
func TestClockHeir(t *testing.T) {
	lacks := func(id rhumb.NodeID) func(rhumb.NodeID) bool { return func(n rhumb.NodeID) bool { return n != id } }
	wrong := func(right ...rhumb.NodeID) Clocks { return Clocks{Wrong: true, Right: right} }
	for name, test := range map[string]struct {
		leader  rhumb.NodeID
		clocks  Clocks
		canLead func(rhumb.NodeID) bool
		fenced  rhumb.NodeID
		want    rhumb.NodeID
	}{
		"the clock of the leader is right":        {1, Clocks{Right: []rhumb.NodeID{2, 3}}, always1, 0, 0},
		"nothing is known":                        {1, Clocks{}, always1, 0, 0},
		"the nearest of three to a majority":      {1, wrong(2, 3, 4), always1, 0, 3},
		"the nearest lacks entries":               {1, wrong(2, 3, 4), lacks(3), 0, 2},
		"the clock of the nearest is wrong too":   {1, wrong(2, 4), always1, 0, 2},
		"the nearest is dead":                     {1, wrong(2, 3, 4), always1, 3, 2},
		"only the witness is right":               {1, wrong(4), always1, 0, 4},
		"all voters are wrong":                    {1, wrong(), always1, 0, 0},
		"only a node without a vote is right":     {1, wrong(5), always1, 0, 0},
		"nobody can lead":                         {1, wrong(2, 3, 4), func(rhumb.NodeID) bool { return false }, 0, 0},
		"another leads, and the leader is listed": {2, wrong(2), always1, 0, 0},
		"a witness leads":                         {4, wrong(1, 2, 3), always1, 0, 1},
	} {
		s := build(t, spec{"fra", "a", 0}, spec{"par", "a", 0}, spec{"nyc", "a", 0})
		s = apply(t, s, catalog.SetDistances{Distances: []rhumb.RegionDistance{{A: 1, B: 2, Micros: 10_000}, {A: 1, B: 3, Micros: 80_000}, {A: 2, B: 3, Micros: 90_000}}})
		s = asWitness(t, s, 3)
		s = apply(t, s, catalog.SetVoters{Voters: []rhumb.NodeID{1, 2, 3, 4}})
		if test.fenced != rhumb.NoNode {
			n, _ := s.Node(test.fenced)
			s = apply(t, s, catalog.FenceNode{Node: n.ID, Boot: n.Boot})
		}
		if got := ClockHeir(s, test.leader, test.clocks, test.canLead); got != test.want {
			t.Errorf("%s: the heir is %s, want %s", name, got, test.want)
		}
	}
}

func always1(rhumb.NodeID) bool { return true }

// asWitness registers a witness in the region of a node. It is node 4.
func asWitness(t *testing.T, s *catalog.State, in rhumb.NodeID) *catalog.State {
	t.Helper()
	n, _ := s.Node(in)
	region, _ := s.Region(n.Region)
	s = apply(t, s, catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{44}, Boot: 1, Nonce: 44, Region: region.Name, Zone: "w", Witness: true})
	if w, ok := s.Node(4); !ok || !w.Witness {
		t.Fatalf("the witness is %+v", w)
	}
	return s
}
