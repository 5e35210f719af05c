package rtree

import (
	"golang.org/x/sys/cpu"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

func available() (all []kernels) {
	if cpu.X86.HasAVX512F {
		all = append(all, kernels{"avx512", func(nodes []*node, ahead []*byte, q *format.Box, sets []uint32) {
			scanAVX512(&nodes[0], &ahead[0], len(nodes), q, &sets[0])
		}})
	}
	if cpu.X86.HasAVX2 {
		all = append(all, kernels{"avx2", func(nodes []*node, ahead []*byte, q *format.Box, sets []uint32) {
			scanAVX2(&nodes[0], &ahead[0], len(nodes), q, &sets[0])
		}})
	}
	return append(all, portable)
}

//go:noescape
func scanAVX512(nodes **node, ahead **byte, n int, q *format.Box, sets *uint32)

//go:noescape
func scanAVX2(nodes **node, ahead **byte, n int, q *format.Box, sets *uint32)
