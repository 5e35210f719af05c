//go:build !amd64 && !arm64

package snapshot

// prefetch does nothing on this machine, nor do the others.
func prefetch(*[group]uintptr, int) {}

func prefetchPairs(*[group]uintptr, int) {}

func prefetchPair(uintptr) {}
