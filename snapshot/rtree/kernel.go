package rtree

import "github.com/rhumbdb/rhumb/snapshot/format"

// node is a mapped node.
type node [format.NodeSize]byte

// allLanes are the lanes of a node as a set, a bit each.
const allLanes uint32 = 1<<format.NodeLanes - 1

// kernels tests nodes, which may be of any trees and levels.
type kernels struct {
	name string
	// scan gives for each of one or more nodes the set of its lanes that touch q, and above it, from bit 16 on, the set of
	// those among them that lie wholly in q. It may fetch what ahead leads to, one for each node: what is read afterwards.
	scan func(nodes []*node, ahead []*byte, q *format.Box, sets []uint32)
}

// kernel is the fastest that this processor can run; available lists them all, the fastest first.
var kernel = available()[0]

// portable is the kernel in plain Go.
var portable = kernels{"portable", scanPortable}

func scanPortable(nodes []*node, _ []*byte, q *format.Box, sets []uint32) {
	for i, p := range nodes {
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
