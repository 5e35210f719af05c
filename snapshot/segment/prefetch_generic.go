//go:build !amd64 && !arm64

package segment

// Without assembly for this processor nothing is prefetched; the code is right without it, and slower.

func prefetch(*[GroupSize]uintptr, int) {}

func prefetchPairs(*[GroupSize]uintptr, int) {}

func prefetchPair(uintptr) {}
