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

// kernels walk the nodes that wait in a cursor.
type kernels struct {
	name string
	// walk tests waiting nodes of the lowest level that has any, a batch at a time, until leaf nodes have hits. It returns the
	// number of hits, or 0 if no node waits any more.
	walk func(c *Cursor) int
}

// kernel is the fastest one that this processor can run. availableKernels returns all of them, the fastest first.
var kernel = availableKernels()[0]

// portable is the kernel in plain Go.
var portable = kernelsOf("portable", scanPortable)

// scanner returns, for each node of any level, the set of its lanes that touch q, and from bit 16 on the set of those among
// them that lie wholly in q.
type scanner func(nodes []*node, q *format.Box, sets *[batchNodes]uint32)

// kernelsOf makes a kernel of a scanner.
func kernelsOf(name string, scan scanner) kernels {
	return kernels{name, func(c *Cursor) int { return c.walkNodes(scan) }}
}

// walkNodes is kernels.walk with a scanner.
func (c *Cursor) walkNodes(scan scanner) int {
	for c.open != 0 {
		level, from, n := c.takeBatch()
		list := &c.lists[level]
		for i := range n {
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

// takeBatch takes a batch of nodes of the lowest level that has any; there must be one. The lowest level goes first because
// its children, or hits, then always have room: their list is empty.
func (c *Cursor) takeBatch() (level, from, n int) {
	level = bits.TrailingZeros(c.open)
	s := &c.spans[level]
	from, n = int(s.next), min(int(s.end-s.next), batchNodes)
	if s.next += uint32(n); s.next == s.end {
		c.open &^= 1 << level
	}
	return level, from, n
}

// listChildren puts the children of n nodes that are in their sets on the list of the next level. A child of a node that
// lies wholly in the query lies wholly in it too and is marked.
func (c *Cursor) listChildren(level, from, n int) {
	children := uint32(0)
	list, below := &c.lists[level], &c.lists[level-1]
	for i, set := range c.sets[:n] {
		at, tree := list.nodes[from+i], list.trees[from+i]
		first, last := at<<nodeBits|at&nodeWhole, c.trees[tree].last[level-1]
		for m := set & c.trees[tree].childLanes(level, at); m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			child := first + uint32(lane)
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

// listHits writes the hits among the leaves of n leaf nodes and returns their number.
func (c *Cursor) listHits(from, n int) (hits int) {
	list := &c.lists[0]
	for i, set := range c.sets[:n] {
		at, tree := list.nodes[from+i]&^nodeWhole, list.trees[from+i]
		refs := c.trees[tree].nodeRefs(at)
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

// laneBox returns the box in a lane. The coordinates of a node are in four columns, as vector instructions want them.
func (p *node) laneBox(j uint32) format.Box {
	j &= format.NodeLanes - 1
	return format.Box{
		MinX: int32(le.Uint32(p[4*j:])), MinY: int32(le.Uint32(p[64+4*j:])),
		MaxX: int32(le.Uint32(p[128+4*j:])), MaxY: int32(le.Uint32(p[192+4*j:])),
	}
}
