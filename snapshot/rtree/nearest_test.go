package rtree

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestNearest guards that Nearest over a tree and a list beside it, as a reader combines base and delta, gives what
// sorting everything by distance gives.
func TestNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for _, n := range []int{0, 1, 5, 1000, 20_000} {
		var records, boxes []format.Box
		var refs []uint32
		for i := range n {
			b := randomBox(r)
			if i%3 > 0 {
				b = format.MakePoint(randomPoint(r))
			}
			if i%100 == 1 {
				b = records[r.IntN(len(records))] // equally near ones
			}
			records = append(records, b)
			if i%5 == 0 {
				continue // only in the list
			}
			parts, k := b.Split()
			for _, p := range parts[:k] {
				boxes, refs = append(boxes, p), append(refs, uint32(i))
			}
		}
		var s Sorter
		nodeBytes, refBytes := Size(len(boxes))
		nodes, refSection := make([]byte, nodeBytes), make([]byte, refBytes)
		Build(nodes, refSection, boxes, refs, s.Order(boxes))
		tree, err := Open(nodes, refSection)
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			k := 1 + r.IntN(40)
			if r.IntN(10) == 0 {
				k = n + 1
			}
			limit := geo.DistanceMax
			if r.IntN(3) == 0 {
				limit *= r.Float64() * r.Float64()
			}
			checkNearest(t, r, &tree, records, k, limit)
		}
	}
}

func checkNearest(t *testing.T, r *rand.Rand, tree *Tree, records []format.Box, k int, limit float64) {
	t.Helper()
	p := randomPoint(r)
	var want []Neighbour[uint32]
	for i, b := range records {
		if d := Distance(p, b); d <= limit {
			want = append(want, Neighbour[uint32]{uint32(i), d})
		}
	}
	slices.SortFunc(want, func(a, b Neighbour[uint32]) int {
		return cmp.Or(cmp.Compare(a.Metres, b.Metres), cmp.Compare(a.Item, b.Item))
	})
	want = want[:min(k, len(want))]
	start := tree.StartRadius(p, k)
	switch r.IntN(8) {
	case 0:
		start = 0
	case 1:
		start = math.NaN()
	}
	var c Cursor
	rounds := 0
	got := Nearest(p, k, limit, start, cmp.Compare[uint32], func(query []format.Box, visit func(uint32, format.Box)) {
		rounds++
		c.Start([]*Tree{tree}, query)
		for b, ok := c.Next(); ok; b, ok = c.Next() {
			for i, ref := range b.Refs {
				if hit, _ := tree.Leaf(b.Leaves[i]); FirstMatch(query, b.Part, records[ref], hit) {
					visit(ref, records[ref])
				}
			}
		}
		for i := 0; i < len(records); i += 5 {
			parts, n := records[i].Split()
			if slices.ContainsFunc(parts[:n], func(b format.Box) bool { return touchesAny(query, b) }) {
				visit(uint32(i), records[i])
			}
		}
	})
	if !slices.Equal(got, want) {
		t.Fatalf("%d nearest of %d to %v within %.0f m: %v, want %v", k, len(records), p, limit, got, want)
	}
	if rounds > 26 {
		t.Errorf("%d rounds", rounds)
	}
}

func TestNearestNothing(t *testing.T) {
	search := func([]format.Box, func(int, format.Box)) { t.Error("searched for nothing") }
	if got := Nearest(at(1, 2), 0, 10, 1, cmp.Compare[int], search); len(got) > 0 {
		t.Error(got)
	}
	if got := Nearest(at(1, 2), 3, -1, 1, cmp.Compare[int], search); len(got) > 0 {
		t.Error(got)
	}
	if d := new(Tree).StartRadius(at(1, 2), 3); d != geo.DistanceMax {
		t.Errorf("an empty tree begins with %v m", d)
	}
}

// TestStartRadius guards that the first circle is seldom far too wide: over points spread evenly it holds some ten times
// what is asked for.
func TestStartRadius(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	boxes := makeBoxes(r, 50_000, boxShapes[0].make)
	tree, _ := build(t, boxes)
	var c Cursor
	for _, k := range []int{1, 10, 100, 1000} {
		found := 0
		const turns = 50
		for range turns {
			p := at(r.Float64()*100-50, r.Float64()*300-150)
			circle, n := Circle(p, tree.StartRadius(p, k))
			for _, q := range circle[:n] {
				found += len(tree.Search(&c, q, nil))
			}
		}
		t.Logf("k %d: %d leaves in the first boxes on average", k, found/turns)
		if found < k*turns/2 || found > 200*(k+10)*turns {
			t.Errorf("k %d: %d leaves in the first boxes of %d turns", k, found, turns)
		}
	}
}
