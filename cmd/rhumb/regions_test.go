package main

import (
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestMovedAway: after a cancelled removal of a region the command says which ranges have left it, and how one of them returns.
func TestMovedAway(t *testing.T) {
	nodes := []rhumb.Node{
		{ID: 1, Region: 1, State: rhumb.NodeFenced},
		{ID: 2, Region: 1, State: rhumb.NodeLive, Witness: true},
		{ID: 3, Region: 1, State: rhumb.NodeLive},
		{ID: 4, Region: 2, State: rhumb.NodeLive},
	}
	rng := func(region rhumb.RegionID, slot rhumb.Slot, replicas ...rhumb.NodeID) *rhumb.Range {
		return &rhumb.Range{ID: rhumb.RangeID{Region: region, Slot: slot}, Replicas: replicas}
	}
	for _, test := range []struct {
		ranges []*rhumb.Range
		want   string
	}{
		{[]*rhumb.Range{rng(1, 0, 3), rng(2, 0, 4)}, ""},
		{
			[]*rhumb.Range{rng(1, 0, 3), rng(1, 1, 4), rng(1, 2, 3, 4), rng(2, 0, 4)},
			"2 ranges of the region have copies in other regions, and these stay there; `rhumb range move 1/1 n4 n3` moves a copy back, and so on for each copy",
		},
		{[]*rhumb.Range{rng(1, 2, 3, 4)}, "1 ranges of the region have copies in other regions, and these stay there"},
	} {
		if got := movedAway(1, nodes, test.ranges); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
