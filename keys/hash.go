package keys

import (
	"bytes"

	"github.com/rhumbdb/rhumb"
)

// The constants of the hash FNV-1a of Fowler, Noll and Vo (draft-eastlake-fnv).
const (
	fnv64Offset = 0xcbf29ce484222325
	fnv64Prime  = 0x100000001b3
)

// HashSlot returns the slot of a named key, counted from the first slot of its block: FNV-1a of 64
// bits over the name up to the first colocate byte, its halves folded by xor, modulo n. A colocate
// byte of 0 hashes the whole name. The table is not hashed, so tables of one class with the same
// colocate byte store names that share the hashed part in the same range. n must be at least 1.
func HashSlot(name []byte, colocate byte, n int) rhumb.Slot {
	if colocate != 0 {
		if i := bytes.IndexByte(name, colocate); i >= 0 {
			name = name[:i]
		}
	}
	// The function is part of the stored format: every client and node must compute the same slot.
	h := uint64(fnv64Offset)
	for _, c := range name {
		h ^= uint64(c)
		h *= fnv64Prime
	}
	return rhumb.Slot(uint32(h^h>>32) % uint32(n))
}
