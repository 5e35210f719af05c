package rtree

import "github.com/rhumbdb/rhumb/snapshot/format"

// available lists the kernels: every arm64 processor has the vector unit that the first ones use.
func available() []kernels {
	return []kernels{{"neon", scanNodesNEON, scanLeavesNEON}, portable}
}

func scanNodesNEON(nodes []byte, q *format.Box, list []uint32, out *[listRoom]uint32) int {
	return nodesNEON(&nodes[0], q, &list[0], len(list), out)
}

func scanLeavesNEON(nodes, refs []byte, q *format.Box, list []uint32, outRefs, outLeaves *[listRoom]uint32) int {
	return leavesNEON(&nodes[0], &refs[0], q, &list[0], len(list), outRefs, outLeaves)
}

// packLanes gives for each set of four lanes the bytes of the lanes in it, in order, and packCount their number times four.
var packLanes, packCount = makePack()

func makePack() (lanes [16][16]uint8, count [16]uint8) {
	for set := range lanes {
		n := 0
		for lane := range 4 {
			if set>>lane&1 == 0 {
				continue
			}
			for i := range 4 {
				lanes[set][n] = uint8(4*lane + i)
				n++
			}
		}
		count[set] = uint8(n)
	}
	return lanes, count
}

//go:noescape
func nodesNEON(nodes *byte, q *format.Box, list *uint32, n int, out *[listRoom]uint32) int

//go:noescape
func leavesNEON(nodes, refs *byte, q *format.Box, list *uint32, n int, outRefs, outLeaves *[listRoom]uint32) int
