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

// segment is a mapped generation of one shard.
type segment struct {
	// What every look-up needs comes first, in one cache line.
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

// newSegment finds the sections of a mapped segment file.
func newSegment(m *mapping, file string) (*segment, error) {
	head, err := format.DecodeSegment(m.bytes, uint64(len(m.bytes)))
	if err != nil {
		return nil, err
	}
	g := &segment{mapping: m, file: file, head: head, version: head.Base, buckets: head.Buckets}
	index, _ := head.Find(format.SectionIndex)
	heap, _ := head.Find(format.SectionHeap)
	g.index, g.heap, g.heapAt = unsafe.Add(m.base, index.Offset), unsafe.Add(m.base, heap.Offset), heap.Offset
	g.units = uint32(min(heap.Size/format.RecordAlign, math.MaxUint32-1))
	if s, ok := head.Find(format.SectionChanged); ok {
		g.changed = unsafe.Slice((*uint64)(unsafe.Add(m.base, s.Offset)), s.Size/8)
	}
	if s, ok := head.Find(format.SectionOrder); ok {
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

// bindSpatial finds the sections of the spatial index, which a generation may lack.
func (g *segment) bindSpatial() (err error) {
	nodes, ok1 := g.head.Find(format.SectionTreeNodes)
	refs, ok2 := g.head.Find(format.SectionTreeRefs)
	if ok1 && ok2 {
		if g.tree, err = rtree.Open(g.section(nodes), g.section(refs)); err != nil {
			return err
		}
	}
	cells, ok1 := g.head.Find(format.SectionDeltaCells)
	delta, ok2 := g.head.Find(format.SectionDelta)
	if ok1 && ok2 {
		g.cells = unsafe.Slice((*uint32)(unsafe.Add(g.base, cells.Offset)), min(cells.Size/4, math.MaxUint32))
		g.delta = unsafe.Slice((*deltaEntry)(unsafe.Add(g.base, delta.Offset)), min(delta.Size/format.DeltaEntrySize, math.MaxUint32))
	}
	return nil
}

// section gives the bytes of a section.
func (g *segment) section(s format.Section) []byte { return g.bytes[s.Offset:][:s.Size:s.Size] }

// deltaCount gives the number of entries of the spatial delta that are complete.
func (g *segment) deltaCount() int {
	n := atomic.LoadUint64((*uint64)(unsafe.Add(g.base, format.SegmentDelta)))
	return int(min(n, uint64(len(g.delta))))
}

// treeOffset and deltaOffset give the offset of a leaf's reference and of an entry in the file.
func (g *segment) treeOffset(leaf uint32) uint64 {
	s, _ := g.head.Find(format.SectionTreeRefs)
	return s.Offset + uint64(leaf)*4
}

func (g *segment) deltaOffset(entry uint32) uint64 {
	s, _ := g.head.Find(format.SectionDelta)
	return s.Offset + uint64(entry)*format.DeltaEntrySize
}

// recycled reports whether the publisher has taken the file for another generation: it clears the magic first.
func (m *mapping) recycled(generation uint64) bool {
	word := func(offset uintptr) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Add(m.base, offset))) }
	return word(0) == 0 || word(segmentGeneration) != generation || word(format.SegmentState) == format.SegmentRecycled
}

// segmentGeneration is the offset of the generation in a segment's header.
const segmentGeneration = 24

// agrees checks that the file is what the root says.
func (g *segment) agrees(image rhumb.UUID, t format.Table, n int, s format.Shard) error {
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

// verify reads the whole base and compares its checksums.
func (g *segment) verify() error {
	for _, s := range g.head.Sections {
		if err := g.head.CheckSum(s, g.section(s)); err != nil {
			return err
		}
	}
	return nil
}

// corrupt says what is wrong and where.
func (g *segment) corrupt(what string, offset uint64) error {
	return rhumb.Ef("reader.segment", rhumb.Corrupt, "%s: %s at offset %d; the node can build the image anew", g.file, what, offset)
}

// refOffset gives the offset of a record in the file.
func (g *segment) refOffset(ref uint32) uint64 { return g.heapAt + uint64(ref)*format.RecordAlign }

// isChanged reports whether a base record may have a newer version. Without a bitmap it always may.
func (g *segment) isChanged(ref uint32) bool {
	word := int(ref / 64)
	return word >= len(g.changed) || atomic.LoadUint64(&g.changed[word])>>(ref%64)&1 != 0
}

// record gives the head of a record; ok is false when the reference points past the heap.
func (g *segment) record(ref uint32) (record, bool) {
	if ref >= g.units {
		return record{}, false
	}
	return record{unsafe.Add(g.heap, uintptr(ref)*format.RecordAlign)}, true
}

// bucket is a mapped bucket.
type bucket struct{ p unsafe.Pointer }

func (g *segment) bucket(n uint32) bucket {
	return bucket{unsafe.Add(g.index, uintptr(n)*format.BucketSize)}
}

func (b bucket) fingerprints(i uintptr) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Add(b.p, i*8)))
}

func (b bucket) ref(slot int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Add(b.p, format.BucketRefs+uintptr(slot)*4)))
}

func (b bucket) next() uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Add(b.p, format.BucketNext)))
}

// The constants of the search for a 16-bit lane that is zero (H. Warren, Hacker's Delight, 6-1).
const (
	lanesLow  = 0x0001000100010001
	lanesHigh = 0x8000800080008000
	lastLanes = 0x0000000080008000 // the third word holds two fingerprints
)

// zeroLanes marks the highest bit of each lane that is zero. It may also mark lanes above one that is, but that one is the
// lowest it marks.
func zeroLanes(w uint64) uint64 { return (w - lanesLow) &^ w & lanesHigh }

// match marks in a word of fingerprints those that equal the pattern, as zeroLanes does.
func match(w uint64, word uintptr, pattern uint64) uint64 {
	m := zeroLanes(w ^ pattern)
	if word == 2 {
		m &= lastLanes
	}
	return m
}

// marks are the slots of a bucket whose fingerprint equals a pattern.
type marks uint64

// makeMarks marks the zeros in three words of fingerprints, without a branch, so that the processor goes on to the next
// look-up while it waits for the bucket. The marks of the words are laid side by side.
func makeMarks(w0, w1, w2 uint64) marks {
	return marks(zeroLanes(w0) | zeroLanes(w1)>>1 | zeroLanes(w2)&lastLanes>>2)
}

// slot gives that of the lowest mark, which is a true one in each word, and so it is in all; 3 when there is none.
func (m marks) slot() int {
	at := bits.TrailingZeros64(uint64(m | 1<<63))
	return at>>4 + 4*(15-at&15)
}

// lookup finds the newest record of a key, or gives ok false.
func (g *segment) lookup(hash uint64, key *lookupKey) (ref uint32, ok bool, err error) {
	fingerprint := format.Fingerprint(hash)
	pattern := uint64(fingerprint) * lanesLow
	n := format.BucketOf(hash, g.buckets)
	for range g.head.BucketsMax {
		b := g.bucket(n)
		for word := range uintptr(3) {
			w := b.fingerprints(word)
			for m := match(w, word, pattern); m != 0; m &= m - 1 {
				lane := bits.TrailingZeros64(m) / 16
				if uint16(w>>(lane*16)) != fingerprint {
					continue
				}
				ref := b.ref(int(word)*4 + lane)
				r, ok := g.record(ref)
				if !ok {
					return 0, false, g.corrupt("a reference points past the heap", g.bucketOffset(n))
				}
				if r.word() == key.word && (!key.named || g.sameName(r, ref, key)) {
					return ref, true, nil
				}
			}
		}
		next, err := g.follow(b, n)
		if err != nil || next == 0 {
			return 0, false, err
		}
		n = next
	}
	return 0, false, g.circle(n)
}

// follow gives the number of the overflow bucket after bucket n, 0 for none.
func (g *segment) follow(b bucket, n uint32) (uint32, error) {
	next := b.next()
	if next != 0 && (next < g.head.Buckets || next >= g.head.BucketsMax) {
		return 0, g.corrupt("a bucket is followed by one that does not exist", g.bucketOffset(n))
	}
	return next, nil
}

func (g *segment) circle(n uint32) error {
	return g.corrupt("a chain of buckets runs in a circle", g.bucketOffset(n))
}

func (g *segment) bucketOffset(n uint32) uint64 {
	return uint64(uintptr(g.index)-uintptr(g.base)) + uint64(n)*format.BucketSize
}
