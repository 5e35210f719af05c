package reader

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestKernelAgrees runs the assembly and plain Go over random buckets: whatever fingerprint matches first is what both take.
func TestKernelAgrees(t *testing.T) {
	if !hasKernel {
		t.Skip("there is no kernel for this processor")
	}
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
		lanes[i] = lane{unsafe.Pointer(&index[0]), unsafe.Pointer(&heap[0]), buckets, units}
	}
	for range 2000 {
		n := 1 + rng.IntN(groupSize)
		used := lanes[:1<<rng.IntN(3)]
		var kernel, plain group
		for i := range n {
			kernel.hashes[i] = rng.Uint64()&^0xffff | uint64(rng.IntN(16))
		}
		plain.hashes = kernel.hashes
		locateKernel(&kernel.hashes[0], n, &used[0], uint64(len(used)-1), &kernel.records[0])
		plain.locatePortable(n, used)
		for i := range n {
			if plain.records[i] != nil && kernel.records[i] != plain.records[i] {
				t.Fatalf("hash %#x: the kernel gives %v, plain Go %v", kernel.hashes[i], kernel.records[i], plain.records[i])
			}
			l := used[int(kernel.hashes[i]>>16)&(len(used)-1)]
			if p := kernel.records[i]; p != nil && uintptr(p)-uintptr(l.heap) >= units*format.RecordAlign {
				t.Fatalf("hash %#x: the kernel gives a record outside the heap", kernel.hashes[i])
			}
		}
	}
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
