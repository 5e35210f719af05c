package reader

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestKernel runs the assembly and plain Go over random buckets: where a fingerprint matches, the record is that of a slot
// with it; where none does, or the reference leads past the heap, it is that of the bucket that follows, if there is one.
func TestKernel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const buckets, behind, units, shards = 61, 7, 1000, 4
	var lanes [shards]lane
	for i := range lanes {
		index := alignedBytes((buckets + behind) * format.BucketSize)
		for b := range buckets + behind {
			fillBucket(rng, index[b*format.BucketSize:])
			next := rng.IntN(buckets + 2*behind) // some lead nowhere, and some back
			binary.LittleEndian.PutUint32(index[b*format.BucketSize+format.BucketNext:], uint32(next))
		}
		heap := alignedBytes(units * format.RecordAlign)
		lanes[i] = lane{index: unsafe.Pointer(&index[0]), heap: unsafe.Pointer(&heap[0]), buckets: buckets, behind: behind, units: units}
	}
	var found [2]int
	had := hasKernel
	for range 2000 {
		n := 1 + rng.IntN(groupSize)
		used := lanes[:1<<rng.IntN(3)]
		var kernel, plain group
		for i := range n {
			kernel.hashes[i] = rng.Uint64()&^0xffff | uint64(rng.IntN(16))
		}
		plain.hashes = kernel.hashes
		lost := [2]uint64{kernel.locatePrimary(n, used), plain.locatePortable(n, used)}
		for way, q := range []*group{&kernel, &plain} {
			primary := q.records
			hasKernel = had && way == 0
			q.locateRecords(n, used)
			hasKernel = had
			for i, hash := range q.hashes[:n] {
				l := &used[int(hash>>16)&(len(used)-1)]
				b := l.primaryBucket(hash)
				if isLost := lost[way]>>i&1 != 0; !l.may(b, hash, primary[i]) || isLost != (primary[i] == nil) {
					t.Fatalf("way %d: hash %#x leads to %v, lost %v", way, hash, primary[i], isLost)
				}
				next := uint64(b.next())
				if primary[i] == nil && next >= buckets && next < buckets+behind {
					found[way]++
					b = bucket{unsafe.Add(l.index, next*format.BucketSize)}
				}
				if !l.may(b, hash, q.records[i]) {
					t.Fatalf("way %d: hash %#x leads to %v by bucket %d", way, hash, q.records[i], next)
				}
			}
		}
	}
	if found[0] == 0 || found[1] == 0 {
		t.Errorf("%v hashes led to an overflow bucket", found)
	}
}

// may reports whether a record may be taken for a hash from a bucket: nil only where no slot matches, or one that leads past
// the heap.
func (l *lane) may(b bucket, hash uint64, p unsafe.Pointer) bool {
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
	return !matches && p == nil
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
