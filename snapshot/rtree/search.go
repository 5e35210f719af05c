package rtree

import "github.com/rhumbdb/rhumb/snapshot/format"

const (
	// BatchMax is the greatest number of hits that Next gives at once.
	BatchMax = chunkNodes * format.NodeLanes

	// chunkNodes is how many nodes a kernel tests in one call: enough to have many lines on their way, few enough for the
	// lists of all levels to stay in the nearest caches.
	chunkNodes = 64
	// listRoom is the length of a list with room behind it, since kernels write whole vectors.
	listRoom = BatchMax + format.NodeLanes
	// inside marks a node in a list that lies wholly in the query and has all its children: all below it are hits.
	inside uint32 = 1 << 31
)

// Cursor walks the leaves that a query touches. It holds all the memory of a search, about 42 KiB, and is meant to be
// kept and started again; the zero value has nothing to walk.
type Cursor struct {
	tree   *Tree
	query  []format.Box
	single [1]format.Box
	part   int
	box    format.Box // query[part], cut off at the edges of the world
	level  int
	lists  [levelsMax]nodeList
	refs   [listRoom]uint32
	leaves [listRoom]uint32
}

// nodeList holds the nodes of a level that are still to be tested, from next on.
type nodeList struct {
	next, n int
	nodes   [listRoom]uint32
}

// Batch is some of the hits of a search, in rising order of leaves. The slices are the cursor's and stand until its next
// call.
type Batch struct {
	// Part is the position in the query of the box that these leaves touch.
	Part int
	// Refs are the references of the hits, Leaves their numbers; see Tree.Leaf.
	Refs, Leaves []uint32
}

// Start begins a search for the leaves that touch boxes of the query: all of the first box, then all of the second and so
// on. The boxes are plain, as Box.Split and Circle give them, and must not change while the search goes on. A leaf that
// touches several is given for each; see FirstMatch.
func (c *Cursor) Start(t *Tree, query []format.Box) {
	c.tree, c.query, c.part, c.level = t, query, -1, t.levels
	if t.levels == 0 {
		c.query = nil
	}
}

// Next gives the next hits, at least one; ok is false at the end.
func (c *Cursor) Next() (b Batch, ok bool) {
	for c.advance() {
		list := &c.lists[c.level]
		chunk := list.nodes[list.next:min(list.n, list.next+chunkNodes)]
		list.next += len(chunk)
		q, nodes := &c.box, c.tree.level(c.level)
		if c.level == 0 {
			if n := kernel.leaves(nodes, c.tree.refs, q, chunk, &c.refs, &c.leaves); n > 0 {
				return Batch{Part: c.part, Refs: c.refs[:n], Leaves: c.leaves[:n]}, true
			}
			continue
		}
		c.level--
		below := &c.lists[c.level]
		below.next, below.n = 0, kernel.nodes(nodes, q, chunk, &below.nodes)
		// Only the last node of a level can lack children, so it is never passed untested.
		if last := below.n - 1; last >= 0 && below.nodes[last]&^inside == c.tree.count[c.level]-1 {
			below.nodes[last] &^= inside
		}
	}
	return Batch{}, false
}

// advance moves to a level with nodes to test: this one, else one above, else the root for the next box of the query.
func (c *Cursor) advance() bool {
	for {
		for c.tree != nil && c.level < c.tree.levels {
			if list := &c.lists[c.level]; list.next < list.n {
				return true
			}
			c.level++
		}
		if c.part+1 >= len(c.query) {
			return false
		}
		c.part++
		c.box = clip(c.query[c.part])
		c.level = c.tree.levels - 1
		root := &c.lists[c.level]
		root.next, root.n, root.nodes[0] = 0, 1, 0
	}
}

// clip cuts a box off at the edges of the world, so that it cannot touch lanes that hold nothing.
func clip(b format.Box) format.Box {
	return format.Box{
		MinX: max(b.MinX, -format.LonUnitsMax), MinY: max(b.MinY, -format.LatUnitsMax),
		MaxX: min(b.MaxX, format.LonUnitsMax), MaxY: min(b.MaxY, format.LatUnitsMax),
	}
}

// Search appends the references of all leaves that touch a plain box, in rising order of leaves. It starts c anew.
func (t *Tree) Search(c *Cursor, q format.Box, dst []uint32) []uint32 {
	c.single[0] = q
	c.Start(t, c.single[:])
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
