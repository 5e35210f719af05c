package rtree

import (
	"golang.org/x/sys/cpu"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

func available() (all []kernels) {
	if cpu.X86.HasAVX512F && cpu.X86.HasPOPCNT {
		all = append(all, kernels{"avx512", scanNodesAVX512, scanLeavesAVX512})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT {
		all = append(all, kernels{"avx2", scanNodesAVX2, scanLeavesAVX2})
	}
	return append(all, portable)
}

func scanNodesAVX512(nodes []byte, q *format.Box, list []uint32, out *[listRoom]uint32) int {
	return nodesAVX512(&nodes[0], q, &list[0], len(list), out)
}

func scanLeavesAVX512(nodes, refs []byte, q *format.Box, list []uint32, outRefs, outLeaves *[listRoom]uint32) int {
	return leavesAVX512(&nodes[0], &refs[0], q, &list[0], len(list), outRefs, outLeaves)
}

func scanNodesAVX2(nodes []byte, q *format.Box, list []uint32, out *[listRoom]uint32) int {
	return nodesAVX2(&nodes[0], q, &list[0], len(list), out)
}

func scanLeavesAVX2(nodes, refs []byte, q *format.Box, list []uint32, outRefs, outLeaves *[listRoom]uint32) int {
	return leavesAVX2(&nodes[0], &refs[0], q, &list[0], len(list), outRefs, outLeaves)
}

// packLanes gives for each set of eight lanes the lanes in it, in order: AVX2 has no instruction that packs them.
//
//lint:ignore U1000 the assembly reads it
var packLanes = func() (table [256][8]uint8) {
	for set := range table {
		n := 0
		for lane := range 8 {
			if set>>lane&1 != 0 {
				table[set][n] = uint8(lane)
				n++
			}
		}
	}
	return table
}()

//go:noescape
func nodesAVX512(nodes *byte, q *format.Box, list *uint32, n int, out *[listRoom]uint32) int

//go:noescape
func leavesAVX512(nodes, refs *byte, q *format.Box, list *uint32, n int, outRefs, outLeaves *[listRoom]uint32) int

//go:noescape
func nodesAVX2(nodes *byte, q *format.Box, list *uint32, n int, out *[listRoom]uint32) int

//go:noescape
func leavesAVX2(nodes, refs *byte, q *format.Box, list *uint32, n int, outRefs, outLeaves *[listRoom]uint32) int
