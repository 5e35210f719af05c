package rtree

import (
	"math/bits"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// node is a mapped node.
type node [format.NodeSize]byte

// nodeRefs is the mapped references of a leaf node.
type nodeRefs [4 * format.NodeLanes]byte

// allLanes is the set of all lanes of a node, a bit each.
const allLanes uint32 = 1<<format.NodeLanes - 1

// kernels is an implementation of the walk over the listed nodes of a cursor.
type kernels struct {
	name string
	// walk tests listed nodes, always of the lowest level that has any, a batch at a time, until
	// leaf nodes have hits. It returns the number of hits, or 0 if no node is left.
	walk func(c *Cursor) int
}

// kernel is the fastest implementation that this processor can run. availableKernels returns all of
// them, the fastest first.
var kernel = availableKernels()[0]

// portable is the kernel in plain Go.
var portable = kernelsOf("portable", scanPortable)

// scanner computes for each node, of any level, the set of lanes that touch q in bits 0 to 15, and
// the set of lanes that are entirely within q in bits 16 to 31.
type scanner func(nodes []*node, q *format.Box, sets *[batchNodes]uint32)

// kernelsOf returns the kernel that walks with a scanner.
func kernelsOf(name string, scan scanner) kernels {
	return kernels{name, func(c *Cursor) int { return c.walkNodes(scan) }}
}

// walkNodes implements kernels.walk with a scanner.
func (c *Cursor) walkNodes(scan scanner) int {
	for c.open != 0 {
		level, from, n := c.takeBatch()
		list := &c.lists[level]
		for i := range n {
			// A marked node is not read at all: its place is taken by a node that matches every
			// query.
			c.nodes[i] = &everywhere
			if at := list.nodes[from+i]; at < nodeWhole {
				c.nodes[i] = c.trees[list.trees[from+i]].nodeAt(level, at)
			}
		}
		scan(c.nodes[:n], &c.box, &c.sets)
		if level > 0 {
			c.listChildren(level, from, n)
		} else if hits := c.listHits(from, n); hits > 0 {
			return hits
		}
	}
	return 0
}

// takeBatch removes a batch of nodes of the lowest level that has any; there must be one. The
// lowest level goes first because then the list of its children is empty, so there is always room
// for them.
func (c *Cursor) takeBatch() (level, from, n int) {
	level = bits.TrailingZeros(c.open)
	s := &c.spans[level]
	from, n = int(s.next), min(int(s.end-s.next), batchNodes)
	if s.next += uint32(n); s.next == s.end {
		c.open &^= 1 << level
	}
	return level, from, n
}

// listChildren puts those children of n nodes that are in their sets on the list of the next level.
// It marks children that are entirely within the query.
func (c *Cursor) listChildren(level, from, n int) {
	children := uint32(0)
	list, below := &c.lists[level], &c.lists[level-1]
	for i, set := range c.sets[:n] {
		at, tree := list.nodes[from+i], list.trees[from+i]
		// The shift drops the mark in bit 31, so it is added again: children of a marked node are
		// marked too.
		first, last := at<<nodeBits|at&nodeWhole, c.trees[tree].last[level-1]
		// Damage may make an empty lane match after Open has checked it. The mask keeps such a lane
		// from being followed.
		for m := set & c.trees[tree].childLanes(level, at); m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			child := first + uint32(lane)
			// The last node of a level may have empty lanes, which must be tested, so it is never
			// marked.
			if set>>(format.NodeLanes+lane)&1 != 0 && child != last {
				child |= nodeWhole
			}
			below.nodes[children], below.trees[children] = child, tree
			children++
		}
	}
	if children > 0 {
		c.spans[level-1] = span{0, children}
		c.open |= 1 << (level - 1)
	}
}

// listHits stores the hits among the leaves of n leaf nodes and returns their number.
func (c *Cursor) listHits(from, n int) (hits int) {
	list := &c.lists[0]
	for i, set := range c.sets[:n] {
		at, tree := list.nodes[from+i]&^nodeWhole, list.trees[from+i]
		refs := c.trees[tree].nodeRefs(at)
		// Empty lanes are not masked here: their reference is NoRef, which callers reject like any
		// reference outside the heap.
		for m := set & allLanes; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			c.hitRefs[hits], c.hitLeaves[hits], c.hitTrees[hits] = le.Uint32(refs[4*lane:]), at<<nodeBits+uint32(lane), tree
			hits++
		}
	}
	return hits
}

// scanPortable is the scanner in plain Go.
func scanPortable(nodes []*node, q *format.Box, sets *[batchNodes]uint32) {
	for i, p := range nodes {
		// Bits 16 and up may stay clear: the children inherit the mark from the node.
		if sets[i] = allLanes; p == &everywhere {
			continue
		}
		sets[i] = 0
		for j := range uint32(format.NodeLanes) {
			b := p.laneBox(j)
			if !b.Intersects(*q) {
				continue
			}
			sets[i] |= 1 << j
			if b.MinX >= q.MinX && b.MinY >= q.MinY && b.MaxX <= q.MaxX && b.MaxY <= q.MaxY {
				sets[i] |= 1 << (format.NodeLanes + j)
			}
		}
	}
}

// laneBox returns the box in a lane. The coordinates of a node are in four columns, as vector
// instructions need them.
func (p *node) laneBox(j uint32) format.Box {
	// This tells the compiler that no index is out of range.
	j &= format.NodeLanes - 1
	return format.Box{
		MinX: int32(le.Uint32(p[4*j:])), MinY: int32(le.Uint32(p[64+4*j:])),
		MaxX: int32(le.Uint32(p[128+4*j:])), MaxY: int32(le.Uint32(p[192+4*j:])),
	}
}
