package rtree

import (
	"math/bits"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// node is a mapped node.
type node [format.NodeSize]byte

// nodeRefs are the mapped references of a leaf node.
type nodeRefs [4 * format.NodeLanes]byte

// allLanes are the lanes of a node as a set, a bit each.
const allLanes uint32 = 1<<format.NodeLanes - 1

// kernels walk the nodes that wait in a cursor.
type kernels struct {
	name string
	// walk tests nodes of the lowest level that has any, a batch at a time, until leaf nodes have hits, and gives their number.
	// It gives 0 when no node waits any more.
	walk func(c *Cursor) int
}

// kernel is the fastest that this processor can run; available lists them all, the fastest first.
var kernel = available()[0]

// portable are the kernels in plain Go.
var portable = kernelsOf("portable", scanPortable)

// scanner gives for each node, of any level, the set of its lanes that touch q, and above it, from bit 16 on, the set of those
// among them that lie wholly in q.
type scanner func(nodes []*node, q *format.Box, sets *[batchNodes]uint32)

// kernelsOf makes kernels of a scanner.
func kernelsOf(name string, scan scanner) kernels {
	return kernels{name, func(c *Cursor) int { return c.walk(scan) }}
}

// walk is kernels.walk by way of a scanner.
func (c *Cursor) walk(scan scanner) int {
	for c.open != 0 {
		level, from, n := c.take()
		list := &c.lists[level]
		for i := range n {
			c.nodes[i] = &everywhere
			if at := list.nodes[from+i]; at < nodeWhole {
				c.nodes[i] = c.trees[list.trees[from+i]].node(level, at)
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

// take takes a batch of nodes of the lowest level that has any; there is one.
func (c *Cursor) take() (level, from, n int) {
	level = bits.TrailingZeros(c.open)
	s := &c.spans[level]
	from, n = int(s.next), min(int(s.end-s.next), batchNodes)
	if s.next += uint32(n); s.next == s.end {
		c.open &^= 1 << level
	}
	return level, from, n
}

// listChildren lets those children of n nodes wait that are in their sets.
func (c *Cursor) listChildren(level, from, n int) {
	children := uint32(0)
	list, below := &c.lists[level], &c.lists[level-1]
	for i, set := range c.sets[:n] {
		at, tree := list.nodes[from+i], list.trees[from+i]
		first, last := at<<nodeBits|at&nodeWhole, c.trees[tree].last[level-1]
		for m := set & c.trees[tree].children(level, at); m != 0; m &= m - 1 {
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

// listHits writes the hits among the leaves of n leaf nodes, and gives their number.
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

func scanPortable(nodes []*node, q *format.Box, sets *[batchNodes]uint32) {
	for i, p := range nodes {
		if sets[i] = allLanes; p == &everywhere {
			continue
		}
		sets[i] = 0
		for j := range uint32(format.NodeLanes) {
			b := p.lane(j)
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

// lane gives the box in a lane of a node.
func (p *node) lane(j uint32) format.Box {
	j &= format.NodeLanes - 1
	return format.Box{
		MinX: int32(le.Uint32(p[4*j:])), MinY: int32(le.Uint32(p[64+4*j:])),
		MaxX: int32(le.Uint32(p[128+4*j:])), MaxY: int32(le.Uint32(p[192+4*j:])),
	}
}
