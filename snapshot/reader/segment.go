package reader

import (
	"math"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// A look-up reads a bucket, which is one cache line, and then only records whose fingerprint equals
// that of the key. The words of a bucket change while readers use it: the publisher stores a
// reference before its fingerprint, so a visible fingerprint always has its reference. An empty
// slot may be filled an instant later, but with a version that the view does not show.

// segment is a mapped generation of one shard.
//
// Everything in it may be damaged. The header was checked when the file was mapped, so sections lie
// within the file. Every reference, length and number that is read later is compared with the end
// of its section before it is followed.
type segment struct {
	// The fields that every look-up needs come first, in one cache line.
	index   unsafe.Pointer
	heap    unsafe.Pointer
	version uint64 // the base
	buckets uint32 // primary ones
	units   uint32 // the end of the heap, in units

	*mapping
	file    string
	head    format.Segment
	heapAt  uint64 // the offset of the heap in the file
	changed []uint64
	order   []uint32
	skip    []uint32
	tree    rtree.Tree
	delta   []deltaEntry
	cells   []uint32
}

// newSegment returns the generation in a mapped file.
func newSegment(m *mapping, file string) (*segment, error) {
	head, err := format.DecodeSegment(m.bytes, uint64(len(m.bytes)))
	if err != nil {
		return nil, err
	}
	g := &segment{mapping: m, file: file, head: head, version: head.Base, buckets: head.Buckets}
	index, _ := head.Find(format.SectionIndex)
	heap, _ := head.Find(format.SectionHeap)
	g.index, g.heap, g.heapAt = unsafe.Add(m.base, index.Offset), unsafe.Add(m.base, heap.Offset), heap.Offset
	// A trailing part of a unit cannot hold a record. The greatest reference is reserved for
	// NoPrev.
	g.units = uint32(min(heap.Size/format.RecordAlign, math.MaxUint32-1))
	if s, ok := head.Find(format.SectionChanged); ok {
		g.changed = unsafe.Slice((*uint64)(unsafe.Add(m.base, s.Offset)), s.Size/8)
	}
	if s, ok := head.Find(format.SectionOrder); ok {
		// DecodeSegment has checked that the section holds Items references.
		g.order = unsafe.Slice((*uint32)(unsafe.Add(m.base, s.Offset)), s.Items)
	}
	if s, ok := head.Find(format.SectionOrderDelta); ok {
		g.skip = unsafe.Slice((*uint32)(unsafe.Add(m.base, s.Offset)), s.Size/4)
	}
	if err := g.bindSpatial(); err != nil {
		return nil, err
	}
	return g, nil
}

// bindSpatial finds the sections of the spatial index, if the table has one.
func (g *segment) bindSpatial() (err error) {
	nodes, ok1 := g.head.Find(format.SectionTreeNodes)
	refs, ok2 := g.head.Find(format.SectionTreeRefs)
	if ok1 && ok2 {
		if g.tree, err = rtree.Open(g.sectionBytes(nodes), g.sectionBytes(refs)); err != nil {
			return err
		}
	}
	cells, ok1 := g.head.Find(format.SectionDeltaCells)
	delta, ok2 := g.head.Find(format.SectionDelta)
	if ok1 && ok2 {
		// Entries and cells are numbered with 32 bits.
		g.cells = unsafe.Slice((*uint32)(unsafe.Add(g.base, cells.Offset)), min(cells.Size/4, math.MaxUint32))
		g.delta = unsafe.Slice((*deltaEntry)(unsafe.Add(g.base, delta.Offset)), min(delta.Size/format.DeltaEntrySize, math.MaxUint32))
	}
	return nil
}

// sectionBytes returns the bytes of a section.
func (g *segment) sectionBytes(s format.Section) []byte { return g.bytes[s.Offset:][:s.Size:s.Size] }

// deltaCount returns the number of complete entries of the spatial delta. The publisher stores the
// count before it links an entry.
func (g *segment) deltaCount() int {
	n := atomic.LoadUint64((*uint64)(unsafe.Add(g.base, format.SegmentDelta)))
	return int(min(n, uint64(len(g.delta))))
}

// treeOffset returns the file offset of the reference of a leaf.
func (g *segment) treeOffset(leaf uint32) uint64 {
	s, _ := g.head.Find(format.SectionTreeRefs)
	return s.Offset + uint64(leaf)*4
}

// deltaOffset returns the file offset of an entry of the spatial delta.
func (g *segment) deltaOffset(entry uint32) uint64 {
	s, _ := g.head.Find(format.SectionDelta)
	return s.Offset + uint64(entry)*format.DeltaEntrySize
}

// wasRecycled reports whether the publisher has reused the file for another generation. The
// publisher clears the magic first. A reader that opened the file by name and locked it too late
// detects that here.
func (m *mapping) wasRecycled(generation uint64) bool {
	word := func(offset uintptr) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Add(m.base, offset))) }
	return word(0) == 0 || word(segmentGeneration) != generation || word(format.SegmentState) == format.SegmentRecycled
}

// segmentGeneration is the offset of the generation in a segment's header.
const segmentGeneration = 24

// checkIdentity checks that the file is the one that the root's entry names.
func (g *segment) checkIdentity(image rhumb.UUID, t format.Table, n int, s format.Shard) error {
	const op rhumb.Op = "reader.segment"
	h := &g.head
	switch {
	case h.Image != image:
		return rhumb.Ef(op, rhumb.Corrupt, "it belongs to image %v, not %v", h.Image, image)
	case h.Table != t.ID || int(h.Shard) != n || h.KeyKind != t.KeyKind:
		return rhumb.Ef(op, rhumb.Corrupt, "it is shard %d of table %v with keys of kind %d, not shard %d of table %v with kind %d",
			h.Shard, h.Table, h.KeyKind, n, t.ID, t.KeyKind)
	case h.Base != s.Base || h.Closed != s.Closed:
		return rhumb.Ef(op, rhumb.Corrupt, "its base is %d closed at %v, the root says %d at %v", h.Base, h.Closed, s.Base, s.Closed)
	}
	return nil
}

// verifySums reads the whole base and compares its checksums.
func (g *segment) verifySums() error {
	for _, s := range g.head.Sections {
		if err := g.head.CheckSum(s, g.sectionBytes(s)); err != nil {
			return err
		}
	}
	return nil
}

// corruptAt returns an error of kind Corrupt that names the file and the offset.
func (g *segment) corruptAt(what string, offset uint64) error {
	return rhumb.Ef("reader.segment", rhumb.Corrupt, "%s: %s at offset %d; restart the node to check and rebuild the image", g.file, what, offset)
}

// refOffset returns the file offset of a record.
func (g *segment) refOffset(ref uint32) uint64 { return g.heapAt + uint64(ref)*format.RecordAlign }

// isChanged reports whether a record of the base may have a newer version. Without the section any
// record may.
func (g *segment) isChanged(ref uint32) bool {
	word := int(ref / 64)
	// The publisher sets the bit before the bucket leads to the newer version, so a reader that
	// needs the version sees the bit.
	return word >= len(g.changed) || atomic.LoadUint64(&g.changed[word])>>(ref%64)&1 != 0
}

// recordAt returns the record at a reference; ok is false if the reference is past the heap.
func (g *segment) recordAt(ref uint32) (record, bool) {
	if ref >= g.units {
		return record{}, false
	}
	return record{unsafe.Add(g.heap, uintptr(ref)*format.RecordAlign)}, true
}

// bucket is a mapped bucket.
type bucket struct{ p unsafe.Pointer }

// bucketAt returns a bucket by its number.
func (g *segment) bucketAt(n uint32) bucket {
	return bucket{unsafe.Add(g.index, uintptr(n)*format.BucketSize)}
}

// fingerprints returns one of the three words of fingerprints.
func (b bucket) fingerprints(i uintptr) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Add(b.p, i*8)))
}

// ref returns the reference in a slot.
func (b bucket) ref(slot int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Add(b.p, format.BucketRefs+uintptr(slot)*4)))
}

// next returns the number of the overflow bucket that follows, 0 for none.
func (b bucket) next() uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Add(b.p, format.BucketNext)))
}

// The constants of the search for a 16-bit lane that is zero (H. Warren, Hacker's Delight, 6-1).
const (
	lanesLow  = 0x0001000100010001
	lanesHigh = 0x8000800080008000
	lastLanes = 0x0000000080008000 // the third word holds two fingerprints
)

// zeroLanes returns a word in which the highest bit of each zero lane is set. It may also set the
// bit of a lane above a zero one, because the subtraction borrows; the lowest bit set is always
// that of a zero lane.
func zeroLanes(w uint64) uint64 { return (w - lanesLow) &^ w & lanesHigh }

// matchLanes marks the fingerprints of a word that equal the pattern, as zeroLanes does. The third
// word of a bucket has only two fingerprints.
func matchLanes(w uint64, word uintptr, pattern uint64) uint64 {
	m := zeroLanes(w ^ pattern)
	// Without the mask the references after the last two fingerprints would be taken for
	// fingerprints.
	if word == 2 {
		m &= lastLanes
	}
	return m
}

// marks are the slots of a bucket whose fingerprint equals a pattern.
type marks uint64

// makeMarks marks the zeros in three words of fingerprints. It has no branch: a misprediction would
// discard the look-ups that the processor has already started. The marks of the three words are
// interleaved in one word.
func makeMarks(w0, w1, w2 uint64) marks {
	return marks(zeroLanes(w0) | zeroLanes(w1)>>1 | zeroLanes(w2)&lastLanes>>2)
}

// firstSlot returns the slot of the lowest mark, or 3 if there is none. The lowest mark of each
// word is a true match, so the lowest of all is one too.
func (m marks) firstSlot() int {
	// The constant sets a bit that maps to slot 3, so that a bucket without a mark needs no branch.
	at := bits.TrailingZeros64(uint64(m | 1<<63))
	return at>>4 + 4*(15-at&15)
}

// findNewest returns the newest record of a key; ok is false if the index does not have the key.
func (g *segment) findNewest(hash uint64, key *lookupKey) (ref uint32, ok bool, err error) {
	fingerprint := format.Fingerprint(hash)
	pattern := uint64(fingerprint) * lanesLow
	n := format.BucketOf(hash, g.buckets)
	// A chain cannot have more buckets than the index. The bound turns a circle, which only damage
	// can make, into an error.
	for range g.head.BucketsMax {
		b := g.bucketAt(n)
		for word := range uintptr(3) {
			w := b.fingerprints(word)
			for m := matchLanes(w, word, pattern); m != 0; m &= m - 1 {
				lane := bits.TrailingZeros64(m) / 16
				// matchLanes may also mark the lane above a match.
				if uint16(w>>(lane*16)) != fingerprint {
					continue
				}
				// The reference is loaded after the fingerprint; the publisher stores them in the
				// opposite order.
				ref := b.ref(int(word)*4 + lane)
				r, ok := g.recordAt(ref)
				if !ok {
					return 0, false, g.corruptAt("a reference points past the heap", g.bucketOffset(n))
				}
				// The word of a named record is its hash. Comparing it first spares most
				// comparisons of names.
				if r.word() == key.word && (!key.named || g.sameName(r, ref, key)) {
					return ref, true, nil
				}
			}
		}
		next, err := g.nextBucket(b, n)
		if err != nil || next == 0 {
			return 0, false, err
		}
		n = next
	}
	return 0, false, g.circleError(n)
}

// nextBucket returns the number of the overflow bucket after bucket n, 0 for none.
func (g *segment) nextBucket(b bucket, n uint32) (uint32, error) {
	next := b.next()
	// Overflow buckets follow the primary ones. A lower number would lead into the chain of other
	// keys.
	if next != 0 && (next < g.head.Buckets || next >= g.head.BucketsMax) {
		return 0, g.corruptAt("a bucket is followed by one that does not exist", g.bucketOffset(n))
	}
	return next, nil
}

// circleError returns the error for a chain of buckets that never ends, which only damage can
// cause.
func (g *segment) circleError(n uint32) error {
	return g.corruptAt("a chain of buckets runs in a circle", g.bucketOffset(n))
}

// bucketOffset returns the file offset of a bucket.
func (g *segment) bucketOffset(n uint32) uint64 {
	return uint64(uintptr(g.index)-uintptr(g.base)) + uint64(n)*format.BucketSize
}
