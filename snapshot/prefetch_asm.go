//go:build amd64 || arm64

package snapshot

// prefetch asks for the cache line at each of the first n addresses, and for the next one. The Go compiler has no such
// instruction, and without it a group of look-ups waits for memory once per look-up.
//
//go:noescape
func prefetch(addrs *[group]uintptr, n int)
