package snapshot

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

const (
	lanesLow  = 0x0001000100010001
	lanesHigh = 0x8000800080008000
)

// place is where a key's reference stands, or would stand.
type place struct {
	bucket *bucket
	slot   int
	found  bool
}

// lanes gives the fingerprints as three words of four, four and two.
func (b *bucket) lanes() (w0, w1, w2 uint64) {
	p := (*[2]uint64)(unsafe.Pointer(&b.fingerprints)) // a bucket is aligned to its size
	return p[0], p[1], uint64(b.fingerprints[4])
}

// matches gives a bit at 16*lane+15 for each lane that may equal the fingerprint; equal ones are never left out.
func matches(w, pattern uint64) uint64 {
	x := w ^ pattern
	return (x - lanesLow) &^ x & lanesHigh
}

// taken gives the number of slots in use: they are taken from the first on.
func (b *bucket) taken() int {
	w0, w1, w2 := b.lanes()
	switch {
	case w0>>48 == 0:
		return (bits.Len64(w0) + 15) / 16
	case w1>>48 == 0:
		return 4 + (bits.Len64(w1)+15)/16
	}
	return 8 + (bits.Len64(w2)+15)/16
}

// candidate gives the first slot that may hold the key; ok is false when the primary bucket has none.
func (b *bucket) candidate(pattern uint64) (slot int, ok bool) {
	w0, w1, w2 := b.lanes()
	switch m0, m1, m2 := matches(w0, pattern), matches(w1, pattern), matches(w2, pattern)&0xFFFFFFFF; {
	case m0 != 0:
		return bits.TrailingZeros64(m0) / 16, true
	case m1 != 0:
		return 4 + bits.TrailingZeros64(m1)/16, true
	case m2 != 0:
		return 8 + bits.TrailingZeros64(m2)/16, true
	}
	return 0, false
}

// likely gives the place where a key most likely is, without a look at the record there; found is false when there is none.
func (s *segment) likely(hash uint64) place {
	b := &s.index[format.BucketOf(hash, s.head.Buckets)]
	slot, ok := b.candidate(uint64(format.Fingerprint(hash)) * lanesLow)
	return place{b, slot, ok}
}

// probe looks for the key of a record in heap, which need not be the segment's.
func (s *segment) probe(hash uint64, heap []byte, ref uint32) place {
	b := &s.index[format.BucketOf(hash, s.head.Buckets)]
	pattern := uint64(format.Fingerprint(hash)) * lanesLow
	for {
		w0, w1, w2 := b.lanes()
		for i, w := range [3]uint64{w0, w1, w2} {
			for m := matches(w, pattern); m != 0; m &= m - 1 {
				slot := 4*i + bits.TrailingZeros64(m)/16
				if slot < format.BucketSlots && b.fingerprint(slot) == uint16(pattern) && sameKey(s.kind, heap, ref, s.heap, b.refs[slot]) {
					return place{b, slot, true}
				}
			}
		}
		if b.next == 0 {
			return place{b, b.taken(), false}
		}
		b = &s.index[b.next]
	}
}

// end gives the place of a key that the index is known to lack.
func (s *segment) end(hash uint64) place {
	b := &s.index[format.BucketOf(hash, s.head.Buckets)]
	for b.next != 0 {
		b = &s.index[b.next]
	}
	return place{b, b.taken(), false}
}

// insert puts a reference to a new key at the place that probe gave; false says that there is no bucket left.
func (s *segment) insert(at place, hash uint64, ref uint32) bool {
	b, slot := at.bucket, at.slot
	if slot == format.BucketSlots {
		next := s.head.Buckets + s.overflow
		if next == s.head.BucketsMax {
			return false
		}
		s.overflow++
		s.file.store64(format.SegmentOverflow, uint64(s.overflow))
		atomic.StoreUint32(&b.next, next)
		b, slot = &s.index[next], 0
	}
	atomic.StoreUint32(&b.refs[slot], ref)
	b.setFingerprint(slot, format.Fingerprint(hash))
	return true
}

// find gives the newest reference of the key of a record.
func (s *segment) find(hash uint64, heap []byte, ref uint32) (uint32, bool) {
	at := s.probe(hash, heap, ref)
	if !at.found {
		return 0, false
	}
	return at.bucket.refs[at.slot], true
}
