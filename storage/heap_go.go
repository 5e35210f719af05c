//go:build !cgo

package storage

// OutsideHeap says whether block cache and memtables lie outside the heap of the Go runtime, and so outside its memory limit.
const OutsideHeap = false
