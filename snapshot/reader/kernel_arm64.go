//go:build arm64 && !purego

package reader

import "unsafe"

var hasKernel = true

// locateKernel finds for each of n hashes, at most 64, the likely record: it prefetches all
// buckets, then finds in each the first slot with the hash's fingerprint and prefetches its record.
// mask is the number of lanes, a power of two, less one. lost has one bit for each hash whose
// bucket has no such record; the record of such a hash is nil.
//
//go:noescape
func locateKernel(hashes *uint64, n int, lanes *lane, mask uint64, records *unsafe.Pointer) (lost uint64)

// fetchKernel prefetches the first two cache lines of n records. n is at least 1.
//
//go:noescape
func fetchKernel(records *unsafe.Pointer, n int)
