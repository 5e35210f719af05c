package place

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// carryOut applies a move as its operation does: the copy, the in-sync set, the primary, the removal.
func carryOut(t testing.TB, s *catalog.State, m Move) *catalog.State {
	t.Helper()
	record := func() *rhumb.Range { r, _ := s.Range(m.Range); return r }
	alter := func(set []rhumb.NodeID) {
		c := catalog.AlterISR{Range: m.Range, Epoch: record().Epoch, Version: record().Version}
		for _, id := range set {
			n, _ := s.Node(id)
			c.Members = append(c.Members, catalog.Member{Node: id, Boot: n.Boot})
		}
		s = apply(t, s, c)
	}
	without := func(set []rhumb.NodeID) []rhumb.NodeID {
		return slices.DeleteFunc(slices.Clone(set), func(id rhumb.NodeID) bool { return id == m.From })
	}
	s = apply(t, s, catalog.SetReplicas{Range: m.Range, Version: record().Version, Replicas: append(slices.Clone(record().Replicas), m.To)})
	alter(append(slices.Clone(record().InSync), m.To))
	if record().Preferred == m.From {
		s = apply(t, s, catalog.SetReplicas{Range: m.Range, Version: record().Version, Replicas: record().Replicas, Preferred: m.To})
	}
	if record().Primary == m.From {
		s = apply(t, s, catalog.Elect{Range: m.Range, Version: record().Version, Node: m.To})
	}
	alter(without(record().InSync))
	return apply(t, s, catalog.SetReplicas{Range: m.Range, Version: record().Version, Replicas: without(record().Replicas)})
}

// zoneCount returns the number of zones in which a range has replicas.
func zoneCount(s *catalog.State, r *rhumb.Range) int {
	zones := map[string]bool{}
	for _, id := range r.Replicas {
		n, _ := s.Node(id)
		zones[fmt.Sprint(n.Region, n.Zone)] = true
	}
	return len(zones)
}

// TestBalance draws regions that grow by some nodes and ranges of different sizes, and carries all moves out. Copies stay in
// their region and in as many zones, the difference between nodes does not grow, and a balanced cluster stays as it is.
func TestBalance(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var nodes []spec
		for _, region := range []string{"aaa", "bbb"} {
			for i := range 3 {
				nodes = append(nodes, spec{region, fmt.Sprint("z", i), 1})
			}
		}
		s := buildNew(t, nodes...)
		s = apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 24)}))
		joined := rapid.IntRange(1, 4).Draw(rt, "joined")
		for i := range joined {
			zone := fmt.Sprint("z", rapid.IntRange(0, 3).Draw(rt, "zone"))
			s = apply(t, s, catalog.RegisterNode{Binary: testBuild, Store: rhumb.UUID{100 + byte(i)}, Boot: 1, Region: "aaa", Zone: zone})
		}
		sizes := map[rhumb.RangeID]int64{}
		for r := range s.Ranges() {
			sizes[r.ID] = rapid.Int64Range(0, 64<<20).Draw(rt, "size")
		}
		size := func(r *rhumb.Range) (int64, bool) { return sizes[r.ID], true }
		_, first, _ := PlanMoves(s, size, 0)
		last := first
		total := 0
		for {
			moves, before, after := PlanMoves(s, size, BalanceMovesMax)
			if len(moves) == 0 {
				break
			}
			if total += len(moves); total > 200 {
				rt.Fatalf("still moving after %d moves: %v", total, before)
			}
			for i := range before {
				if after[i].Most-after[i].Least > before[i].Most-before[i].Least {
					rt.Fatalf("moves %v worsen %v to %v", moves, before, after)
				}
			}
			for _, m := range moves {
				r, _ := s.Range(m.Range)
				zones := zoneCount(s, r)
				s = carryOut(t, s, m)
				r, _ = s.Range(m.Range)
				if to, _ := s.Node(m.To); to.Region != r.ID.Region || zoneCount(s, r) < zones || len(r.Replicas) != 3 {
					rt.Fatalf("%+v leads to %v in %d zones instead of %d", m, r.Replicas, zoneCount(s, r), zones)
				}
			}
			last = after
		}
		// Of bbb, where nobody joined, every node has all ranges, whatever they weigh.
		if last[1] != first[1] {
			rt.Fatalf("copies of bbb moved: %v became %v", first[1], last[1])
		}
		if last[0].Most >= first[0].Most && joined == 3 && total == 0 {
			rt.Fatalf("nothing moved to %d empty nodes: %v", joined, last[0])
		}
	})
}

// TestRebalance starts at most a few moves at a time, none while a node is down or surveys are missing, and none once the
// cluster is balanced.
func TestRebalance(t *testing.T) {
	s := buildNew(t, three()[:3]...)
	s = apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 64)}))
	s = apply(t, s, catalog.RegisterNode{Binary: testBuild, Store: rhumb.UUID{100}, Boot: 1, Region: "fra", Zone: "a"})
	p := NewPlanner(DefaultConfig())
	var v Surveys
	if got := p.Rebalance(0, time.Time{}, s, &v); got != nil {
		t.Fatalf("without surveys: %v", got)
	}
	for n := range s.Nodes() {
		v.Add(0, Survey{From: n.ID})
	}
	got := p.Rebalance(0, time.Time{}, s, &v)
	if len(got) != BalanceMovesMax {
		t.Fatalf("%d moves were started, want %d", len(got), BalanceMovesMax)
	}
	for _, cmd := range got {
		s = apply(t, s, cmd)
	}
	if more := p.Rebalance(0, time.Time{}, s, &v); more != nil {
		t.Errorf("with %d moves in flight: %v", len(got), more)
	}
	if late := p.Rebalance(SurveyKeep+1, time.Time{}, s, &v); late != nil {
		t.Errorf("with old surveys: %v", late)
	}
}

// TestDistances records measured distances, again only when they have changed, and the shorter one of both directions.
func TestDistances(t *testing.T) {
	s := buildNew(t, three()...)
	var v Surveys
	measure := func(micros ...uint32) bool {
		v.Add(0, Survey{From: 1, Regions: []RegionRTT{{2, micros[0]}, {3, micros[1]}}})
		v.Add(0, Survey{From: 4, Regions: []RegionRTT{{1, micros[2]}, {9, 5}}})
		cmd, ok := v.Distances(0, s)
		if ok {
			s = apply(t, s, cmd)
		}
		return ok
	}
	if !measure(90_000, 200_000, 80_000) || s.RegionMicros(2, 1) != 80_000 || s.RegionMicros(1, 3) != 200_000 {
		t.Fatalf("recorded are %d and %d", s.RegionMicros(1, 2), s.RegionMicros(1, 3))
	}
	if measure(95_000, 230_000, 95_000) {
		t.Errorf("a change of a fifth was recorded: %d and %d", s.RegionMicros(1, 2), s.RegionMicros(1, 3))
	}
	if !measure(97_000, 200_000, 97_000) || s.RegionMicros(1, 2) != 97_000 {
		t.Errorf("after a longer detour the distance is %d", s.RegionMicros(1, 2))
	}
}
