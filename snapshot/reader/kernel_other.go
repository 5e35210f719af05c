//go:build (!amd64 && !arm64) || purego

package reader

import "unsafe"

var hasKernel = false

func locateKernel(*uint64, int, *lane, uint64, *unsafe.Pointer) uint64 {
	panic("reader: there is no kernel for this processor")
}

func fetchKernel(*unsafe.Pointer, int) { panic("reader: there is no kernel for this processor") }
