package rtree

import "golang.org/x/sys/cpu"

// availableKernels returns the kernels that this processor can run, the fastest first.
func availableKernels() (all []kernels) {
	if cpu.X86.HasAVX512F && cpu.X86.HasPOPCNT {
		all = append(all, kernels{"avx512", walkAVX512})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT {
		all = append(all, kernels{"avx2", walkAVX2})
	}
	return append(all, portable)
}

// packLanes lists the lanes of each set of eight lanes in ascending order: AVX2 has no instruction
// that packs them.
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
func walkAVX512(c *Cursor) int

//go:noescape
func walkAVX2(c *Cursor) int
