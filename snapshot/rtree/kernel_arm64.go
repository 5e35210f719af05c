package rtree

import "github.com/rhumbdb/rhumb/snapshot/format"

// available lists the kernels: every arm64 processor has the vector unit that the first one uses.
func available() []kernels {
	return []kernels{{"neon", func(nodes []*node, ahead []*byte, q *format.Box, sets []uint32) {
		scanNEON(&nodes[0], &ahead[0], len(nodes), q, &sets[0])
	}}, portable}
}

//go:noescape
func scanNEON(nodes **node, ahead **byte, n int, q *format.Box, sets *uint32)
