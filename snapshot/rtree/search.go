package rtree

import (
	"slices"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A search is breadth-first by level within a batch and depth-first between batches: it always
// tests nodes of the lowest level that has any. So each list holds at most the children of one
// batch, and hits are found early. A depth-first walk would wait for one node at a time, and a
// plain breadth-first walk would need room for the whole tree.

const (
	// BatchMax is the greatest number of hits that Next returns at once.
	BatchMax = batchNodes * format.NodeLanes

	// batchNodes is how many nodes a kernel tests in one call: enough to keep as many cache lines
	// in flight as a processor can, and few enough for the memory of a search to stay in the
	// nearest caches.
	batchNodes = 32
	// fewChildren is the largest number of children of an inner node that the assembly kernels
	// write one by one. In that case they do not check whether the children are entirely within the
	// query, because such a query is small.
	fewChildren = 3
	// rootsMax is how many roots can be listed at a time.
	rootsMax = 256
	// listRoom is how many nodes of a level can be listed: the children of a batch, or roots.
	listRoom = max(batchNodes*format.NodeLanes, rootsMax)
)

// Cursor walks the leaves of one or more trees that a query touches. It holds all the memory of a
// search, about 40 KiB. Reuse a cursor by calling Start again. The zero value has nothing to walk.
//
// The trees are walked together: a batch contains listed nodes of any of them, so that the memory
// accesses of one tree do not wait for those of another. An image has a tree per shard, and a small
// query needs few nodes of each.
type Cursor struct {
	lists [levelsMax]nodeList
	// The hits of a batch.
	hitRefs, hitLeaves, hitTrees [BatchMax]uint32

	trees []*Tree
	query []format.Box
	part  int
	next  int        // the first tree whose root is not yet listed for this part
	box   format.Box // query[part], cut off at the edges of the world

	// The nodes to be tested, by level. Nodes of the lowest level go first, so the list that
	// receives the children of a batch is always empty.
	open  uint // the levels with nodes to be tested, a bit each
	spans [levelsMax]span

	// A batch of a kernel in Go; see scanner.
	nodes [batchNodes]*node
	sets  [batchNodes]uint32

	single [1]format.Box
	alone  [1]*Tree
}

// span is the part of a list that is to be tested.
type span struct{ next, end uint32 }

// nodeList holds the numbers of nodes of one level, with nodeWhole set for nodes entirely within
// the query, and the trees of the nodes.
type nodeList struct {
	nodes, trees [listRoom]uint32
}

// nodeWhole marks a node that is entirely within the query and has all its children: everything
// below it is accepted without a test. The last node of a level is never marked, since it may have
// empty lanes. Numbers are below 2^28.
const nodeWhole = 1 << 31

// TreesMax is the greatest number of trees of a search.
const TreesMax = 1 << 16

// Batch is some of the hits of a search, which may be of several trees. The slices belong to the
// cursor and are valid until its next call.
type Batch struct {
	// Part is the position in the query of the box that these leaves touch.
	Part int
	// Refs are the references of the hits, Leaves the numbers of their leaves, see Tree.Leaf, and
	// Trees the indexes of their trees in the argument of Start.
	Refs, Leaves, Trees []uint32
}

// Start begins a search for the leaves of all trees that touch boxes of the query: all leaves for
// the first box, then all for the second and so on. There are at most TreesMax trees. The boxes
// must be plain, as Box.Split and Circle return them. Neither trees nor boxes may change during the
// search. A leaf that touches several boxes is returned for each; see FirstMatch.
func (c *Cursor) Start(trees []*Tree, query []format.Box) {
	// next at the end of the trees makes plantRoots begin with part 0.
	c.trees, c.query, c.part, c.next, c.open = trees, query, -1, len(trees), 0
}

// Next returns the next hits, at least one; ok is false at the end. Within a tree and a part they
// come in ascending order.
func (c *Cursor) Next() (b Batch, ok bool) {
	for c.open != 0 || c.plantRoots() {
		// A walk may use up all listed nodes without a hit. Then the next roots are listed.
		if hits := kernel.walk(c); hits > 0 {
			return Batch{Part: c.part, Refs: c.hitRefs[:hits], Leaves: c.hitLeaves[:hits], Trees: c.hitTrees[:hits]}, true
		}
	}
	return Batch{}, false
}

// plantRoots lists the roots of more trees, or starts over with the first tree for the next box of
// the query. It reports false at the end of the search.
func (c *Cursor) plantRoots() bool {
	for c.open == 0 {
		if c.next == len(c.trees) {
			if c.part+1 >= len(c.query) || len(c.trees) == 0 {
				return false
			}
			c.part++
			// Without the clip a box that reaches beyond the world could touch the empty lanes,
			// whose coordinates are at the ends of int32.
			c.box = clipToWorld(c.query[c.part])
			c.next = 0
		}
		// Roots are listed only while nothing else is. So the lists of all levels have room for
		// them.
		for end := min(c.next+rootsMax, len(c.trees)); c.next < end; c.next++ {
			if levels := c.trees[c.next].levels; levels > 0 {
				c.addRoot(c.next, levels-1)
			}
		}
	}
	return true
}

// addRoot adds the root of a tree to the list of its level.
func (c *Cursor) addRoot(tree, level int) {
	if c.open>>level&1 == 0 {
		c.open |= 1 << level
		// The positions are left over from the last use of the list.
		c.spans[level] = span{}
	}
	s, list := &c.spans[level], &c.lists[level]
	list.nodes[s.end], list.trees[s.end] = 0, uint32(tree)
	s.end++
}

// everywhere is a node whose lanes touch every query. It replaces nodes that are entirely within
// the query: the superfluous test costs less than a branch around it, and less than reading the
// node.
var everywhere = func() (p node) {
	boxes := slices.Repeat([]format.Box{world}, format.NodeLanes)
	putNode((*[format.NodeSize]byte)(&p), (*[format.NodeLanes]format.Box)(boxes), format.NodeLanes)
	return p
}()

// nodeBits is log2 of format.NodeLanes.
const nodeBits = 4

const _ = uint(1<<nodeBits-format.NodeLanes) + uint(format.NodeLanes-1<<nodeBits)

// clipToWorld clips a box to the world, so that it cannot touch empty lanes.
func clipToWorld(b format.Box) format.Box {
	return format.Box{
		MinX: max(b.MinX, -format.LonUnitsMax), MinY: max(b.MinY, -format.LatUnitsMax),
		MaxX: min(b.MaxX, format.LonUnitsMax), MaxY: min(b.MaxY, format.LatUnitsMax),
	}
}

// AddMeridian adds to the plain boxes of a query, as Box.Split returns them, the edge of the world
// that is opposite to the one they reach. Longitudes 180 and -180 are one meridian, so a box that
// ends on it touches boxes that begin on it.
func AddMeridian(boxes [2]format.Box, n int) (all [4]format.Box, count int) {
	count = copy(all[:], boxes[:n])
	for _, b := range boxes[:n] {
		// The added box has no width: it finds items that touch the meridian from the other side.
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

// Search appends the references of all leaves that touch a plain box. It restarts c.
func (t *Tree) Search(c *Cursor, q format.Box, dst []uint32) []uint32 {
	c.single[0], c.alone[0] = q, t
	c.Start(c.alone[:], c.single[:])
	for b, ok := c.Next(); ok; b, ok = c.Next() {
		dst = append(dst, b.Refs...)
	}
	return dst
}

// FirstMatch reports whether a hit is the first of its record in the order of a search. So a record
// that touches several boxes of a query, or whose box crosses the antimeridian and is found by both
// parts, is returned once, without remembering earlier hits. hit is the plain box that was found
// for query[part], of a leaf or of an entry of the spatial delta; record is the stored box of the
// record. The order is by box of the query, then by part of the record's box.
func FirstMatch(query []format.Box, part int, record, hit format.Box) bool {
	parts, n := record.Split()
	for _, q := range query[:part] {
		for _, p := range parts[:n] {
			// The record was already returned for an earlier box of the query.
			if p.Intersects(q) {
				return false
			}
		}
	}
	// The second part begins at the antimeridian, which the first part cannot: MinX is greater than
	// MaxX.
	second := n == 2 && hit.MinX == -format.LonUnitsMax
	return !second || !parts[0].Intersects(query[part])
}
