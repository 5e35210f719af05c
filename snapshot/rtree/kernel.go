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

// kernels tests one or more nodes, at most batchNodes, which may be of any trees.
type kernels struct {
	name string
	// scan gives for each node, of any level, the set of its lanes that touch q, and above it, from bit 16 on, the set of those
	// among them that lie wholly in q.
	scan func(nodes []*node, q *format.Box, sets *[batchNodes]uint32)
	// leaves writes the references of those leaves that touch q, and which they are, and gives their number. The nodes are leaf
	// nodes, refs their references and firsts their first leaves. What stands behind the hits may be written too.
	leaves func(nodes []*node, refs []*nodeRefs, firsts []Leaf, q *format.Box, hitRefs *[BatchMax]uint32, hits *[BatchMax]Leaf) int
}

// kernel is the fastest that this processor can run; available lists them all, the fastest first.
var kernel = available()[0]

// portable are the kernels in plain Go.
var portable = kernels{"portable", scanPortable, leavesPortable}

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

func leavesPortable(nodes []*node, refs []*nodeRefs, firsts []Leaf, q *format.Box, hitRefs *[BatchMax]uint32, hits *[BatchMax]Leaf) int {
	var sets [batchNodes]uint32
	scanPortable(nodes, q, &sets)
	return packHits(sets[:len(nodes)], refs, firsts, hitRefs, hits)
}

// packHits makes of the sets of scan what leaves gives.
func packHits(sets []uint32, refs []*nodeRefs, firsts []Leaf, hitRefs *[BatchMax]uint32, hits *[BatchMax]Leaf) int {
	n := 0
	for i, set := range sets {
		if set&allLanes == allLanes {
			for lane := range format.NodeLanes {
				hitRefs[n+lane], hits[n+lane] = le.Uint32(refs[i][4*lane:]), firsts[i]+Leaf(lane)
			}
			n += format.NodeLanes
			continue
		}
		for m := set & allLanes; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m)
			hitRefs[n], hits[n] = le.Uint32(refs[i][4*lane:]), firsts[i]+Leaf(lane)
			n++
		}
	}
	return n
}

// lane gives the box in a lane of a node.
func (p *node) lane(j uint32) format.Box {
	j &= format.NodeLanes - 1
	return format.Box{
		MinX: int32(le.Uint32(p[4*j:])), MinY: int32(le.Uint32(p[64+4*j:])),
		MaxX: int32(le.Uint32(p[128+4*j:])), MaxY: int32(le.Uint32(p[192+4*j:])),
	}
}
