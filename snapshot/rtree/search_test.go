package rtree

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// eachKernel runs a test with every kernel that this processor can run.
func eachKernel(t *testing.T, f func(t *testing.T)) {
	best := kernel
	defer func() { kernel = best }()
	for _, k := range availableKernels() {
		kernel = k
		t.Run(k.name, f)
	}
}

// shapes of random boxes, each with what it is to find.
var boxShapes = []struct {
	name string
	make func(r *rand.Rand) format.Box
}{
	{"points", func(r *rand.Rand) format.Box { return around(anywhere(r), 0, 0) }},
	{"segments", func(r *rand.Rand) format.Box {
		c := anywhere(r)
		if r.IntN(2) == 0 {
			return around(c, r.Int32N(100_000), 0)
		}
		return around(c, 0, r.Int32N(100_000))
	}},
	{"one city", func(r *rand.Rand) format.Box {
		c := corner{int64(85_000_000 + r.NormFloat64()*1_000_000), int64(474_000_000 + r.NormFloat64()*1_000_000)}
		return around(c, r.Int32N(20_000), r.Int32N(20_000))
	}},
	{"large", func(r *rand.Rand) format.Box {
		return around(anywhere(r), r.Int32N(900_000_000), r.Int32N(400_000_000))
	}},
	{"world-wide and tiny", func(r *rand.Rand) format.Box {
		if r.IntN(4) == 0 {
			return world
		}
		return around(anywhere(r), 1, 1)
	}},
	{"one place", func(*rand.Rand) format.Box { return format.Box{MinX: 7, MinY: 7, MaxX: 8, MaxY: 9} }},
	{"edges of the world", func(r *rand.Rand) format.Box {
		b := around(anywhere(r), 1000, 1000)
		switch r.IntN(4) {
		case 0:
			b.MaxX = format.LonUnitsMax
		case 1:
			b.MinX = -format.LonUnitsMax
		case 2:
			b.MaxY = format.LatUnitsMax
		default:
			b.MinY = -format.LatUnitsMax
		}
		return b
	}},
}

func anywhere(r *rand.Rand) corner {
	return corner{r.Int64N(2*format.LonUnitsMax+1) - format.LonUnitsMax, r.Int64N(2*format.LatUnitsMax+1) - format.LatUnitsMax}
}

// around makes a plain box about a centre, cut off at the edges of the world.
func around(c corner, halfX, halfY int32) format.Box {
	x, y := int64(halfX), int64(halfY)
	return format.Box{
		MinX: int32(max(c.x-x, -format.LonUnitsMax)), MinY: int32(max(c.y-y, -format.LatUnitsMax)),
		MaxX: int32(min(c.x+x, format.LonUnitsMax)), MaxY: int32(min(c.y+y, format.LatUnitsMax)),
	}
}

func makeBoxes(r *rand.Rand, n int, f func(*rand.Rand) format.Box) []format.Box {
	boxes := make([]format.Box, n)
	for i := range boxes {
		boxes[i] = f(r)
	}
	return boxes
}

// refOf is the reference of a box in tests: not its position, so that a mix-up shows.
func refOf(i uint32) uint32 { return i*3 + 1 }

// build makes a tree over boxes in Hilbert order, in sections full of ones, and returns the order too.
func build(t testing.TB, boxes []format.Box) (Tree, []uint32) {
	var s Sorter
	order := s.Order(boxes)
	nodes, refs := buildSections(boxes, order)
	tree, err := Open(nodes, refs)
	if err != nil {
		t.Fatal(err)
	}
	return tree, order
}

func buildSections(boxes []format.Box, order []uint32) (nodes, refs []byte) {
	itemRefs := make([]uint32, len(boxes))
	for i := range itemRefs {
		itemRefs[i] = refOf(uint32(i))
	}
	n, m := Size(len(boxes))
	nodes, refs = slices.Repeat([]byte{0xFF}, n), slices.Repeat([]byte{0xFF}, m)
	Build(nodes, refs, boxes, itemRefs, order)
	return nodes, refs
}

// queries are boxes about random boxes of the set, boxes anywhere, and the extremes.
func queries(r *rand.Rand, boxes []format.Box) []format.Box {
	qs := []format.Box{
		world,
		{},
		{MinX: math.MinInt32, MinY: math.MinInt32, MaxX: math.MaxInt32, MaxY: math.MaxInt32},
		{MinX: format.LonUnitsMax, MinY: -format.LatUnitsMax, MaxX: format.LonUnitsMax, MaxY: format.LatUnitsMax},
		{MinX: -format.LonUnitsMax, MinY: format.LatUnitsMax, MaxX: format.LonUnitsMax, MaxY: format.LatUnitsMax},
	}
	for range 6 {
		half := int32(1) << r.IntN(31)
		qs = append(qs, around(anywhere(r), half, half/2))
		if len(boxes) > 0 {
			b := boxes[r.IntN(len(boxes))]
			qs = append(qs, b, around(corner{int64(b.MinX), int64(b.MinY)}, half/4, half/8))
		}
	}
	return qs
}

// sizes are numbers of boxes around those at which a level begins.
var sizes = []int{0, 1, 2, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 65535, 65536, 65537, 100_000}

// TestSearch guards that a search finds exactly the boxes that touch the query, each once.
func TestSearch(t *testing.T) {
	for _, shape := range boxShapes {
		t.Run(shape.name, func(t *testing.T) {
			for _, n := range sizes {
				if testing.Short() && n > 5000 {
					continue
				}
				r := rand.New(rand.NewPCG(uint64(n), 1))
				boxes := makeBoxes(r, n, shape.make)
				tree, order := build(t, boxes)
				for _, q := range queries(r, boxes) {
					checkSearch(t, fmt.Sprintf("%d boxes, which is the seed, query %v", n, q), &tree, q, boxes, order)
				}
			}
		})
	}
}

// checkSearch compares what each kernel finds with what the definition says.
func checkSearch(t *testing.T, name string, tree *Tree, q format.Box, boxes []format.Box, order []uint32) {
	t.Helper()
	want := []uint32{}
	for _, i := range order {
		if boxes[i].Intersects(q) {
			want = append(want, refOf(i))
		}
	}
	slices.Sort(want)
	best := kernel
	defer func() { kernel = best }()
	var c Cursor
	for _, kernel = range availableKernels() {
		if got := sorted(tree.Search(&c, q, nil)); !slices.Equal(got, want) {
			t.Fatalf("%s: %s: %d hits, want %d", kernel.name, name, len(got), len(want))
		}
	}
}

func sorted(refs []uint32) []uint32 {
	slices.Sort(refs)
	return refs
}

// TestSearchMany guards that a search of many trees, of all sizes and in several boxes, gives each leaf that touches a box
// once for it, with the tree that it is of.
func TestSearchMany(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(11, 12))
		for _, count := range []int{1, 2, 16, rootsMax + 37} {
			var trees []*Tree
			var boxes [][]format.Box
			for i := range count {
				n := r.IntN(600)
				if i%8 == 5 {
					n = 0
				}
				set := makeBoxes(r, n, boxShapes[i%len(boxShapes)].make)
				tree, _ := build(t, set)
				trees, boxes = append(trees, &tree), append(boxes, set)
			}
			var c Cursor
			for range 20 {
				query := []format.Box{around(anywhere(r), r.Int32N(1<<r.IntN(31)+1), r.Int32N(1<<r.IntN(31)+1)), around(anywhere(r), 10_000_000, 10_000_000)}
				checkMany(t, &c, trees, boxes, query)
			}
		}
	})
}

// manyHit is a reference, and which tree and box of the query it was found for.
type manyHit struct {
	part, tree int
	ref        uint32
}

func checkMany(t *testing.T, c *Cursor, trees []*Tree, boxes [][]format.Box, query []format.Box) {
	t.Helper()
	want, got := map[manyHit]int{}, map[manyHit]int{}
	for part, q := range query {
		for tree, set := range boxes {
			for i, b := range set {
				if b.Intersects(q) {
					want[manyHit{part, tree, refOf(uint32(i))}]++
				}
			}
		}
	}
	next := map[[2]int]uint32{} // the leaves come in rising order, by part and tree
	c.Start(trees, query)
	for b, ok := c.Next(); ok; b, ok = c.Next() {
		if n := len(b.Refs); n == 0 || n != len(b.Leaves) || n != len(b.Trees) {
			t.Fatalf("%d references, %d leaves and %d trees of one batch", n, len(b.Leaves), len(b.Trees))
		}
		for i, leaf := range b.Leaves {
			tree := int(b.Trees[i])
			if _, ref := trees[tree].Leaf(leaf); ref != b.Refs[i] {
				t.Fatalf("leaf %d of tree %d with reference %d, want %d", leaf, tree, b.Refs[i], ref)
			}
			if at := [2]int{b.Part, tree}; leaf < next[at] {
				t.Fatalf("leaf %d of tree %d after leaf %d", leaf, tree, next[at]-1)
			} else {
				next[at] = leaf + 1
			}
			got[manyHit{b.Part, tree, b.Refs[i]}]++
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("%d trees, query %v: %d hits, want %d", len(trees), query, len(got), len(want))
	}
}

// TestSearchDeep guards that what waits for its test fits the cursor even when every node of many trees has to be tested:
// all boxes go round the world, and none lies in the query.
func TestSearchDeep(t *testing.T) {
	boxes := slices.Repeat([]format.Box{world}, 70_000)
	tree, _ := build(t, boxes)
	trees := slices.Repeat([]*Tree{&tree}, rootsMax)
	var c Cursor
	most := 0
	c.Start(trees, []format.Box{{MinX: -5, MinY: -5, MaxX: 5, MaxY: 5}})
	found := 0
	for b, ok := c.Next(); ok; b, ok = c.Next() {
		found += len(b.Refs)
		for _, s := range c.spans {
			most = max(most, int(s.end))
		}
	}
	if found != len(boxes)*len(trees) {
		t.Errorf("%d hits, want %d", found, len(boxes)*len(trees))
	}
	if most != listRoom {
		t.Errorf("at most %d nodes of a level waited: the test does not test the bound", most)
	}
}

// leafTree makes a tree that has leaf nodes only, which no tree that Build makes has, for tests of the kernels.
func leafTree(r *rand.Rand, nodes []node) *Tree {
	n := uint32(len(nodes))
	tree := &Tree{shape: shape{levels: 1, count: [levelsMax]uint32{n}}}
	for i := range nodes {
		tree.nodes = append(tree.nodes, nodes[i][:]...)
	}
	for range n * format.NodeLanes {
		tree.refs = le.AppendUint32(tree.refs, r.Uint32())
	}
	tree.indexLevels()
	return tree
}

// TestKernels guards that all kernels give the same hits, for leaf nodes of several trees with any boxes and with lanes that
// hold nothing, and for those that lie wholly in the query, and that they write nothing past what they are given.
func TestKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 500 {
		trees := make([]*Tree, 1+r.IntN(4))
		for i := range trees {
			nodes := make([]node, 1+r.IntN(2*batchNodes))
			for j := range nodes {
				var lanes [format.NodeLanes]format.Box
				copy(lanes[:], makeBoxes(r, format.NodeLanes, boxShapes[r.IntN(len(boxShapes))].make))
				putNode((*[format.NodeSize]byte)(&nodes[j]), &lanes, r.IntN(format.NodeLanes+1))
			}
			trees[i] = leafTree(r, nodes)
		}
		waiting := make([]waitingNode, 1+r.IntN(batchNodes))
		for i := range waiting {
			tree := r.IntN(len(trees))
			waiting[i] = waitingNode{uint32(tree), r.Uint32N(trees[tree].count[0])}
			if r.IntN(4) == 0 {
				waiting[i].node |= nodeWhole
			}
		}
		checkKernels(t, r, trees, waiting, clipToWorld(around(anywhere(r), 1<<r.IntN(31), 1<<r.IntN(30))))
	}
}

// TestKernelsPack guards that the kernels pack every set of lanes of a node, behind any number of others.
func TestKernelsPack(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	in, out := format.Box{MinX: 5, MinY: 5, MaxX: 5, MaxY: 5}, format.Box{MinX: 6, MinY: 5, MaxX: 6, MaxY: 5}
	nodes := make([]node, allLanes+1)
	waiting := make([]waitingNode, len(nodes))
	for set := range nodes {
		var lanes [format.NodeLanes]format.Box
		for j := range lanes {
			lanes[j] = out
			if set>>j&1 != 0 {
				lanes[j] = in
			}
		}
		putNode((*[format.NodeSize]byte)(&nodes[set]), &lanes, format.NodeLanes)
		waiting[set].node = uint32(set)
	}
	trees := []*Tree{leafTree(r, nodes)}
	r.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	for some := range slices.Chunk(waiting, batchNodes) {
		checkKernels(t, r, trees, some, in)
	}
}

// waitingNode is a node in a list of a cursor.
type waitingNode struct{ tree, node uint32 }

// unwritten stands in tests where nothing is to be written.
const unwritten = 0xDEADBEEF

func fill(words ...*[listRoom]uint32) {
	for _, w := range words {
		copy(w[:], slices.Repeat([]uint32{unwritten}, len(w)))
	}
}

// checkKernels compares all kernels with the definition, for leaf nodes that wait anywhere in the list.
func checkKernels(t *testing.T, r *rand.Rand, trees []*Tree, waiting []waitingNode, q format.Box) {
	t.Helper()
	var c Cursor
	c.trees, c.box = trees, q
	from := r.IntN(listRoom - len(waiting) + 1)
	var want [3][]uint32
	for i, w := range waiting {
		c.lists[0].nodes[from+i], c.lists[0].trees[from+i] = w.node, w.tree
		tree, first := trees[w.tree], w.node&^nodeWhole*format.NodeLanes
		for leaf := first; leaf < first+format.NodeLanes; leaf++ {
			if b, ref := tree.Leaf(leaf); w.node >= nodeWhole || b.Intersects(q) {
				want[0], want[1], want[2] = append(want[0], ref), append(want[1], leaf), append(want[2], w.tree)
			}
		}
	}
	for _, k := range availableKernels() {
		fill(&c.hitRefs, &c.hitLeaves, &c.hitTrees)
		c.open, c.spans[0] = 1, span{uint32(from), uint32(from + len(waiting))}
		n := k.walk(&c)
		if n != len(want[0]) || c.open != 0 {
			t.Fatalf("%s: %d nodes, query %v: %d hits, want %d; open: %b", k.name, len(waiting), q, n, len(want[0]), c.open)
		}
		for i, words := range []*[BatchMax]uint32{&c.hitRefs, &c.hitLeaves, &c.hitTrees} {
			if !slices.Equal(words[:n], want[i]) {
				t.Fatalf("%s: %d nodes, query %v: hits %x, want %x", k.name, len(waiting), q, words[:n], want[i])
			}
			checkUnwritten(t, k.name, words, len(waiting)*format.NodeLanes)
		}
	}
}

func checkUnwritten(t *testing.T, name string, words *[listRoom]uint32, from int) {
	t.Helper()
	for i, w := range words[from:] {
		if w != unwritten {
			t.Fatalf("%s: word %d was written, which is past the room of a batch of %d words", name, from+i, from)
		}
	}
}

// TestKernelsChildren guards that all kernels list the children of inner nodes alike, few and many of them, each with its tree
// and marked as it is to be, and that they write nothing past the room of a batch.
func TestKernelsChildren(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 20))
	few, whole := 0, 0
	for range 200 {
		trees := make([]*Tree, 1+r.IntN(batchNodes))
		for i := range trees {
			tree, _ := build(t, makeBoxes(r, 17+r.IntN(240), boxShapes[r.IntN(3)].make)) // of two levels
			trees[i] = &tree
		}
		q := around(anywhere(r), 1<<r.IntN(31), 1<<r.IntN(30))
		if r.IntN(4) == 0 {
			q = around(corner{85_000_000, 474_000_000}, 1<<(18+r.IntN(5)), 1<<(18+r.IntN(5)))
		}
		for _, k := range availableKernels() {
			var want nodeList
			n := 0
			for i, tree := range trees {
				children := rootChildren(tree, q)
				isFew := len(children) <= fewChildren
				for _, child := range children {
					if isFew {
						few++
						if strings.HasPrefix(k.name, "avx") {
							child &^= nodeWhole
						}
					}
					whole += int(child / nodeWhole)
					want.nodes[n], want.trees[n] = child, uint32(i)
					n++
				}
			}
			got := listed(k, trees, q)
			if !slices.Equal(got.nodes[:n], want.nodes[:n]) || !slices.Equal(got.trees[:n], want.trees[:n]) {
				t.Fatalf("%s: query %v: %x of %v, want %x of %v", k.name, q, got.nodes[:n], got.trees[:n], want.nodes[:n], want.trees[:n])
			}
			checkUnwritten(t, k.name, &got.nodes, len(trees)*format.NodeLanes)
			checkUnwritten(t, k.name, &got.trees, len(trees)*format.NodeLanes)
		}
	}
	if few == 0 || whole == 0 {
		t.Errorf("%d of few, %d whole: not all was tested", few, whole)
	}
}

// rootChildren returns the children of the root of a tree of two levels that touch the query, marked if they are wholly in it.
func rootChildren(tree *Tree, q format.Box) (children []uint32) {
	for child := range tree.count[0] {
		b := tree.boxAt(1, 0, child)
		if !b.Intersects(q) {
			continue
		}
		if b.MinX >= q.MinX && b.MinY >= q.MinY && b.MaxX <= q.MaxX && b.MaxY <= q.MaxY && child != tree.last[0] {
			child |= nodeWhole
		}
		children = append(children, child)
	}
	return children
}

// listed returns what a search of trees of two levels, at most as many as a batch has nodes, left in the list of leaf nodes.
func listed(k kernels, trees []*Tree, q format.Box) *nodeList {
	best := kernel
	defer func() { kernel = best }()
	kernel = k
	var c Cursor
	list := &c.lists[0]
	fill(&list.nodes, &list.trees)
	c.Start(trees, []format.Box{q})
	for ok := true; ok; {
		_, ok = c.Next()
	}
	return list
}

// TestSearchWhole guards that leaves below nodes that lie wholly in the query are given without a test of their boxes, but
// for the last node of a tree, which may have lanes that hold nothing; that one call gives those of many nodes; and that they
// come in rising order.
func TestSearchWhole(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(17, 18))
		for _, n := range []int{257, 272, 4096, 4097, 70_001} {
			tree, _ := build(t, makeBoxes(r, n, boxShapes[0].make))
			for leaf := range tree.count[0] - 1 { // a test of them would find nothing
				putNode((*[format.NodeSize]byte)(tree.nodeAt(0, leaf)), new([format.NodeLanes]format.Box), 0)
			}
			var c Cursor
			c.Start([]*Tree{&tree}, []format.Box{world})
			next := uint32(0)
			for b, ok := c.Next(); ok; b, ok = c.Next() {
				if want := min(BatchMax, n-int(next)); n <= 4096 && len(b.Refs) != want {
					t.Fatalf("%d leaves: %d at once, want %d", n, len(b.Refs), want)
				}
				for i, leaf := range b.Leaves {
					if _, ref := tree.Leaf(next); leaf != next || b.Refs[i] != ref {
						t.Fatalf("%d leaves: leaf %d, want %d", n, leaf, next)
					}
					next++
				}
			}
			if int(next) != n {
				t.Errorf("%d leaves: %d hits", n, next)
			}
		}
	})
}

// TestSearchDamaged guards that inner lanes that hold nothing lead nowhere, though they were damaged after the tree was opened:
// no query leaves the sections, nor finds anything else.
func TestSearchDamaged(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	for _, n := range sizes {
		boxes := makeBoxes(r, n, boxShapes[0].make)
		tree, order := build(t, boxes)
		query := queries(r, boxes)
		p := query[0].Degrees().Min
		start := tree.StartRadius(p, 5)
		for level := 1; level < tree.levels; level++ {
			last := tree.count[level] - 1
			for lane := tree.count[level-1] - last*format.NodeLanes; lane < format.NodeLanes; lane++ {
				putLane(tree.nodeAt(level, last), lane, world)
			}
		}
		for _, q := range query {
			checkSearch(t, "damaged", &tree, q, boxes, order)
		}
		if again := tree.StartRadius(p, 5); again != start {
			t.Errorf("%d boxes: the search for the nearest begins with %v metres, and with %v before the damage", n, again, start)
		}
	}
}

// putLane overwrites a lane of a node.
func putLane(p *node, lane uint32, b format.Box) {
	for side, v := range [4]int32{b.MinX, b.MinY, b.MaxX, b.MaxY} {
		le.PutUint32(p[64*side+4*int(lane):], uint32(v))
	}
}

// TestSearchParts guards that records whose boxes cross the antimeridian, found by queries of several boxes, are given
// once each by FirstMatch.
func TestSearchParts(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		records := makeBoxes(r, 3000, func(r *rand.Rand) format.Box {
			b := around(anywhere(r), r.Int32N(200_000_000), r.Int32N(100_000_000))
			if r.IntN(2) == 0 {
				b.MinX, b.MaxX = b.MaxX, b.MinX
			}
			return b
		})
		var boxes []format.Box
		var owner []uint32
		for i, b := range records {
			parts, n := b.Split()
			boxes = append(boxes, parts[:n]...)
			owner = append(owner, slices.Repeat([]uint32{uint32(i)}, n)...)
		}
		var s Sorter
		n, m := Size(len(boxes))
		nodes, refs := make([]byte, n), make([]byte, m)
		Build(nodes, refs, boxes, owner, s.Order(boxes))
		tree, err := Open(nodes, refs)
		if err != nil {
			t.Fatal(err)
		}
		var c Cursor
		for range 200 {
			var query []format.Box
			for range 1 + r.IntN(3) {
				query = append(query, around(anywhere(r), r.Int32N(1_800_000_000), r.Int32N(900_000_000)))
			}
			checkParts(t, &tree, &c, query, records)
		}
	})
}

func checkParts(t *testing.T, tree *Tree, c *Cursor, query, records []format.Box) {
	t.Helper()
	var want, got []uint32
	for i, b := range records {
		parts, n := b.Split()
		if slices.ContainsFunc(query, func(q format.Box) bool { return slices.ContainsFunc(parts[:n], q.Intersects) }) {
			want = append(want, uint32(i))
		}
	}
	c.Start([]*Tree{tree}, query)
	for b, ok := c.Next(); ok; b, ok = c.Next() {
		for i, ref := range b.Refs {
			if hit, _ := tree.Leaf(b.Leaves[i]); FirstMatch(query, b.Part, records[ref], hit) {
				got = append(got, ref)
			}
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("query %v: %d records, want %d", query, len(got), len(want))
	}
}

// TestCursorAgain guards that a search may be left off and the cursor used for another tree.
func TestCursorAgain(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var c Cursor
	if _, ok := c.Next(); ok {
		t.Error("a cursor that was never started has hits")
	}
	for _, n := range []int{70_000, 0, 3, 5000} {
		boxes := makeBoxes(r, n, boxShapes[0].make)
		tree, order := build(t, boxes)
		c.Start([]*Tree{&tree}, []format.Box{world, world})
		c.Next()
		q := boxShapes[3].make(r)
		var want []uint32
		for _, i := range order {
			if boxes[i].Intersects(q) {
				want = append(want, refOf(i))
			}
		}
		if got := sorted(tree.Search(&c, q, nil)); !slices.Equal(got, sorted(want)) {
			t.Errorf("after a search was left off: %d hits, want %d", len(got), len(want))
		}
	}
}

// TestSearchAllocates guards that a search takes no memory.
func TestSearchAllocates(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		tree, _ := build(t, makeBoxes(r, 5000, boxShapes[0].make))
		var c Cursor
		dst := make([]uint32, 0, 5000)
		if n := testing.AllocsPerRun(10, func() { dst = tree.Search(&c, world, dst[:0]) }); n != 0 || len(dst) != 5000 {
			t.Errorf("%v allocations for %d hits", n, len(dst))
		}
	})
}
