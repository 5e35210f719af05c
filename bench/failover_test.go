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
