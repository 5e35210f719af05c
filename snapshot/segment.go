package snapshot

import (
	"bytes"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// bucket is a cache line of the index; see format.BucketSlots. Two fingerprints share a word.
type bucket struct {
	fingerprints [format.BucketSlots / 2]uint32
	refs         [format.BucketSlots]uint32
	next         uint32
}

// recordHead is the fixed part of a record.
type recordHead struct {
	key       uint64 // or the hash of a name
	ver, prev uint32
	size      uint16 // of the value
	flags     uint16
	sum       uint32
}

// deltaEntry is an entry of the spatial delta.
type deltaEntry struct {
	box            format.Box
	ref, next, ver uint32
	zero           uint32
}

// segment is a generation of a shard as the publisher sees it: the mapped sections, and the counters of which the file has
// copies.
type segment struct {
	file   *mapping
	head   format.Segment
	kind   format.KeyKind
	summed bool         // every record carries a checksum
	keys   *format.Root // hashes them

	index     []bucket
	heap      []byte
	changed   []uint64
	treeNodes []byte
	treeRefs  []byte
	delta     []deltaEntry
	cells     []uint32
	order     []uint32
	skip      []uint32

	units    uint32 // that the heap has place for
	done     uint32 // end of the committed records: append_head
	raised   uint32 // end of the complete records: append_tail
	tail     uint32 // end of what was written
	overflow uint32 // overflow buckets taken
	deltas   uint32 // delta entries taken
	words    uint32 // skip list words taken
	live     int64  // keys with a visible value
	links    int64  // what the open commit adds to live
	pending  uint64 // records of the open commit
	expires  int64  // the first time at which a record of the base ends, math.MaxInt64 for never
	dead     int64  // tombstones in the base
	waste    uint64 // units of the base that they take, and the places that records left for a larger one
	split    bool   // a box of the base crosses the antimeridian
	// effort is that of the R-tree when its leaves were sorted, 0 for unknown; see rtree.Tree.Effort.
	effort float64
}

// bind sets the views of the sections.
func (s *segment) bind() {
	for _, sec := range s.head.Sections {
		mem := s.file.mem[sec.Offset:][:sec.Size:sec.Size]
		switch sec.Type {
		case format.SectionIndex:
			s.index = view[bucket](mem)[:s.head.BucketsMax]
		case format.SectionHeap:
			s.heap = mem
			s.units = uint32(min(sec.Size/format.RecordAlign, unitsMax))
		case format.SectionChanged:
			s.changed = view[uint64](mem)
		case format.SectionTreeNodes:
			s.treeNodes = mem
		case format.SectionTreeRefs:
			s.treeRefs = mem
		case format.SectionDelta:
			s.delta = view[deltaEntry](mem)
		case format.SectionDeltaCells:
			s.cells = view[uint32](mem)
		case format.SectionOrder:
			s.order = view[uint32](mem)[:sec.Items]
		case format.SectionOrderDelta:
			s.skip = view[uint32](mem)
		}
	}
}

// record gives the head of a record, which is followed by its payload.
func (s *segment) record(ref uint32) *recordHead { return headAt(s.heap, ref) }

func headAt(heap []byte, ref uint32) *recordHead {
	off := int(ref) * format.RecordAlign
	_ = heap[off+format.RecordHeadSize-1]
	return (*recordHead)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(heap)), off))
}

// relink changes the part of a record's head that tells of its place among the versions, and its checksum with it.
func (s *segment) relink(h *recordHead, ver, prev uint32, flags uint16) {
	if s.summed {
		h.sum ^= format.LinkChecksum(h.ver, h.prev, h.flags) ^ format.LinkChecksum(ver, prev, flags)
	}
	h.ver, h.prev, h.flags = ver, prev, flags
}

// relative gives a version as records of the generation count it. One that is 2^32 commits from the base, as in a shard that
// is never written to, still shows all that was committed, and nothing that was aborted.
func (s *segment) relative(version uint64) uint32 {
	return uint32(min(version-s.head.Base, uint64(format.AbortedVersion-1)))
}

// payload gives what follows the head, from the heap that holds it.
func payload(heap []byte, ref uint32) []byte {
	return heap[int(ref)*format.RecordAlign+format.RecordHeadSize:]
}

// hlc gives the timestamp of a record, 0 without one.
func hlc(heap []byte, ref uint32) rhumb.Timestamp {
	if headAt(heap, ref).flags&format.FlagHLC == 0 {
		return 0
	}
	return rhumb.Timestamp(le.Uint64(payload(heap, ref)))
}

// expiry gives when a record ends, 0 for never.
func expiry(heap []byte, ref uint32) int64 {
	flags := headAt(heap, ref).flags
	if flags&format.FlagExpiry == 0 {
		return 0
	}
	return int64(le.Uint64(payload(heap, ref)[flags&format.FlagHLC/2:]))
}

// note takes into account what later rolls want to know of a record of the base.
func (s *segment) note(ref uint32) {
	switch h, end := s.record(ref), expiry(s.heap, ref); {
	case h.ver == format.AbortedVersion:
		s.waste += uint64(s.unitsOf(ref))
		return
	case h.flags&format.FlagTombstone != 0:
		s.dead++
		s.waste += uint64(s.unitsOf(ref))
	case end != 0:
		s.expires = min(s.expires, end)
	}
	if b, ok := box(s.heap, ref); ok && b.Crosses() {
		s.split = true
	}
}

// box gives the box of a record; ok is false when it has none.
func box(heap []byte, ref uint32) (b format.Box, ok bool) {
	flags := headAt(heap, ref).flags
	if flags&format.FlagBox == 0 {
		return b, false
	}
	p := payload(heap, ref)[boxOffset(flags):]
	return format.Box{
		MinX: int32(le.Uint32(p)), MinY: int32(le.Uint32(p[4:])), MaxX: int32(le.Uint32(p[8:])), MaxY: int32(le.Uint32(p[12:])),
	}, true
}

// sameBox reports whether two records have one box, or none.
func sameBox(heap []byte, a, b uint32) bool {
	x, y := headAt(heap, a).flags, headAt(heap, b).flags
	switch {
	case (x^y)&format.FlagBox != 0:
		return false
	case x&format.FlagBox == 0:
		return true
	}
	p, q := payload(heap, a)[boxOffset(x):], payload(heap, b)[boxOffset(y):]
	return le.Uint64(p) == le.Uint64(q) && le.Uint64(p[8:]) == le.Uint64(q[8:])
}

// boxOffset gives where in the payload the box stands.
func boxOffset(flags uint16) int { return int(flags&format.FlagHLC/2 + flags&format.FlagExpiry*2) }

// keyOffset gives where in the payload the key of a name stands.
func keyOffset(flags uint16) int {
	return boxOffset(flags) + int(flags&format.FlagBox*8)
}

// nameKey gives the length byte of a name and the name.
func nameKey(heap []byte, ref uint32) []byte {
	p := payload(heap, ref)[keyOffset(headAt(heap, ref).flags):]
	return p[:1+nameSize(p[0])]
}

func nameSize(length byte) int {
	if length == format.ShardKeyLen {
		return format.ShardKeySize
	}
	return int(length)
}

// value gives where in a record its value stands, and how long it is.
func value(kind format.KeyKind, heap []byte, ref uint32) (at, n int) {
	h := headAt(heap, ref)
	at = format.RecordHeadSize + keyOffset(h.flags)
	if kind == format.KeyName {
		at += 1 + nameSize(heap[int(ref)*format.RecordAlign+at])
	}
	if h.size == format.LongValue {
		return at + format.LongLenSize, int(le.Uint32(heap[int(ref)*format.RecordAlign+at:]))
	}
	return at, int(h.size)
}

// recordSize gives the size of a record in bytes.
func recordSize(kind format.KeyKind, heap []byte, ref uint32) int {
	at, n := value(kind, heap, ref)
	return at + n
}

// sameKey reports whether two records of one kind have one key; their hashes are compared already when they are names.
func sameKey(kind format.KeyKind, aHeap []byte, a uint32, bHeap []byte, b uint32) bool {
	if headAt(aHeap, a).key != headAt(bHeap, b).key {
		return false
	}
	return kind == format.KeyUint64 || bytes.Equal(nameKey(aHeap, a), nameKey(bHeap, b))
}

// hashOf gives the hash of a record's key.
func hashOf(r *format.Root, kind format.KeyKind, h *recordHead) uint64 {
	if kind == format.KeyName {
		return h.key
	}
	return r.HashNumber(h.key)
}

// fingerprint gives the fingerprint in a slot.
func (b *bucket) fingerprint(slot int) uint16 {
	return uint16(b.fingerprints[slot/2] >> (slot & 1 * 16))
}

// setFingerprint takes a slot that was free.
func (b *bucket) setFingerprint(slot int, f uint16) {
	w := b.fingerprints[slot/2] | uint32(f)<<(slot&1*16)
	atomic.StoreUint32(&b.fingerprints[slot/2], w)
}

// setChanged says that the base record has a newer version.
func (s *segment) setChanged(ref uint32) {
	w := &s.changed[ref/64]
	if bit := uint64(1) << (ref % 64); *w&bit == 0 {
		atomic.StoreUint64(w, *w|bit)
	}
}

func (s *segment) isChanged(ref uint32) bool { return s.changed[ref/64]>>(ref%64)&1 != 0 }
