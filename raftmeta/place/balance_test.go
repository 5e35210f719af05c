package place

import (
	"fmt"
	"math/rand/v2"
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
		sizes := map[rhumb.RangeID]RangeSize{}
		for r := range s.Ranges() {
			sizes[r.ID] = RangeSize{
				Range: r.ID, Bytes: rapid.Int64Range(0, 64<<20).Draw(rt, "size"),
				Writes: rapid.Uint32Range(0, 1<<9).Draw(rt, "writes"), WrittenRate: rapid.Uint64Range(0, 1<<17).Draw(rt, "rate"),
			}
		}
		size := func(r *rhumb.Range) (RangeSize, bool) { return sizes[r.ID], true }
		_, first, _ := PlanMoves(s, time.Time{}, size, rhumb.LocalRegion, 0)
		last := first
		total := 0
		for {
			moves, before, after := PlanMoves(s, time.Time{}, size, rhumb.LocalRegion, BalanceMovesMax)
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
	if got := p.BalanceCopies(0, time.Time{}, s, &v); got != nil {
		t.Fatalf("without surveys: %v", got)
	}
	for n := range s.Nodes() {
		v.Add(0, Survey{From: n.ID})
	}
	got := p.BalanceCopies(0, time.Time{}, s, &v)
	if len(got) != BalanceMovesMax {
		t.Fatalf("%d moves were started, want %d", len(got), BalanceMovesMax)
	}
	for _, cmd := range got {
		s = apply(t, s, cmd)
	}
	if more := p.BalanceCopies(0, time.Time{}, s, &v); more != nil {
		t.Errorf("with %d moves in flight: %v", len(got), more)
	}
	if late := p.BalanceCopies(SurveyKeep+1, time.Time{}, s, &v); late != nil {
		t.Errorf("with old surveys: %v", late)
	}
}

// fourZones are the nodes of a region with one zone each.
var fourZones = []spec{{"aaa", "a", 1}, {"aaa", "b", 1}, {"aaa", "c", 1}, {"aaa", "d", 1}}

// TestBalanceByLoad moves the ranges that are written apart, although all ranges hold the same.
func TestBalanceByLoad(t *testing.T) {
	s := buildNew(t, fourZones...)
	s = apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(1, 32)}))
	// Whatever the placement was, the hot ranges are those of one node.
	hot := rhumb.NodeID(2)
	size := func(r *rhumb.Range) (RangeSize, bool) {
		x := RangeSize{Range: r.ID, Bytes: 8 << 20}
		if r.Replicas[0] == hot {
			x.Writes, x.WrittenRate = 100, 1<<20
		}
		return x, true
	}
	// The speeds stay with the ranges when these move.
	speeds := map[rhumb.RangeID]RangeSize{}
	for r := range s.Ranges() {
		speeds[r.ID], _ = size(r)
	}
	fixed := func(r *rhumb.Range) (RangeSize, bool) { return speeds[r.ID], true }
	moves, before, after := PlanMoves(s, time.Time{}, fixed, rhumb.LocalRegion, BalancePlanMax)
	if len(moves) == 0 || after[0].Most > before[0].Most/2 {
		t.Fatalf("%d moves; the greatest weight was %d and becomes %d", len(moves), before[0].Most, after[0].Most)
	}
	for _, m := range moves[:1] {
		if m.From != hot || m.Size.WrittenRate == 0 || m.Why == "" {
			t.Errorf("the first move is %+v, not one of a hot range from %s", m, hot)
		}
	}
	if none, _, _ := PlanMoves(s, time.Time{}, fixed, 9, BalancePlanMax); none != nil {
		t.Errorf("a plan for another region has %v", none)
	}
}

// TestBalanceDoesNotOscillate lets the load jump between ranges every minute for hours, as a workload with bursts does, and
// counts moves. A range rests after a move, so the number is bounded whatever the load does; noise of a tenth moves nothing
// once the nodes are alike.
func TestBalanceDoesNotOscillate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := buildNew(t, fourZones...)
		s = apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(1, 16)}))
		p, wall := NewPlanner(DefaultConfig()), time.Unix(1_000_000, 0)
		noisy := rapid.Bool().Draw(rt, "noisy")
		seed := rapid.Uint64().Draw(rt, "seed")
		draws := rand.New(rand.NewPCG(seed, 1))
		last := map[rhumb.RangeID]time.Time{}
		moved, late := 0, 0
		const minutes = 180
		for minute := range minutes {
			now := time.Duration(minute) * time.Minute
			wall := wall.Add(now)
			var v Surveys
			sizes := map[rhumb.NodeID][]RangeSize{}
			for r := range s.Ranges() {
				x := RangeSize{Range: r.ID, Bytes: 64 << 20}
				if noisy {
					x.WrittenRate = 100_000 + draws.Uint64N(10_000)
				} else if draws.IntN(4) == 0 {
					x.WrittenRate = 1 << 20
				}
				sizes[r.Primary] = append(sizes[r.Primary], x)
			}
			for n := range s.Nodes() {
				v.Add(now, Survey{From: n.ID, Ranges: sizes[n.ID]})
			}
			for _, cmd := range p.BalanceCopies(now, wall, s, &v) {
				start := cmd.(catalog.StartOperation)
				if at, ok := last[start.Range]; ok && wall.Sub(at) < BalanceRest {
					rt.Fatalf("range %v moves again after %v", start.Range, wall.Sub(at))
				}
				last[start.Range] = wall
				next, res, _ := s.Apply(start)
				s = carryOut(t, next, Move{Range: start.Range, From: start.Node, To: start.Target})
				o, _ := s.Operation(res.Operation)
				s = apply(t, s, catalog.UpdateOperation{ID: o.ID, Version: o.Version, State: rhumb.OperationDone, Steps: o.Steps, At: wall})
				moved++
				if minute > 30 {
					late++
				}
			}
		}
		if most := 16 * (minutes/int(BalanceRest/time.Minute) + 1); moved > most {
			rt.Fatalf("%d moves in %d minutes, more than %d", moved, minutes, most)
		}
		if !noisy && moved == 0 {
			rt.Fatal("nothing moved although the load was never even")
		}
		if noisy && late > 0 {
			rt.Fatalf("noise of a tenth moved %d copies after the first half hour", late)
		}
	})
}

// TestRebalanceOperation starts a rebalance, follows its progress to the end, and pauses one.
func TestRebalanceOperation(t *testing.T) {
	s := buildNew(t, three()[:3]...)
	s = apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 64)}))
	s = apply(t, s, catalog.RegisterNode{Binary: testBuild, Store: rhumb.UUID{100}, Boot: 1, Region: "fra", Zone: "a"})
	p, wall := NewPlanner(DefaultConfig()), time.Unix(1_000_000, 0)
	survey := func() *Surveys {
		var v Surveys
		for n := range s.Nodes() {
			v.Add(0, Survey{From: n.ID})
		}
		return &v
	}
	s = apply(t, s, catalog.StartOperation{Kind: rhumb.OperationRebalance, By: "ann", At: wall})
	id := rhumb.OperationID(1)
	record := func() *rhumb.Operation { o, _ := s.Operation(id); return o }
	s = apply(t, s, catalog.ControlOperation{ID: id, Action: catalog.PauseOperation, At: wall})
	if got := p.BalanceCopies(0, wall, s, survey()); got != nil {
		t.Fatalf("while it is paused: %v", got)
	}
	s = apply(t, s, catalog.ControlOperation{ID: id, Action: catalog.ResumeOperation, At: wall})
	var total uint64
	for round := 0; !record().State.IsOver(); round++ {
		if round > 200 {
			t.Fatalf("it does not end: %+v", record())
		}
		for _, cmd := range p.BalanceCopies(0, wall, s, survey()) {
			s = apply(t, s, cmd)
		}
		if done := record().Progress; done.Total < total || done.Done > done.Total {
			t.Fatalf("the progress is %+v after a total of %d", done, total)
		}
		total = record().Progress.Total
		for o := range s.Operations() {
			if o.Kind == rhumb.OperationMove && !o.State.IsOver() {
				s = carryOut(t, s, Move{Range: o.Range, From: o.Node, To: o.Target})
				s = apply(t, s, catalog.UpdateOperation{ID: o.ID, Version: o.Version, State: rhumb.OperationDone, Steps: o.Steps, At: wall})
			}
		}
	}
	plan := PlanBalance(0, wall, s, survey(), rhumb.LocalRegion)
	if o := record(); o.State != rhumb.OperationDone || total < 8 || o.Progress.Done != total || len(plan.Moves) > 0 || plan.Waits != "" {
		t.Errorf("it ended as %+v with plan %+v", o, plan)
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

// TestBalanceNamesWhatComesFirst names the operation for which balance waits by what that is about, which is not always a node.
func TestBalanceNamesWhatComesFirst(t *testing.T) {
	w := newMergeWorld(t)
	for _, test := range []struct {
		start catalog.StartOperation
		want  string
	}{
		{catalog.StartOperation{Kind: rhumb.OperationMerge, Range: w.ids[1]}, "operation op1 (merge of range " + w.ids[1].String() + ") comes first"},
		{catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 4}, "operation op1 (decommission of n4) comes first"},
		{catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2}, "operation op1 (remove-region of region aaa) comes first"},
	} {
		s := apply(t, w.s, catalog.AddRegion{Name: "other", Location: rhumb.Point{Lat: 1}})
		s = apply(t, s, test.start)
		if waits, _ := balanceWaits(w.now, s, w.surveys()); waits != test.want {
			t.Errorf("%q, want %q", waits, test.want)
		}
	}
}
