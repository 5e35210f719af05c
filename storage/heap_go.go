//go:build !cgo

package storage

// OutsideHeap reports whether the block cache and memtables are outside the heap of the Go runtime
// and therefore outside its memory limit.
const OutsideHeap = false
