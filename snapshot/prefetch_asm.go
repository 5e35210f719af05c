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

// prefetchPair asks for the line at an address, and the next one, to write there.
//
//go:noescape
func prefetchPair(addr uintptr)
