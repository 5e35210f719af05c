package rtree

import "github.com/rhumbdb/rhumb/snapshot/format"

// kernels tests lists of nodes. The list has at most chunkNodes nodes, all of the level that nodes holds; a node marked
// inside has all its children, and they are taken untested. Kernels may write whole vectors: up to 15 words behind the last
// that they count.
type kernels struct {
	name string
	// nodes writes the children that q touches, marked if they lie wholly in q, and gives their number.
	nodes func(nodes []byte, q *format.Box, list []uint32, out *[listRoom]uint32) int
	// leaves writes the references and the numbers of the leaves that q touches, and gives their number.
	leaves func(nodes, refs []byte, q *format.Box, list []uint32, outRefs, outLeaves *[listRoom]uint32) int
}

// kernel is the fastest that this processor can run; available lists them all, the fastest first.
var kernel = available()[0]

// portable are the kernels in plain Go.
var portable = kernels{"portable", scanNodesPortable, scanLeavesPortable}

func scanNodesPortable(nodes []byte, q *format.Box, list []uint32, out *[listRoom]uint32) int {
	n := 0
	for _, i := range list {
		first := i &^ inside * format.NodeLanes
		if i&inside != 0 {
			for j := range uint32(format.NodeLanes) {
				out[n] = first + j | inside
				n++
			}
			continue
		}
		node := (*[format.NodeSize]byte)(nodes[int(i)*format.NodeSize:])
		for j := range uint32(format.NodeLanes) {
			b := lane(node, j)
			if !b.Intersects(*q) {
				continue
			}
			child := first + j
			if b.MinX >= q.MinX && b.MinY >= q.MinY && b.MaxX <= q.MaxX && b.MaxY <= q.MaxY {
				child |= inside
			}
			out[n] = child
			n++
		}
	}
	return n
}

func scanLeavesPortable(nodes, refs []byte, q *format.Box, list []uint32, outRefs, outLeaves *[listRoom]uint32) int {
	n := 0
	for _, i := range list {
		number := int(i &^ inside)
		first := uint32(number) * format.NodeLanes
		node := (*[format.NodeSize]byte)(nodes[number*format.NodeSize:])
		ref := (*[4 * format.NodeLanes]byte)(refs[number*4*format.NodeLanes:])
		for j := range uint32(format.NodeLanes) {
			if i&inside == 0 && !lane(node, j).Intersects(*q) {
				continue
			}
			outRefs[n], outLeaves[n] = le.Uint32(ref[4*j:]), first+j
			n++
		}
	}
	return n
}

// lane gives the box in a lane of a node.
func lane(node *[format.NodeSize]byte, j uint32) format.Box {
	j &= format.NodeLanes - 1
	return format.Box{
		MinX: int32(le.Uint32(node[4*j:])), MinY: int32(le.Uint32(node[64+4*j:])),
		MaxX: int32(le.Uint32(node[128+4*j:])), MaxY: int32(le.Uint32(node[192+4*j:])),
	}
}
