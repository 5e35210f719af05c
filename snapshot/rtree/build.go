package rtree

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// NoRef is the reference of a leaf lane that holds nothing.
const NoRef uint32 = math.MaxUint32

var le = binary.LittleEndian

// empty is the box of a lane that holds nothing: no query touches it, and it adds nothing to a union.
var empty = format.Box{MinX: math.MaxInt32, MinY: math.MaxInt32, MaxX: math.MinInt32, MaxY: math.MinInt32}

// levelsMax is the number of levels of a tree with as many items as a u32 counts.
const levelsMax = 8

// shape is where the nodes of each level stand, leaves first.
type shape struct {
	levels       int
	first, count [levelsMax]uint32
}

// shapeOf gives the shape of a tree over items boxes; a tree over none has no level.
func shapeOf(items uint32) (s shape) {
	at, n := uint32(0), items
	for n > 1 || n == 1 && s.levels == 0 {
		n = uint32((uint64(n) + format.NodeLanes - 1) / format.NodeLanes)
		s.first[s.levels], s.count[s.levels] = at, n
		at += n
		s.levels++
	}
	return s
}

// nodes gives the number of nodes of all levels.
func (s *shape) nodes() int {
	if s.levels == 0 {
		return 0
	}
	return int(s.first[s.levels-1]) + 1
}

// Size gives the sizes in bytes of the two sections of a tree over n plain boxes: SectionTreeNodes with its header, and
// SectionTreeRefs, which is filled up to whole leaves.
func Size(n int) (nodes, refs int) {
	s := shapeOf(uint32(n))
	return format.TreeHeaderSize + s.nodes()*format.NodeSize, int(s.count[0]) * format.NodeLanes * 4
}

// Build writes a tree into the two sections, which are at least as large as Size says; what they held does not matter.
// Leaf i is boxes[order[i]] with the reference refs[order[i]]; order comes from Sorter.Order, and nil means that the boxes
// are sorted already. The boxes are plain. Any order makes a right tree; Hilbert order makes a fast one. Build panics when
// the lengths do not fit together.
func Build(nodes, refSection []byte, boxes []format.Box, refs, order []uint32) {
	n := len(boxes)
	nodeBytes, refBytes := Size(n)
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
	unions := make([]format.Box, s.count[0])
	buildLeaves(body, boxes, order, unions)
	for level := 1; level < s.levels; level++ {
		body = body[int(s.count[level-1])*format.NodeSize:]
		unions = buildLevel(body, unions)
	}
}

func putHeader(p []byte, s *shape, items uint32) {
	clear(p)
	le.PutUint32(p, uint32(s.levels))
	le.PutUint32(p[4:], items)
	for i := range s.levels {
		le.PutUint32(p[16+8*i:], s.first[i])
		le.PutUint32(p[20+8*i:], s.count[i])
	}
}

func buildRefs(dst []byte, refs []uint32) {
	for i, r := range refs {
		le.PutUint32(dst[4*i:], r)
	}
	for i := len(refs); 4*i < len(dst); i++ {
		le.PutUint32(dst[4*i:], NoRef)
	}
}

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

// buildLevel writes the nodes over children, in whose place it leaves the unions of the nodes it wrote.
func buildLevel(body []byte, children []format.Box) (unions []format.Box) {
	var lanes [format.NodeLanes]format.Box
	n := (len(children) + format.NodeLanes - 1) / format.NodeLanes
	for i := range n {
		filled := copy(lanes[:], children[i*format.NodeLanes:])
		children[i] = putNode((*[format.NodeSize]byte)(body[i*format.NodeSize:]), &lanes, filled)
	}
	return children[:n]
}

// putNode writes the first filled lanes, and nothing into the others, and gives the union.
func putNode(node *[format.NodeSize]byte, lanes *[format.NodeLanes]format.Box, filled int) format.Box {
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
