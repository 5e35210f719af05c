package rtree

import "github.com/rhumbdb/rhumb/snapshot/format"

// availableKernels returns the kernels. Every arm64 processor has the vector unit that the first
// one uses.
func availableKernels() []kernels { return []kernels{kernelsOf("neon", scanNEON), portable} }

//go:noescape
func scanNEON(nodes []*node, q *format.Box, sets *[batchNodes]uint32)
