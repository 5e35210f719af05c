package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestGapsOfRanges assigns the gaps of callers to ranges: each range has the longest gap of its callers, and counts by what the killed node
// was to it before.
func TestGapsOfRanges(t *testing.T) {
	at := func(slot rhumb.Slot) rhumb.RangeID { return rhumb.RangeID{Region: 1, Slot: slot} }
	before := []*rhumb.Range{
		{ID: at(0), Last: 9, Primary: 1, InSync: []rhumb.NodeID{1, 2}},
		{ID: at(10), Last: 19, Primary: 2, InSync: []rhumb.NodeID{1, 2}},
		{ID: at(20), Primary: 2, InSync: []rhumb.NodeID{2, 3}, Replicas: []rhumb.NodeID{1, 2, 3}}, // node 1 is not in sync
		{ID: at(30), Primary: 1, InSync: []rhumb.NodeID{1}},                                       // has no caller
		{ID: rhumb.RangeID{Region: 2, Slot: 0}, Last: 9, Primary: 1},                              // of another region
	}
	homes := []rhumb.RangeID{at(3), at(9), at(10), at(19), at(20)}
	gaps := []time.Duration{5, 7, 2, 1, 9}
	k := Kill{Node: 1}
	k.sortGaps(before, homes, gaps)
	if !slices.Equal(k.primary, []time.Duration{7}) || !slices.Equal(k.secondary, []time.Duration{2}) || k.Gap != 9 {
		t.Errorf("primary %v, secondary %v, longest %v", k.primary, k.secondary, k.Gap)
	}
	var many []time.Duration
	for i := range 200 {
		many = append(many, time.Duration(200-i))
	}
	if g := gapsOf(many); g != (Gaps{Ranges: 200, P50: 101, P99: 198, Max: 200}) {
		t.Errorf("%+v", g)
	}
	if g := gapsOf(nil); g != (Gaps{}) {
		t.Errorf("%+v", g)
	}
}

// TestMatchPlan compares a plan with what happened: another primary than planned, a range that waited too long, and one that nobody wrote to.
func TestMatchPlan(t *testing.T) {
	at := func(slot rhumb.Slot) rhumb.RangeID { return rhumb.RangeID{Region: 1, Slot: slot} }
	plan := rhumb.FailoverPlan{Ranges: []rhumb.RangeFailover{
		{Range: at(0), Fate: rhumb.FailoverTakesOver, From: 1, To: 2, Pause: 100},
		{Range: at(1), Fate: rhumb.FailoverTakesOver, From: 1, To: 3, Pause: 100},
		{Range: at(2), Fate: rhumb.FailoverStays, From: 2, To: 2, Pause: 50},
		{Range: at(3), Fate: rhumb.FailoverUnserved, From: 1, To: rhumb.NoNode},
	}}
	after := []*rhumb.Range{{ID: at(0), Primary: 2}, {ID: at(1), Primary: 2}, {ID: at(2), Primary: 2}, {ID: at(3), Primary: 1}}
	got := matchPlan(&plan, after, map[rhumb.RangeID]time.Duration{at(0): 80, at(2): 75, at(3): 1000})
	if want := (PlanMatch{Ranges: 4, Unlike: 1, Observed: 2, Late: 1, Share: 1.5}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestAddRuns counts two runs as one.
func TestAddRuns(t *testing.T) {
	run := func(gap time.Duration) *FailoverReport {
		r := &FailoverReport{Kills: []Kill{{Role: RolePrimary, Plan: PlanMatch{Ranges: 1}, primary: []time.Duration{gap}}}, Writes: 3, Errors: 1}
		r.summarise([]Role{RolePrimary})
		return r
	}
	r := run(2)
	r.Add(run(7), []Role{RolePrimary})
	if len(r.Roles) != 1 || r.Roles[0].Kills != 2 || r.Roles[0].Primary.Max != 7 || r.Roles[0].Plan.Ranges != 2 || r.Writes != 6 || r.Errors != 2 {
		t.Errorf("%+v", r)
	}
}
