package reader

import (
	"math/bits"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// locate finds the likely record of the first n hashes, nil where there is none: by the assembly kernel where there is one,
// which prefetches, and in plain Go elsewhere. Build with the tag purego to leave the assembly out.
func (q *group) locate(n int, lanes []lane) {
	for lost := q.locatePrimary(n, lanes); lost != 0; lost &= lost - 1 {
		i := bits.TrailingZeros64(lost)
		l := &lanes[int(q.hashes[i]>>16)&(len(lanes)-1)]
		if q.records[i] = l.overflow(q.hashes[i]); q.records[i] != nil && hasKernel {
			fetchKernel(&q.records[i], 1)
		}
	}
}

// locatePrimary looks only into primary buckets, and gives those of the hashes that have no record there, one bit each.
func (q *group) locatePrimary(n int, lanes []lane) (lost uint64) {
	if !hasKernel {
		return q.locatePortable(n, lanes)
	}
	return locateKernel(&q.hashes[0], n, &lanes[0], uint64(len(lanes)-1), &q.records[0])
}

// locatePortable is the kernel in plain Go: it touches the buckets of all keys before it looks into the first, and then all
// records, so that the processor fetches several at a time.
func (q *group) locatePortable(n int, lanes []lane) (lost uint64) {
	var buckets [groupSize]bucket
	mask := len(lanes) - 1
	for i, h := range q.hashes[:n] {
		buckets[i] = lanes[int(h>>16)&mask].bucket(h)
		_ = buckets[i].fingerprints(0) // an atomic load, which the compiler keeps
	}
	for i, h := range q.hashes[:n] {
		q.records[i] = lanes[int(h>>16)&mask].likely(buckets[i], h)
		if q.records[i] == nil {
			lost |= 1 << i
			continue
		}
		_ = record{q.records[i]}.version() // as above
	}
	return lost
}

// bucket gives the primary bucket of a hash.
func (l *lane) bucket(hash uint64) bucket {
	n, _ := bits.Mul64(hash, l.buckets)
	return bucket{unsafe.Add(l.index, uintptr(n)*format.BucketSize)}
}

// likely gives the record of the first slot of a bucket that has the fingerprint of a hash; nil when there is none, or it is
// so near the heap's end that its length needs a check.
func (l *lane) likely(b bucket, hash uint64) unsafe.Pointer {
	pattern := uint64(format.Fingerprint(hash)) * lanesLow
	m := makeMarks(b.fingerprints(0)^pattern, b.fingerprints(1)^pattern, b.fingerprints(2)^pattern)
	if m == 0 {
		return nil
	}
	ref := uint64(b.ref(m.slot()))
	if ref >= l.units {
		return nil
	}
	return unsafe.Add(l.heap, uintptr(ref)*format.RecordAlign)
}

// overflow gives the likely record of a hash in the bucket that follows its primary one.
func (l *lane) overflow(hash uint64) unsafe.Pointer {
	next := uint64(l.bucket(hash).next())
	if next-l.buckets >= l.behind {
		return nil
	}
	return l.likely(bucket{unsafe.Add(l.index, uintptr(next)*format.BucketSize)}, hash)
}
