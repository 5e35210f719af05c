package rtree

import "github.com/rhumbdb/rhumb/snapshot/format"

// available lists the kernels: every arm64 processor has the vector unit that the first one uses.
func available() []kernels { return []kernels{{"neon", scanNEON, leavesNEON}, portable} }

func leavesNEON(nodes []*node, refs []*nodeRefs, firsts []Leaf, q *format.Box, hitRefs *[BatchMax]uint32, hits *[BatchMax]Leaf) int {
	var sets [batchNodes]uint32
	scanNEON(nodes, q, &sets)
	return packHits(sets[:len(nodes)], refs, firsts, hitRefs, hits)
}

//go:noescape
func scanNEON(nodes []*node, q *format.Box, sets *[batchNodes]uint32)
