package rtree

import (
	"math/bits"
	"slices"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

const (
	// batchNodes is how many nodes a kernel tests in one call: enough to have as many lines on their way as a processor can,
	// few enough for what a search keeps to stay in the nearest caches.
	batchNodes = 32
	// stackRoom is how many nodes can wait for their test, rootsMax how many of them may be roots. Within the last
	// stackReserve they are tested one at a time, which needs no more than that.
	stackRoom    = 1024
	rootsMax     = 256
	stackReserve = levelsMax * (format.NodeLanes - 1)
	// runsRoom is how many runs a batch can give: one for a node, two for the last of a tree.
	runsRoom = 2 * batchNodes
)

// Cursor walks the leaves of one or more trees that a query touches. It holds all the memory of a search, about 10 KiB, and
// is meant to be kept and started again; the zero value has nothing to walk.
//
// The trees are walked together: a batch tests nodes of as many of them as wait, so that the memory accesses of one tree do
// not wait for those of another. An image has a tree for each of its shards, and a small query takes few nodes of each.
type Cursor struct {
	trees []*Tree
	query []format.Box
	part  int
	next  int        // the first of the trees whose root was not yet taken for this part
	box   format.Box // query[part], cut off at the edges of the world

	waiting, found int
	stack          [stackRoom]place // the first waiting of them; lower levels lie on top
	runs           [runsRoom]run    // the first found of them, to be given from the last on

	// The batch.
	places [batchNodes]place
	nodes  [batchNodes]*node
	ahead  [batchNodes]*byte // the references of leaf nodes
	sets   [batchNodes]uint32

	single [1]format.Box
	alone  [1]*Tree
}

// place is where a node stands: from the highest bits on its tree, its level, whether it lies wholly in the query, and its
// number. It is one word, so that it is copied as it was written: processors stall where a load joins several stores.
type place uint64

const (
	placeTree  = 48
	placeLevel = 40
	placeWhole = place(1) << 39
)

func placeOf(tree, level int, node uint32) place {
	return place(tree)<<placeTree | place(level)<<placeLevel | place(node)
}

func (p place) tree() int    { return int(p >> placeTree) }
func (p place) level() int   { return int(p >> placeLevel & (levelsMax - 1)) }
func (p place) node() uint32 { return uint32(p) }
func (p place) whole() bool  { return p&placeWhole != 0 }

// run is leaf nodes in a row, of which the same lanes are hits.
type run struct{ from, to, tree, lanes uint32 }

// TreesMax is the greatest number of trees of a search.
const TreesMax = 1 << 16

// Leaves is a leaf node with hits.
type Leaves struct {
	// Part is the position in the query of the box that these leaves touch, Tree that of the tree in what Start was given.
	Part, Tree int
	// Node is the number of the node, whose first leaf is Node*format.NodeLanes; see Tree.Leaf.
	Node uint32
	// Lanes are the lanes that are hits, a bit each, at least one.
	Lanes uint32
}

// Start begins a search for the leaves of all trees that touch boxes of the query: all of the first box, then all of the
// second and so on. There are at most TreesMax trees. The boxes are plain, as Box.Split and Circle give them. Neither may
// change while the search goes on. A leaf that touches several boxes is given for each; see FirstMatch.
func (c *Cursor) Start(trees []*Tree, query []format.Box) {
	c.trees, c.query, c.part, c.next = trees, query, -1, len(trees)
	c.waiting, c.found = 0, 0
}

// Next gives the next hits; ok is false at the end. Within a tree and a part they come roughly in rising order.
func (c *Cursor) Next() (l Leaves, ok bool) {
	for c.found == 0 {
		if c.waiting == 0 && !c.plant() {
			return Leaves{}, false
		}
		c.batch()
	}
	r := &c.runs[c.found-1]
	l = Leaves{Part: c.part, Tree: int(r.tree), Node: r.from, Lanes: r.lanes}
	if r.from++; r.from == r.to {
		c.found--
	}
	return l, true
}

// plant takes the roots of more trees, or of the first again for the next box of the query.
func (c *Cursor) plant() bool {
	for c.waiting == 0 {
		if c.next == len(c.trees) {
			if c.part+1 >= len(c.query) || len(c.trees) == 0 {
				return false
			}
			c.part++
			c.box = clip(c.query[c.part])
			c.next = 0
		}
		for ; c.next < len(c.trees) && c.waiting < rootsMax; c.next++ {
			if levels := c.trees[c.next].levels; levels > 0 {
				c.stack[c.waiting] = placeOf(c.next, levels-1, 0)
				c.waiting++
			}
		}
	}
	return true
}

// batch takes nodes of one level from the top of the stack. The children that the query touches come in their place; leaf
// nodes, and all below a node that lies wholly in the query, become runs. It begins with the lowest, so that what is on top
// stays on top: that keeps the stack small, and the hits of a tree in rising order.
func (c *Cursor) batch() {
	most := min(c.waiting, batchNodes, max(1, (stackRoom-stackReserve-c.waiting)/(format.NodeLanes-1)))
	level := c.stack[c.waiting-1].level()
	n := 0
	for ; n < most; n++ {
		p := c.stack[c.waiting-1-n]
		if p.level() != level {
			break
		}
		c.places[n] = p
		t := c.trees[p.tree()]
		c.nodes[n] = &untested
		if !p.whole() {
			c.nodes[n] = t.node(level, p.node())
		}
		c.ahead[n] = &c.nodes[n][0]
		if p.whole() || level == 0 {
			c.ahead[n] = &t.nodeRefs(p.node() << (level * nodeBits))[0]
		}
	}
	c.waiting -= n
	kernel.scan(c.nodes[:n], c.ahead[:n], &c.box, c.sets[:n])
	for i := n - 1; i >= 0; i-- {
		p, set := c.places[i], c.sets[i]
		switch {
		case p.whole():
			c.take(p)
		case level > 0:
			c.descend(p, set)
		case set != 0:
			c.runs[c.found] = run{p.node(), p.node() + 1, uint32(p.tree()), set & allLanes}
			c.found++
		}
	}
}

// untested stands in a batch for nodes that need no test.
var untested node

// descend puts the children of a node on the stack that the query touches, the first on top.
func (c *Cursor) descend(p place, set uint32) {
	first := placeOf(p.tree(), p.level()-1, p.node()*format.NodeLanes)
	for touch := set & allLanes; touch != 0; {
		lane := uint32(bits.Len32(touch)) - 1
		touch &^= 1 << lane
		child := first + place(lane)
		if set>>(format.NodeLanes+lane)&1 != 0 {
			child |= placeWhole
		}
		c.stack[c.waiting] = child
		c.waiting++
	}
}

// take makes all leaves below a node hits.
func (c *Cursor) take(p place) {
	t := c.trees[p.tree()]
	shift := p.level() * nodeBits
	from, to := p.node()<<shift, uint32(min(uint64(p.node()+1)<<shift, uint64(t.count[0])))
	if rest := t.items % format.NodeLanes; to == t.count[0] && rest != 0 {
		to--
		c.runs[c.found] = run{to, to + 1, uint32(p.tree()), 1<<rest - 1}
		c.found++
	}
	if from < to {
		c.runs[c.found] = run{from, to, uint32(p.tree()), allLanes}
		c.found++
	}
}

// nodeBits is log2 of format.NodeLanes.
const nodeBits = 4

const _ = uint(1<<nodeBits-format.NodeLanes) + uint(format.NodeLanes-1<<nodeBits)

// clip cuts a box off at the edges of the world, so that it cannot touch lanes that hold nothing.
func clip(b format.Box) format.Box {
	return format.Box{
		MinX: max(b.MinX, -format.LonUnitsMax), MinY: max(b.MinY, -format.LatUnitsMax),
		MaxX: min(b.MaxX, format.LonUnitsMax), MaxY: min(b.MaxY, format.LatUnitsMax),
	}
}

// AddMeridian adds to the plain boxes of a query, which Box.Split gave, the edge of the world opposite to the one that they
// reach: longitudes 180 and -180 are one meridian, so that a box that ends on it touches what begins there.
func AddMeridian(boxes [2]format.Box, n int) (all [4]format.Box, count int) {
	count = copy(all[:], boxes[:n])
	for _, b := range boxes[:n] {
		if b.MaxX == format.LonUnitsMax {
			all[count] = format.Box{MinX: -format.LonUnitsMax, MinY: b.MinY, MaxX: -format.LonUnitsMax, MaxY: b.MaxY}
			count++
		}
		if b.MinX == -format.LonUnitsMax {
			all[count] = format.Box{MinX: format.LonUnitsMax, MinY: b.MinY, MaxX: format.LonUnitsMax, MaxY: b.MaxY}
			count++
		}
	}
	return all, count
}

// Search appends the references of all leaves that touch a plain box. It starts c anew.
func (t *Tree) Search(c *Cursor, q format.Box, dst []uint32) []uint32 {
	c.single[0], c.alone[0] = q, t
	c.Start(c.alone[:], c.single[:])
	for l, ok := c.Next(); ok; l, ok = c.Next() {
		refs := t.nodeRefs(l.Node)
		if l.Lanes == allLanes {
			n := len(dst)
			dst = slices.Grow(dst, format.NodeLanes)[:n+format.NodeLanes]
			all := (*[format.NodeLanes]uint32)(dst[n:])
			for i := range all {
				all[i] = le.Uint32(refs[4*i:])
			}
			continue
		}
		for m := l.Lanes; m != 0; m &= m - 1 {
			dst = append(dst, le.Uint32(refs[4*bits.TrailingZeros32(m):]))
		}
	}
	return dst
}

// FirstMatch reports whether a hit is the first of its record in the order of a search, so that records that touch several
// boxes of a query, or whose box crosses the antimeridian and so is found by either part, are given once. The hit is the
// plain box hit (of a leaf or of an entry of the spatial delta), found for query[part]; record is the box of the record as
// it is stored. The order is: by box of the query, then by part of the record's box. It needs no memory of earlier hits.
func FirstMatch(query []format.Box, part int, record, hit format.Box) bool {
	parts, n := record.Split()
	for _, q := range query[:part] {
		for _, p := range parts[:n] {
			if p.Intersects(q) {
				return false
			}
		}
	}
	// The part west of the antimeridian begins at it, which the part east of it cannot do: MinX is greater than MaxX.
	second := n == 2 && hit.MinX == -format.LonUnitsMax
	return !second || !parts[0].Intersects(query[part])
}
