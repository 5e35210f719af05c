package image

import "math/bits"

// mixKey returns the key of record i. It is the finalizer of SplitMix64, a bijection, so keys are
// distinct. c/worker.c has the same function.
func mixKey(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// shuffledIndex returns element i of a permutation of 0 to n-1 that depends on the seed. It needs
// no memory, unlike a shuffled slice: rounds of multiplication and shift permute the next power of
// two, and repeat until the result is below n. c/worker.c has the same function.
func shuffledIndex(i, n, seed uint64) uint64 {
	width := max(bits.Len64(n-1), 1)
	mask := uint64(1)<<width - 1
	i %= n
	for {
		// Each step is a bijection on the power of two, so the loop ends on a cycle and yields a
		// permutation.
		for round := range uint64(3) {
			i = (i*0x9E3779B97F4A7C15 + mixKey(seed+round)) & mask
			i ^= i >> (width/2 + 1)
		}
		if i < n {
			return i
		}
	}
}

// shuffledKeys fills dst with keys of records, each once in n, in the order of the seed.
func shuffledKeys(dst []uint64, from, n, seed uint64) {
	for i := range dst {
		dst[i] = mixKey(shuffledIndex(from+uint64(i), n, seed))
	}
}
