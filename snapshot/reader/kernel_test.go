package reader

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestKernel runs the assembly and plain Go over random buckets: where a fingerprint matches, the record is that of a slot
// with it, and none when the reference leads past the heap; where none does, it is any record of the heap.
func TestKernel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const buckets, units, shards = 61, 1000, 4
	var lanes [shards]lane
	for i := range lanes {
		index := alignedBytes(buckets * format.BucketSize)
		for b := range buckets {
			fillBucket(rng, index[b*format.BucketSize:])
		}
		heap := alignedBytes(units * format.RecordAlign)
		lanes[i] = lane{index: unsafe.Pointer(&index[0]), heap: unsafe.Pointer(&heap[0]), buckets: buckets, units: units}
	}
	for range 2000 {
		n := 1 + rng.IntN(groupSize)
		used := lanes[:1<<rng.IntN(3)]
		var kernel, plain group
		for i := range n {
			kernel.hashes[i] = rng.Uint64()&^0xffff | uint64(rng.IntN(16))
		}
		plain.hashes = kernel.hashes
		kernel.locate(n, used)
		plain.locatePortable(n, used)
		for i, hash := range kernel.hashes[:n] {
			l := &used[int(hash>>16)&(len(used)-1)]
			for _, p := range []unsafe.Pointer{kernel.records[i], plain.records[i]} {
				if !l.may(hash, p) {
					t.Fatalf("hash %#x leads to unit %d", hash, (uintptr(p)-uintptr(l.heap))/format.RecordAlign)
				}
			}
		}
	}
}

// may reports whether a record may be taken for a hash.
func (l *lane) may(hash uint64, p unsafe.Pointer) bool {
	b := bucket{unsafe.Add(l.index, uintptr(format.BucketOf(hash, uint32(l.buckets)))*format.BucketSize)}
	matches := false
	for slot := range format.BucketSlots {
		if uint16(b.fingerprints(uintptr(slot/4))>>(slot%4*16)) != format.Fingerprint(hash) {
			continue
		}
		matches = true
		ref := uint64(b.ref(slot))
		if p == nil && ref >= l.units || p != nil && ref < l.units && p == unsafe.Add(l.heap, ref*format.RecordAlign) {
			return true
		}
	}
	return !matches && (p == nil || uintptr(p)-uintptr(l.heap) < uintptr(l.units)*format.RecordAlign)
}

// fillBucket takes some slots, with few different fingerprints, and some references that lead nowhere.
func fillBucket(rng *rand.Rand, p []byte) {
	for slot := range rng.IntN(format.BucketSlots + 1) {
		*(*uint16)(unsafe.Pointer(&p[slot*2])) = uint16(1 + rng.IntN(15))
		*(*uint32)(unsafe.Pointer(&p[format.BucketRefs+slot*4])) = uint32(rng.IntN(1100))
	}
}

func alignedBytes(n int) []byte {
	b := make([]byte, n+64)
	return b[-uintptr(unsafe.Pointer(&b[0]))&63:][:n]
}
