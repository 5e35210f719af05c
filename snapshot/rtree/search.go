package rtree

import (
	"math/bits"
	"slices"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

const (
	// BatchMax is the greatest number of hits that Next gives at once.
	BatchMax = batchNodes * format.NodeLanes

	// batchNodes is how many nodes a kernel tests in one call: enough to have as many lines on their way as a processor can,
	// few enough for what a search keeps to stay in the nearest caches.
	batchNodes = 32
	// stackRoom is how many inner nodes can wait for their test, rootsMax how many nodes may be roots. Within the last
	// stackReserve they are tested one at a time, which needs no more than that.
	stackRoom    = 1024
	rootsMax     = 256
	stackReserve = levelsMax * (format.NodeLanes - 1)
	// listRoom is how many places can wait for their leaves to be given: the children of a batch, or roots.
	listRoom = max(batchNodes*format.NodeLanes, rootsMax)
)

// Cursor walks the leaves of one or more trees that a query touches. It holds all the memory of a search, about 20 KiB, and
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

	waiting int
	stack   [stackRoom]place // inner nodes to be tested, the first waiting of them; lower levels lie on top
	listed  int
	list    [listRoom]place // leaf nodes, and nodes that lie wholly in the query; the first listed of them, the next on top
	given   uint32          // leaf nodes of the last of list that were given, if it lies wholly in the query

	// The batch.
	places  [batchNodes]place
	nodes   [batchNodes]*node
	sets    [batchNodes]uint32
	refs    [batchNodes]*nodeRefs
	firsts  [batchNodes]Leaf
	hitRefs [BatchMax]uint32
	hits    [BatchMax]Leaf

	single [1]format.Box
	alone  [1]*Tree
}

// place is where a node stands: from the highest bits on its tree, its level, whether it lies wholly in the query, and its
// number, which is below 2^28. It is one word, so that it is copied as it was written: processors stall where a load joins
// several stores.
type place uint64

const (
	placeTree  = 48
	placeLevel = 32
	placeWhole = 1 << 31
)

func placeOf(tree, level int, node uint32) place {
	return place(tree)<<placeTree | place(level)<<placeLevel | place(node)
}

func (p place) tree() int    { return int(p >> placeTree) }
func (p place) level() int   { return int(p >> placeLevel & (levelsMax - 1)) }
func (p place) node() uint32 { return uint32(p) &^ placeWhole }
func (p place) whole() bool  { return p&placeWhole != 0 }

// leaf gives the first leaf of a leaf node.
func (p place) leaf() Leaf {
	return Leaf(p>>placeTree<<placeTree) | Leaf(uint32(p)<<nodeBits)
}

// Leaf is a leaf of one of the trees of a search.
type Leaf uint64

// Tree gives the position of the tree in what Start was given.
func (l Leaf) Tree() int { return int(l >> placeTree) }

// Number gives the number of the leaf in its tree; see Tree.Leaf.
func (l Leaf) Number() uint32 { return uint32(l) }

// TreesMax is the greatest number of trees of a search.
const TreesMax = 1 << 16

// Batch is some of the hits of a search, which may be of several trees. The slices are the cursor's and stand until its next
// call.
type Batch struct {
	// Part is the position in the query of the box that these leaves touch.
	Part int
	// Refs are the references of the hits, Leaves their leaves.
	Refs   []uint32
	Leaves []Leaf
}

// Start begins a search for the leaves of all trees that touch boxes of the query: all of the first box, then all of the
// second and so on. There are at most TreesMax trees. The boxes are plain, as Box.Split and Circle give them. Neither may
// change while the search goes on. A leaf that touches several boxes is given for each; see FirstMatch.
func (c *Cursor) Start(trees []*Tree, query []format.Box) {
	c.trees, c.query, c.part, c.next = trees, query, -1, len(trees)
	c.waiting, c.listed, c.given = 0, 0, 0
}

// Next gives the next hits, at least one; ok is false at the end. Within a tree and a part they come roughly in rising order.
func (c *Cursor) Next() (b Batch, ok bool) {
	for {
		for c.listed == 0 {
			if c.waiting > 0 {
				c.descend()
			} else if !c.plant() {
				return Batch{}, false
			}
		}
		n := c.gather()
		if hits := kernel.leaves(c.nodes[:n], c.refs[:n], c.firsts[:n], &c.box, &c.hitRefs, &c.hits); hits > 0 {
			return Batch{Part: c.part, Refs: c.hitRefs[:hits], Leaves: c.hits[:hits]}, true
		}
	}
}

// plant takes the roots of more trees, or of the first again for the next box of the query.
func (c *Cursor) plant() bool {
	for c.waiting+c.listed == 0 {
		if c.next == len(c.trees) {
			if c.part+1 >= len(c.query) || len(c.trees) == 0 {
				return false
			}
			c.part++
			c.box = clip(c.query[c.part])
			c.next = 0
		}
		for ; c.next < len(c.trees) && c.waiting+c.listed < rootsMax; c.next++ {
			if levels := c.trees[c.next].levels; levels > 0 {
				c.put(placeOf(c.next, levels-1, 0))
			}
		}
	}
	return true
}

// put lets a node wait for its test, or for its leaves to be given.
func (c *Cursor) put(p place) {
	if p.whole() || p.level() == 0 {
		c.list[c.listed] = p
		c.listed++
	} else {
		c.stack[c.waiting] = p
		c.waiting++
	}
}

// descend takes nodes of one level from the top of the stack and puts their children that the query touches. It begins with
// the lowest, so that what is on top stays on top: that keeps the stack small, and the hits of a tree in rising order.
func (c *Cursor) descend() {
	most := min(c.waiting, batchNodes, max(1, (stackRoom-stackReserve-c.waiting)/(format.NodeLanes-1)))
	level := c.stack[c.waiting-1].level()
	n := 0
	for ; n < most; n++ {
		p := c.stack[c.waiting-1-n]
		if p.level() != level {
			break
		}
		c.places[n] = p
		c.nodes[n] = c.trees[p.tree()].node(level, p.node())
	}
	c.waiting -= n
	kernel.scan(c.nodes[:n], &c.box, &c.sets)
	for i := n - 1; i >= 0; i-- {
		p, set := c.places[i], c.sets[i]
		first := placeOf(p.tree(), level-1, p.node()<<nodeBits)
		for touch := set & allLanes; touch != 0; {
			lane := uint32(bits.Len32(touch)) - 1
			touch &^= 1 << lane
			child := first + place(lane)
			if set>>(format.NodeLanes+lane)&1 != 0 {
				child |= placeWhole
			}
			c.put(child)
		}
	}
}

// gather takes leaf nodes from the list, as many as a kernel tests at once, and gives their number.
func (c *Cursor) gather() (n int) {
	for n < batchNodes && c.listed > 0 {
		p := c.list[c.listed-1]
		t := c.trees[p.tree()]
		if !p.whole() {
			c.nodes[n], c.refs[n], c.firsts[n] = t.node(0, p.node()), t.nodeRefs(p.node()), p.leaf()
			n++
			c.listed--
			continue
		}
		shift := p.level() * nodeBits
		from := p.node() << shift
		to := uint32(min(uint64(p.node()+1)<<shift, uint64(t.count[0])))
		leaf := from + c.given
		for ; leaf < to && n < batchNodes; leaf++ {
			c.nodes[n], c.refs[n], c.firsts[n] = &everywhere, t.nodeRefs(leaf), placeOf(p.tree(), 0, leaf).leaf()
			if leaf == t.count[0]-1 { // it may have lanes that hold nothing
				c.nodes[n] = t.node(0, leaf)
			}
			n++
		}
		c.given = leaf - from
		if leaf == to {
			c.given = 0
			c.listed--
		}
	}
	return n
}

// everywhere is a node whose lanes touch every query. It stands in a batch for nodes that lie wholly in the query: a test
// that is not needed costs less than a branch around it, and less than to read the node.
var everywhere = func() (p node) {
	boxes := slices.Repeat([]format.Box{world}, format.NodeLanes)
	putNode((*[format.NodeSize]byte)(&p), (*[format.NodeLanes]format.Box)(boxes), format.NodeLanes)
	return p
}()

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
	for b, ok := c.Next(); ok; b, ok = c.Next() {
		dst = append(dst, b.Refs...)
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
