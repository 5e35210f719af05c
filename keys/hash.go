package keys

import (
	"bytes"

	"github.com/rhumbdb/rhumb"
)

// The constants of Fowler, Noll and Vo's hashes (draft-eastlake-fnv).
const (
	fnv64Offset = 0xcbf29ce484222325
	fnv64Prime  = 0x100000001b3
	fnv32Offset = 0x811c9dc5
	fnv32Prime  = 0x01000193
)

// HashSlot gives the slot, counted from the first of its block, to which a named key hashes: FNV-1a of 64 bits over the
// name up to the first colocate byte, its halves folded by xor, modulo n. A colocate byte of 0 hashes the whole name. The
// table does not enter, so tables of one class with one colocate byte put names that are equal up to it beside each
// other. n is at least 1.
func HashSlot(name []byte, colocate byte, n int) rhumb.Slot {
	if colocate != 0 {
		if i := bytes.IndexByte(name, colocate); i >= 0 {
			name = name[:i]
		}
	}
	h := uint64(fnv64Offset)
	for _, c := range name {
		h ^= uint64(c)
		h *= fnv64Prime
	}
	return rhumb.Slot(uint32(h^h>>32) % uint32(n))
}

// FNV1Bucket gives the bucket, modulo n, in which the seed's shard scripts put a name: FNV-1 of 32 bits, which multiplies
// before it xors. It hashes bytes; the seed's C++ version xors a signed char and so differs beyond ASCII. n is at least 1.
func FNV1Bucket(name []byte, n uint32) uint32 { return fnv1(name) % n }

func fnv1(b []byte) uint32 {
	h := uint32(fnv32Offset)
	for _, c := range b {
		h *= fnv32Prime
		h ^= uint32(c)
	}
	return h
}
