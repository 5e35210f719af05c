//go:build amd64 || arm64

package snapshot

// prefetch asks for the cache line at each of the first n addresses. The Go compiler has no such instruction, and without it a
// group of look-ups waits for memory once per look-up.
//
//go:noescape
func prefetch(addrs *[group]uintptr, n int)

// prefetchPairs asks for the line at each address and for the next one.
//
//go:noescape
func prefetchPairs(addrs *[group]uintptr, n int)

// prefetchPut asks for a bucket, and for the two lines at tail, which will be written: with many shards no hardware guesses
// where each goes on.
//
//go:noescape
func prefetchPut(bucket, tail uintptr)
