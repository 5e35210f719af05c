package place

import (
	"fmt"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// benchRanges is the number of ranges in the benchmarks of plans.
const benchRanges = 100_000

// largeState returns a state of one region with n nodes that have about benchRanges ranges of three copies, and surveys of all.
func largeState(b *testing.B, n int) (*catalog.State, *Surveys) {
	var nodes []spec
	for i := range n {
		nodes = append(nodes, spec{"fra", fmt.Sprint("z", i%3), 0})
	}
	s := build(b, nodes...)
	c := rhumb.DefaultClassSettings()
	c.HashSlots = rhumb.BlockSlots
	for s.RangeCount() < benchRanges {
		// Classes differ in a setting that does not matter here, or they would be one.
		c.ShardSize += 1 << 10
		s = apply(b, s, Complete(s, catalog.CreateClass{Settings: c}))
	}
	return s, surveysOf(s)
}

// surveysOf returns what the nodes would report about their ranges: sizes that differ.
func surveysOf(s *catalog.State) *Surveys {
	v := &Surveys{}
	for n := range s.Nodes() {
		x := Survey{From: n.ID}
		for r := range s.Ranges() {
			// The bound of the leader would leave out the rest.
			if r.Primary == n.ID && len(x.Ranges) < SurveyRangesMax {
				x.Ranges = append(x.Ranges, RangeSize{Range: r.ID, Bytes: int64(r.ID.Slot%512) << 20})
			}
		}
		v.Add(0, x)
	}
	return v
}

// BenchmarkPlan100k measures each part of a pass of the controller, which the metadata leader makes every PlanEvery, and the search for
// ranges to split, which each node makes. Nothing is to be done: that is what nearly all passes find.
func BenchmarkPlan100k(b *testing.B) {
	s, v := largeState(b, 6)
	now := time.Hour
	p := NewPlanner(DefaultConfig())
	p.Observe(0, s)
	size := func(id rhumb.RangeID) int64 { return int64(id.Slot) }
	measures := Measures{Size: func(id rhumb.RangeID) (int64, bool) { return size(id), true }}
	for _, part := range []struct {
		name string
		do   func() int
	}{
		{"Observe", func() int { p.Observe(now, s); return 0 }},
		{"DeadRegions", func() int { return len(p.DeadRegions(now, s)) }},
		{"MissingBlocks", func() int { return len(MissingBlocks(s)) }},
		{"Handovers", func() int { return len(p.Handovers(now, s)) }},
		{"Operations", func() int { return len(p.Operations(now, time.Now(), s, measures)) }},
		{"RemoveClasses", func() int { return len(RemoveClasses(s)) }},
		{"Repair", func() int { return len(p.Repair(now, s)) }},
		{"Failback", func() int {
			return len(p.Failback(now, s, func(*rhumb.Range, rhumb.NodeID) bool { return true }))
		}},
		{"Balance", func() int { return len(p.BalancePrimaries(s)) }},
		{"Rebalance", func() int { return len(p.BalanceCopies(SurveyKeep/2, time.Now(), s, v)) }},
		{"Splits", func() int { return len(Splits(s, 1, 1<<40, size)) }},
	} {
		b.Run(part.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				part.do()
			}
		})
	}
}

// BenchmarkPlan100kAfterJoin measures plans with work to do: copies for an empty node, all of them for `rhumb rebalance --dry-run`, and new
// copies for those of a dead node, up to the bound of one pass.
func BenchmarkPlan100kAfterJoin(b *testing.B) {
	s, _ := largeState(b, 6)
	dead := apply(b, s, catalog.FenceNode{Node: 2, Boot: 1})
	s = apply(b, s, catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{99}, Boot: 1, Region: "fra", Zone: "z0"})
	v := surveysOf(s)
	now := SurveyKeep / 2
	b.Run("Rebalance", func(b *testing.B) {
		p := NewPlanner(DefaultConfig())
		for b.Loop() {
			p.BalanceCopies(now, time.Now(), s, v)
		}
	})
	b.Run("PlanBalance", func(b *testing.B) {
		for b.Loop() {
			if plan := PlanBalance(now, time.Now(), s, v, rhumb.LocalRegion); len(plan.Moves) == 0 {
				b.Fatal("nothing moves to an empty node")
			}
		}
	})
	b.Run("Repair", func(b *testing.B) {
		p := NewPlanner(DefaultConfig())
		p.Observe(0, dead)
		p.Observe(1, dead)
		for b.Loop() {
			if n := len(p.Repair(time.Hour, dead)); n != PlanMax {
				b.Fatalf("%d repairs are planned", n)
			}
		}
	})
}
