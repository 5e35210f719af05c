package rtree

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// The layout of a tree follows from the number of its items alone. Nodes are full but for the last
// of each level, and children are found by arithmetic instead of by references. A damaged box can
// therefore hide items or cost time, but never lead outside the section.

// NoRef is the reference of a leaf lane that holds nothing.
const NoRef uint32 = math.MaxUint32

var le = binary.LittleEndian

// empty is the box of a lane that holds nothing. No query touches it, and it adds nothing to a
// union.
var empty = format.Box{MinX: math.MaxInt32, MinY: math.MaxInt32, MaxX: math.MinInt32, MaxY: math.MinInt32}

// levelsMax is the number of levels of a tree with as many items as 32 bits count.
const levelsMax = 8

// shape is where the nodes of each level are, leaves first. It follows from the number of items
// alone, so a header with another shape is damaged.
type shape struct {
	levels       int
	first, count [levelsMax]uint32
}

// shapeOf returns the shape of a tree over items boxes; a tree over none has no level.
func shapeOf(items uint32) (s shape) {
	at, n := uint32(0), items
	// A single item still needs a leaf node, so the loop runs once for n == 1.
	for n > 1 || n == 1 && s.levels == 0 {
		n = uint32((uint64(n) + format.NodeLanes - 1) / format.NodeLanes)
		s.first[s.levels], s.count[s.levels] = at, n
		at += n
		s.levels++
	}
	return s
}

// nodeCount returns the number of nodes of all levels.
func (s *shape) nodeCount() int {
	if s.levels == 0 {
		return 0
	}
	return int(s.first[s.levels-1]) + 1
}

// Size returns the sizes in bytes of the two sections of a tree over n plain boxes:
// SectionTreeNodes with its header, and SectionTreeRefs, which is filled up to whole leaves.
func Size(n int) (nodes, refs int) {
	s := shapeOf(uint32(n))
	return format.TreeHeaderSize + s.nodeCount()*format.NodeSize, int(s.count[0]) * format.NodeLanes * 4
}

// Build writes a tree into two sections, which must have at least the sizes that Size returns. It
// overwrites their content. Leaf i is boxes[order[i]] with the reference refs[order[i]]. The order
// is usually from Sorter.Order; nil means that the boxes are already sorted. The boxes must be
// plain. Any order makes a correct tree; Hilbert order makes a fast one. Build panics if the
// lengths do not match.
func Build(nodes, refSection []byte, boxes []format.Box, refs, order []uint32) {
	n := len(boxes)
	nodeBytes, refBytes := Size(n)
	// These are mistakes of the caller. Data from outside never reaches Build.
	if n > ItemsMax || len(refs) != n || order != nil && len(order) != n || len(nodes) < nodeBytes || len(refSection) < refBytes {
		panic(fmt.Sprintf("rtree: %d boxes, %d references and an order of %d for sections of %d and %d bytes",
			n, len(refs), len(order), len(nodes), len(refSection)))
	}
	s := shapeOf(uint32(n))
	putHeader(nodes[:format.TreeHeaderSize], &s, uint32(n))
	if n == 0 {
		return
	}
	if order == nil {
		buildRefs(refSection[:refBytes], refs)
	} else {
		buildRefsBy(refSection[:refBytes], refs, order)
	}
	body := nodes[format.TreeHeaderSize:nodeBytes]
	// Each level returns the unions of its nodes, which are the boxes of the next level. So no node
	// is read back.
	unions := make([]format.Box, s.count[0])
	buildLeaves(body, boxes, order, unions)
	for level := 1; level < s.levels; level++ {
		// Levels are stored one after the other, leaves first.
		body = body[int(s.count[level-1])*format.NodeSize:]
		unions = buildLevel(body, unions)
	}
}

// putHeader writes the header: levels, items, and where the nodes of each level are.
func putHeader(p []byte, s *shape, items uint32) {
	clear(p)
	le.PutUint32(p, uint32(s.levels))
	le.PutUint32(p[4:], items)
	for i := range s.levels {
		le.PutUint32(p[16+8*i:], s.first[i])
		le.PutUint32(p[20+8*i:], s.count[i])
	}
}

// buildRefs writes the references in their own order.
func buildRefs(dst []byte, refs []uint32) {
	for i, r := range refs {
		le.PutUint32(dst[4*i:], r)
	}
	for i := len(refs); 4*i < len(dst); i++ {
		le.PutUint32(dst[4*i:], NoRef)
	}
}

// buildRefsBy writes the references in another order. It is separate from buildRefs because rolls
// use the loop without an order, which should do no indirect accesses.
func buildRefsBy(dst []byte, refs, order []uint32) {
	for i, o := range order {
		le.PutUint32(dst[4*i:], refs[o])
	}
	for i := len(order); 4*i < len(dst); i++ {
		le.PutUint32(dst[4*i:], NoRef)
	}
}

// buildLeaves writes the leaves and puts the union of each into unions.
func buildLeaves(body []byte, boxes []format.Box, order []uint32, unions []format.Box) {
	var lanes [format.NodeLanes]format.Box
	for i := range unions {
		at := i * format.NodeLanes
		end := min(at+format.NodeLanes, len(boxes))
		if order == nil {
			copy(lanes[:], boxes[at:end])
		} else {
			for j, o := range order[at:end] {
				lanes[j] = boxes[o]
			}
		}
		unions[i] = putNode((*[format.NodeSize]byte)(body[i*format.NodeSize:]), &lanes, end-at)
	}
}

// buildLevel writes the nodes over children, and returns the unions of these nodes in the memory of
// children. That is safe, since a node is written after its sixteen children were read.
func buildLevel(body []byte, children []format.Box) (unions []format.Box) {
	var lanes [format.NodeLanes]format.Box
	n := (len(children) + format.NodeLanes - 1) / format.NodeLanes
	for i := range n {
		filled := copy(lanes[:], children[i*format.NodeLanes:])
		children[i] = putNode((*[format.NodeSize]byte)(body[i*format.NodeSize:]), &lanes, filled)
	}
	return children[:n]
}

// putNode writes the first filled lanes, and empty boxes into the others, and returns the union.
func putNode(node *[format.NodeSize]byte, lanes *[format.NodeLanes]format.Box, filled int) format.Box {
	// The empty lanes need a box too: the kernels test all sixteen lanes, and the sections may be
	// recycled memory.
	for j := filled; j < format.NodeLanes; j++ {
		lanes[j] = empty
	}
	u := empty
	for j := range lanes {
		b := &lanes[j]
		le.PutUint32(node[4*j:], uint32(b.MinX))
		le.PutUint32(node[64+4*j:], uint32(b.MinY))
		le.PutUint32(node[128+4*j:], uint32(b.MaxX))
		le.PutUint32(node[192+4*j:], uint32(b.MaxY))
		u = format.Box{MinX: min(u.MinX, b.MinX), MinY: min(u.MinY, b.MinY), MaxX: max(u.MaxX, b.MaxX), MaxY: max(u.MaxY, b.MaxY)}
	}
	return u
}
