package bench

import (
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestGrowthWindows follows a split that the watcher sees, and one that is over before it looks. Writes count in a split if they were under
// way meanwhile and their key is in either part.
func TestGrowthWindows(t *testing.T) {
	g := &growthRun{class: 7, known: map[rhumb.RangeID]bool{}}
	g.watching.Store(true)
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	ranged := func(first, last rhumb.Slot, birth rhumb.Epoch) *rhumb.Range {
		return &rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: first}, Last: last, Class: 7, Birth: birth}
	}
	// A range of another class lies between the others, and does not count.
	other := &rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: 50}, Class: 8}
	g.look([]*rhumb.Range{ranged(0, 99, 0), other}, at(0), at(0))
	g.look([]*rhumb.Range{ranged(0, 99, 0), other, ranged(60, 99, 4)}, at(10), at(12))
	g.note(10, at(5), at(9))   // before
	g.note(10, at(9), at(30))  // meanwhile, in the part that stays
	g.note(80, at(15), at(25)) // meanwhile, in the part that leaves
	g.look([]*rhumb.Range{ranged(0, 59, 0), other, ranged(60, 99, 0)}, at(20), at(22))
	g.note(80, at(21), at(40)) // began meanwhile
	g.note(80, at(23), at(40)) // after
	// Over at the first look.
	g.look([]*rhumb.Range{ranged(0, 59, 0), other, ranged(60, 79, 0), ranged(80, 99, 0)}, at(50), at(54))
	g.note(10, at(51), at(52)) // of the range that was not split
	g.note(70, at(51), at(52))
	out := &GrowthReport{}
	g.report(out)
	if len(out.Splits) != 2 || g.splits != 2 {
		t.Fatalf("%d splits: %+v", g.splits, out.Splits)
	}
	first, second := out.Splits[0], out.Splits[1]
	if first.Took != 12*time.Millisecond || first.Writes != 3 || first.Write.Max != 21_000 || first.Range.Slot != 0 || first.New.Slot != 60 {
		t.Errorf("the first split is %+v", first)
	}
	if second.Took != 4*time.Millisecond || second.Writes != 1 || second.Range.Slot != 60 || second.New.Slot != 80 {
		t.Errorf("the second split is %+v", second)
	}
	if out.Writes != 7 || out.InSplits != 4 {
		t.Errorf("%d writes, %d of them in splits", out.Writes, out.InSplits)
	}
	// Windows are closed for good once no write can be under way any more.
	g.look([]*rhumb.Range{ranged(0, 59, 0)}, at(100), at(54).Add(growthTimeout+time.Second))
	if len(g.windows) != 0 || len(g.past) != 2 {
		t.Errorf("%d windows are open and %d closed", len(g.windows), len(g.past))
	}
}
