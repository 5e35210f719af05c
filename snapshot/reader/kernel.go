package reader

import (
	"math/bits"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// locateRecords finds the likely record of the first n hashes, nil if there is none. It uses the
// assembly kernel, which prefetches, if the processor supports it, and otherwise plain Go. The
// build tag purego excludes the assembly.
//
// A key that is not in its primary bucket is usually in the first overflow bucket, so that bucket
// is tried here as well; longer chains are left to the second look. Without this, every key of a
// full bucket took the slow path.
func (q *group) locateRecords(n int, lanes []lane) {
	for lost := q.locatePrimary(n, lanes); lost != 0; lost &= lost - 1 {
		i := bits.TrailingZeros64(lost)
		l := &lanes[int(q.hashes[i]>>16)&(len(lanes)-1)]
		// The kernel has prefetched only the records of primary buckets.
		if q.records[i] = l.overflowRecord(q.hashes[i]); q.records[i] != nil && hasKernel {
			fetchKernel(&q.records[i], 1)
		}
	}
}

// locatePrimary looks only into primary buckets. It returns a bit for each hash that has no record
// there.
func (q *group) locatePrimary(n int, lanes []lane) (lost uint64) {
	if !hasKernel {
		return q.locatePortable(n, lanes)
	}
	return locateKernel(&q.hashes[0], n, &lanes[0], uint64(len(lanes)-1), &q.records[0])
}

// locatePortable is the kernel in plain Go. It touches the buckets of all keys before it reads the
// first one, and then all records, so that the processor loads several at a time.
func (q *group) locatePortable(n int, lanes []lane) (lost uint64) {
	var buckets [groupSize]bucket
	mask := len(lanes) - 1
	for i, h := range q.hashes[:n] {
		buckets[i] = lanes[int(h>>16)&mask].primaryBucket(h)
		_ = buckets[i].fingerprints(0) // an atomic load, which the compiler keeps
	}
	for i, h := range q.hashes[:n] {
		q.records[i] = lanes[int(h>>16)&mask].likelyRecord(buckets[i], h)
		if q.records[i] == nil {
			lost |= 1 << i
			continue
		}
		_ = record{q.records[i]}.version() // as above
	}
	return lost
}

// primaryBucket returns the primary bucket of a hash.
func (l *lane) primaryBucket(hash uint64) bucket {
	n, _ := bits.Mul64(hash, l.buckets)
	return bucket{unsafe.Add(l.index, uintptr(n)*format.BucketSize)}
}

// likelyRecord returns the record of the first slot that has the fingerprint of a hash. It returns
// nil if no slot has it, or if the record is so close to the end of the heap that its length would
// need a check.
func (l *lane) likelyRecord(b bucket, hash uint64) unsafe.Pointer {
	pattern := uint64(format.Fingerprint(hash)) * lanesLow
	m := makeMarks(b.fingerprints(0)^pattern, b.fingerprints(1)^pattern, b.fingerprints(2)^pattern)
	if m == 0 {
		return nil
	}
	ref := uint64(b.ref(m.firstSlot()))
	if ref >= l.units {
		return nil
	}
	return unsafe.Add(l.heap, uintptr(ref)*format.RecordAlign)
}

// overflowRecord returns the likely record of a hash in the bucket that follows its primary one.
func (l *lane) overflowRecord(hash uint64) unsafe.Pointer {
	next := uint64(l.primaryBucket(hash).next())
	// One comparison covers "no overflow bucket", which is 0, and a number past the end: the
	// subtraction wraps around.
	if next-l.buckets >= l.behind {
		return nil
	}
	return l.likelyRecord(bucket{unsafe.Add(l.index, uintptr(next)*format.BucketSize)}, hash)
}
