package segment

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// The index is a hash table of buckets. A bucket is one cache line: ten fingerprints of 16 bits,
// ten references, and the number of an overflow bucket. A look-up compares all fingerprints of a
// bucket as three words, and then reads only the records whose fingerprint is equal. Slots are
// filled from the first on and never emptied, so that the number of slots in use follows from the
// fingerprints and needs no counter that readers could see out of step.

const (
	lanesLow  = 0x0001000100010001 // the lowest bit of each 16-bit lane
	lanesHigh = 0x8000800080008000
)

// bucket is a cache line of the index; see format.BucketSlots. Two fingerprints share a word.
type bucket struct {
	fingerprints [format.BucketSlots / 2]uint32
	refs         [format.BucketSlots]uint32
	next         uint32
}

// place is where the reference of a key is, or where it would be inserted.
type place struct {
	bucket *bucket
	slot   int
	found  bool
}

// fingerprint returns the fingerprint in a slot.
func (b *bucket) fingerprint(slot int) uint16 {
	return uint16(b.fingerprints[slot/2] >> (slot & 1 * 16))
}

// setFingerprint fills a slot that was free.
func (b *bucket) setFingerprint(slot int, f uint16) {
	w := b.fingerprints[slot/2] | uint32(f)<<(slot&1*16)
	atomic.StoreUint32(&b.fingerprints[slot/2], w)
}

// fingerprintLanes returns the fingerprints as three words of four, four and two lanes.
func (b *bucket) fingerprintLanes() (w0, w1, w2 uint64) {
	p := (*[2]uint64)(unsafe.Pointer(&b.fingerprints)) // a bucket is aligned to its size
	return p[0], p[1], uint64(b.fingerprints[4])
}

// matchLanes returns a word with bit 16*lane+15 set for each lane that may equal the fingerprint.
// It sets the bit of every lane that is equal; the borrow of the subtraction may set the bit of a
// lane above an equal one too.
func matchLanes(w, pattern uint64) uint64 {
	x := w ^ pattern
	return (x - lanesLow) &^ x & lanesHigh
}

// slotsTaken returns the number of slots in use.
func (b *bucket) slotsTaken() int {
	w0, w1, w2 := b.fingerprintLanes()
	switch {
	case w0>>48 == 0:
		return (bits.Len64(w0) + 15) / 16
	case w1>>48 == 0:
		return 4 + (bits.Len64(w1)+15)/16
	}
	return 8 + (bits.Len64(w2)+15)/16
}

// firstCandidate returns the first slot that may hold the key; ok is false if this bucket has none.
func (b *bucket) firstCandidate(pattern uint64) (slot int, ok bool) {
	w0, w1, w2 := b.fingerprintLanes()
	switch m0, m1, m2 := matchLanes(w0, pattern), matchLanes(w1, pattern), matchLanes(w2, pattern)&0xFFFFFFFF; {
	case m0 != 0:
		return bits.TrailingZeros64(m0) / 16, true
	case m1 != 0:
		return 4 + bits.TrailingZeros64(m1)/16, true
	case m2 != 0:
		return 8 + bits.TrailingZeros64(m2)/16, true
	}
	return 0, false
}

// hashOf returns the hash of the key of a record. A record of a name has the hash in its head.
func (s *Segment) hashOf(ref uint32) uint64 {
	if head := s.Heap.At(ref); s.Heap.Kind == format.KeyUint64 {
		return s.keys.HashNumber(head.Key)
	} else {
		return head.Key
	}
}

// primaryBucket returns the bucket that a look-up of a hash begins with.
func (s *Segment) primaryBucket(hash uint64) *bucket {
	return &s.index[format.BucketOf(hash, s.Head.Buckets)]
}

// bucketAddress returns the address of the primary bucket of a hash, for prefetching.
func (s *Segment) bucketAddress(hash uint64) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(s.index))) + uintptr(format.BucketOf(hash, s.Head.Buckets))*format.BucketSize
}

// likelyPlace returns the place where a key most likely is, without reading the record there. found
// is false if the primary bucket has no candidate.
func (s *Segment) likelyPlace(hash uint64) place {
	b := s.primaryBucket(hash)
	slot, ok := b.firstCandidate(uint64(format.Fingerprint(hash)) * lanesLow)
	return place{b, slot, ok}
}

// probe looks for the key of a record. The record may be in another heap.
func (s *Segment) probe(hash uint64, heap Heap, ref uint32) place {
	b := s.primaryBucket(hash)
	pattern := uint64(format.Fingerprint(hash)) * lanesLow
	for {
		w0, w1, w2 := b.fingerprintLanes()
		for i, w := range [3]uint64{w0, w1, w2} {
			// m &= m-1 drops the lowest bit: the lanes are tried from the first slot on.
			for m := matchLanes(w, pattern); m != 0; m &= m - 1 {
				// matchLanes may name a lane that is not equal, or one past the last slot. Each bit
				// represents one lane; m &= m-1 drops the lowest.
				slot := 4*i + bits.TrailingZeros64(m)/16
				if slot < format.BucketSlots && b.fingerprint(slot) == uint16(pattern) && heap.sameKey(ref, s.Heap, b.refs[slot]) {
					return place{b, slot, true}
				}
			}
		}
		if b.next == 0 {
			return place{b, b.slotsTaken(), false}
		}
		b = &s.index[b.next]
	}
}

// placeOfNew returns the place for a key that the index is known to lack. It compares no keys.
func (s *Segment) placeOfNew(hash uint64) place {
	b := s.primaryBucket(hash)
	for b.next != 0 {
		b = &s.index[b.next]
	}
	return place{b, b.slotsTaken(), false}
}

// insertAt puts the reference of a new key at the place that probe returned. It reports false if no
// bucket is left.
//
// Readers look at the bucket meanwhile. So the order is fixed: the count of overflow buckets before
// the link to one, and the reference before the fingerprint that makes readers follow it.
func (s *Segment) insertAt(at place, hash uint64, ref uint32) bool {
	b, slot := at.bucket, at.slot
	// The bucket is full. Overflow buckets are taken in order and never given back, so that a chain
	// leads to ever higher numbers.
	if slot == format.BucketSlots {
		next := s.Head.Buckets + s.overflow
		if next == s.Head.BucketsMax {
			return false
		}
		s.overflow++
		s.File.Store64(format.SegmentOverflow, uint64(s.overflow))
		atomic.StoreUint32(&b.next, next)
		b, slot = &s.index[next], 0
	}
	atomic.StoreUint32(&b.refs[slot], ref)
	b.setFingerprint(slot, format.Fingerprint(hash))
	return true
}

// NewestOf returns the newest reference of the key of a record; ok is false if the index does not
// have the key.
func (s *Segment) NewestOf(hash uint64, heap Heap, ref uint32) (newest uint32, ok bool) {
	at := s.probe(hash, heap, ref)
	if !at.found {
		return 0, false
	}
	return at.bucket.refs[at.slot], true
}

// CopyIndex fills the index with a copy of the index of an older segment with as many primary
// buckets, in which moved replaces each reference at or above base. moved reports false for a
// reference that has no place in the new segment, and CopyIndex then reports false too. A nil moved
// replaces nothing.
//
// The index of a kept layout is copied whole because almost all of its references stay right.
// References are replaced slot by slot. It was tried to find the slots by the keys that changed:
// that took two passes and a second index to compare with, was misled by records that were linked
// and never put into the index, and was no faster.
func (s *Segment) CopyIndex(old *Segment, base uint32, moved func(ref uint32) (to uint32, ok bool)) bool {
	// Buckets after those in use must be empty, whatever the recycled file held: slotsTaken counts
	// what is not zero.
	n := copy(s.index, old.index[:old.Head.Buckets+old.overflow])
	clear(s.index[n:])
	s.overflow = old.overflow
	if moved == nil {
		return true
	}
	for i := range s.index[:n] {
		refs := &s.index[i].refs
		for slot, ref := range refs {
			if ref < base {
				continue
			}
			to, ok := moved(ref)
			if !ok {
				return false
			}
			refs[slot] = to
		}
	}
	return true
}

// CanCopyIndex reports whether the index of an older segment has as many primary buckets as this
// one and fits into it. The bucket of a hash depends on the number of primary buckets.
func (s *Segment) CanCopyIndex(old *Segment) bool {
	return s.Head.Buckets == old.Head.Buckets && s.Head.BucketsMax >= old.Head.Buckets+old.overflow
}

// RebuildIndex builds the index of a base from its records. It reports false if overflow buckets
// run out.
func (b *Builder) RebuildIndex(s *Segment) bool {
	clear(s.index)
	s.overflow = 0
	batch := &b.batch
	for ref := uint32(0); ref < s.Head.BaseUnits; {
		for batch.n = 0; batch.n < GroupSize && ref < s.Head.BaseUnits; {
			if !s.Heap.IsAborted(ref) {
				hash := s.hashOf(ref)
				batch.addrs[batch.n] = s.bucketAddress(hash)
				batch.Add(s, hash, ref)
			}
			ref += s.Heap.Units(ref)
		}
		prefetch(&batch.addrs, batch.n)
		for i, hash := range batch.hashes[:batch.n] {
			// The keys of a base are distinct, so none is compared.
			if !s.insertAt(s.placeOfNew(hash), hash, batch.refs[i]) {
				return false
			}
		}
	}
	return true
}
