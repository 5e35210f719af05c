package place

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// testTimings are round numbers, so that sums can be read.
var testTimings = FailoverTimings{
	Near: PairTimings{100 * time.Millisecond, 600 * time.Millisecond, 900 * time.Millisecond},
	Far:  PairTimings{200 * time.Millisecond, time.Second, 1500 * time.Millisecond}, Report: 100 * time.Millisecond, Evaluate: 50 * time.Millisecond,
	Contact: time.Second, ElectNear: 1300 * time.Millisecond, ElectFar: 2200 * time.Millisecond, Prepare: 300 * time.Millisecond, Machine: 500 * time.Millisecond,
}

// randomCluster returns a state with a history: classes with different goals, members that have left in-sync sets,
// primaries that are not the preferred ones, damaged copies and nodes that are down.
func randomCluster(t *testing.T, random *rand.Rand) *catalog.State {
	var specs []spec
	for region := range 1 + random.IntN(4) {
		for node := range 3 + random.IntN(3) {
			specs = append(specs, spec{fmt.Sprintf("r%d", region), string(rune('a' + node%3)), float64(10*region) + float64(random.IntN(2))})
		}
	}
	s := build(t, specs...)
	// Voters are drawn too: some failures take the majority of the metadata with them.
	voters := []rhumb.NodeID{}
	for len(voters) < min(5, len(specs)) {
		if id := rhumb.NodeID(1 + random.IntN(len(specs))); !slices.Contains(voters, id) {
			voters = append(voters, id)
		}
	}
	s = apply(t, s, catalog.SetVoters{Voters: voters})
	s = apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 16)}))
	// Two regions with two copies each: the loss of one leaves the set in the other (catalog.State.CanShrink).
	if specs[len(specs)-1].region >= "r1" {
		s = apply(t, s, Complete(s, catalog.CreateClass{Settings: surviving(4, 2)}))
	}
	if specs[len(specs)-1].region >= "r2" { // three regions
		s = apply(t, s, Complete(s, catalog.CreateClass{Settings: surviving(5, 3)}))
		s = apply(t, s, Complete(s, catalog.CreateClass{Settings: surviving(3, 2)}))
	}
	// What is refused here changes nothing, so any command may be tried.
	for range 60 {
		var ids []*rhumb.Range
		for r := range s.Ranges() {
			ids = append(ids, r)
		}
		r := ids[random.IntN(len(ids))]
		member := r.InSync[random.IntN(len(r.InSync))]
		var cmd catalog.Command
		switch random.IntN(8) {
		// A few nodes have failed before. Each of them makes the sets of its ranges smaller.
		case 0:
			cmd = catalog.FenceNode{Node: member, Boot: 1}
			if random.IntN(4) > 0 {
				continue
			}
		// A damaged copy stays in a set that is at its minimum, and cannot be elected.
		case 1:
			cmd = catalog.QuarantineReplica{Range: r.ID, Node: member}
		// Primaries that are not the preferred ones: the heir is nearest to the preferred one all the same.
		case 2, 3, 4:
			cmd = catalog.Elect{Range: r.ID, Version: r.Version, Node: member}
		// Members that have left, as slow or stopped ones do.
		default:
			c := catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version}
			for _, m := range r.InSync {
				if m != member || m == r.Primary {
					c.Members = append(c.Members, catalog.Member{Node: m, Boot: 1})
				}
			}
			cmd = c
		}
		s, _, _ = s.Apply(cmd)
	}
	return s
}

// isServed reports whether a range can commit: every member of its set answers. That is what the nodes need, and is
// written down here without the functions that the plan uses.
func isServed(s *catalog.State, r *rhumb.Range) bool {
	return !slices.ContainsFunc(r.InSync, func(id rhumb.NodeID) bool {
		n, _ := s.Node(id)
		return n.State == rhumb.NodeFenced || r.IsQuarantined(id)
	})
}

// TestPlanIsWhatHappens plans fifty random failures of nodes, zones and regions, lets them happen in a random order, and
// compares: who is primary of each range, and which ranges cannot commit.
func TestPlanIsWhatHappens(t *testing.T) {
	// Counted, so that the test fails if the histories stop to meet one of the cases.
	fates := map[rhumb.FailoverFate]int{}
	kinds := map[string]int{}
	for seed := uint64(0); kinds["node"]+kinds["zone"]+kinds["region"] < 50; seed++ {
		random := rand.New(rand.NewPCG(seed, 1))
		s := randomCluster(t, random)
		n, _ := s.Node(rhumb.NodeID(1 + random.IntN(s.NodeCount())))
		region, _ := s.Region(n.Region)
		name := []string{n.ID.String(), region.Name + "/" + n.Zone, region.Name}[random.IntN(3)]
		kind, nodes, err := FailureDomain(s, name)
		if rhumb.KindOf(err) == rhumb.Conflict {
			continue // all of it is fenced in this history
		}
		if err != nil {
			t.Fatal(err)
		}
		plan := PlanFailover(s, nodes, 1, testTimings)
		kinds[kind]++
		after := s
		random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		// Without a majority nobody can fence: the nodes are dead, and the records stay as they are.
		if plan.HasMajority() {
			for _, id := range nodes {
				after = apply(t, after, catalog.FenceNode{Node: id, Boot: 1})
			}
		}
		seen := 0
		for _, f := range plan.Ranges {
			fates[f.Fate]++
			seen++
			r, _ := after.Range(f.Range)
			// The record of a range that nobody can take over names one of the dead nodes.
			if r.Primary != f.To && !(f.To == rhumb.NoNode && slices.Contains(nodes, r.Primary)) {
				t.Fatalf("seed %d, %s %s fails (%v): range %s has primary %s, and the plan said %s: %+v", seed, kind, name, nodes, r.ID, r.Primary, f.To, r)
			}
			served := isServed(after, r) && !slices.ContainsFunc(r.InSync, func(id rhumb.NodeID) bool { return slices.Contains(nodes, id) })
			if served != (f.Fate != rhumb.FailoverUnserved) {
				t.Fatalf("seed %d, %s %s fails (%v): served %v, and the plan said %s (%s): %+v", seed, kind, name, nodes, served, f.Fate, f.Reason, r)
			}
			if served != (f.Reason == "") || served != (f.Pause > 0) {
				t.Fatalf("seed %d: a fate without its reason or pause: %+v", seed, f)
			}
		}
		// The others keep their primaries and their sets.
		for r := range after.Ranges() {
			before, _ := s.Range(r.ID)
			if !slices.ContainsFunc(plan.Ranges, func(f rhumb.RangeFailover) bool { return f.Range == r.ID }) && (r.Version != before.Version || r.Primary != before.Primary) {
				t.Fatalf("seed %d, %s %s fails: range %s changed and is not in the plan", seed, kind, name, r.ID)
			}
		}
		if seen+plan.Untouched != s.RangeCount() {
			t.Fatalf("seed %d: %d ranges and %d untouched ones of %d", seed, seen, plan.Untouched, s.RangeCount())
		}
	}
	t.Logf("%v, %v", kinds, fates)
	// A test that met no such case proves nothing about it.
	for _, f := range []rhumb.FailoverFate{rhumb.FailoverTakesOver, rhumb.FailoverStays, rhumb.FailoverUnserved} {
		if fates[f] < 20 {
			t.Errorf("only %d ranges met the fate %s", fates[f], f)
		}
	}
}

// TestFailureDomain checks which nodes a name means.
func TestFailureDomain(t *testing.T) {
	s := build(t, three()...)
	for name, want := range map[string]string{"n2": "node [n2]", "fra": "region [n1 n2 n3]", "iad/b": "zone [n5]"} {
		kind, nodes, err := FailureDomain(s, name)
		if got := fmt.Sprint(kind, " ", nodes); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
	s = apply(t, s, catalog.FenceNode{Node: 5, Boot: 1})
	// A region without nodes is not an unknown one.
	s = apply(t, s, catalog.AddRegion{Name: "empty"})
	for name, want := range map[string]rhumb.Kind{"a": rhumb.InvalidArgument, "nowhere": rhumb.NotFound, "empty": rhumb.Conflict, "n5": rhumb.Conflict, "iad/b": rhumb.Conflict} {
		if _, _, err := FailureDomain(s, name); rhumb.KindOf(err) != want {
			t.Errorf("%s: %v, want kind %v", name, err, want)
		}
	}
	// The message of an ambiguous name lists what to write instead.
	_, _, err := FailureDomain(s, "a")
	if e := new(rhumb.Error); !errors.As(err, &e) || e.Msg != `several regions have a zone "a"; name one of fra/a, iad/a, sin/a` {
		t.Errorf("%v", err)
	}
}

// TestPauseBound adds the steps up by hand for three failures.
func TestPauseBound(t *testing.T) {
	s := build(t, three()[:3]...)
	s = apply(t, apply(t, s, catalog.SetVoters{Voters: []rhumb.NodeID{1, 2, 3}}), Complete(s, catalog.CreateClass{Settings: settings(3, 6)}))
	const ms = time.Millisecond
	for name, x := range map[string]struct {
		s               *catalog.State
		leader          rhumb.NodeID
		takeOver, stall time.Duration
	}{
		// 600 + 2 x 100 of silence, 150 to decide, no lease is left after that, 100 + 300 for the election, and 500.
		"a node": {s, 2, 1850 * ms, 1450 * ms},
		// The voters elect within 1300, which is 500 more than the silence.
		"the metadata leader": {s, 1, 2350 * ms, 1950 * ms},
		// Only one witness is left: it leads, and must have lost contact for 1000, 200 more than the silence.
		"one of two": {apply(t, s, catalog.FenceNode{Node: 3, Boot: 1}), 2, 0, 0},
	} {
		plan := PlanFailover(x.s, []rhumb.NodeID{1}, x.leader, testTimings)
		if plan.TakeOver.Most != x.takeOver || plan.Stall.Most != x.stall {
			t.Errorf("%s: %v and %v, want %v and %v: %+v", name, plan.TakeOver.Most, plan.Stall.Most, x.takeOver, x.stall, plan.TakeOver.Steps)
		}
		for _, p := range []rhumb.PausePlan{plan.TakeOver, plan.Stall} {
			sum := time.Duration(0)
			for _, step := range p.Steps {
				sum += step.Most
			}
			if sum != p.Most {
				t.Errorf("%s: the steps add up to %v and not to %v", name, sum, p.Most)
			}
		}
	}
}
