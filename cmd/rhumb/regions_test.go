package main

import (
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// TestMovedAway: after a cancelled removal of a region the command says how many ranges have left it, and which command brings them back.
func TestMovedAway(t *testing.T) {
	nodes := []rhumb.Node{{ID: 3, Region: 1, State: rhumb.NodeLive}, {ID: 4, Region: 2, State: rhumb.NodeLive}}
	tables := []client.TableStatus{{Table: rhumb.Table{Class: 1}}, {Table: rhumb.Table{Class: 2}}}
	tables[1].Settings.Survival = rhumb.SurviveRegion
	rng := func(region rhumb.RegionID, slot rhumb.Slot, replicas ...rhumb.NodeID) *rhumb.Range {
		return &rhumb.Range{ID: rhumb.RangeID{Region: region, Slot: slot}, Class: 1, Replicas: replicas}
	}
	wide := rng(1, 3, 3, 4)
	wide.Class = 2
	for _, test := range []struct {
		ranges []*rhumb.Range
		want   string
	}{
		{[]*rhumb.Range{rng(1, 0, 3), rng(2, 0, 4), wide}, ""},
		{
			[]*rhumb.Range{rng(1, 0, 3), rng(1, 1, 4), rng(1, 2, 3, 4), rng(2, 0, 4)},
			"2 ranges of the region have copies in other regions, and these stay there; `rhumb rebalance fra` moves them back",
		},
	} {
		if got := movedAway(1, []rhumb.Region{{ID: 2, Name: "vir"}, {ID: 1, Name: "fra"}}, nodes, test.ranges, tables); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
	// The copy of the metadata that the client has may be older than the region.
	if got := movedAway(1, nil, nodes, []*rhumb.Range{rng(1, 1, 4)}, tables); got != "" {
		t.Errorf("without the region: %q", got)
	}
}
