package inspect

import (
	"io"
	"math"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// The publisher writes while a generation is read here, and knows nothing of it. What it changes in place are links and
// counters. It stores them in a fixed order, data, counter, link, and capturing reads them in the opposite one.

// segment is a generation as it was captured: a copy of what changes in place, and the mapped file for everything that no
// commit changes any more. The copy is about a tenth of a shard with records of 128 bytes.
//
// All later reading goes through the captured links and counters. So a check or a copy sees one state, however many commits
// arrive meanwhile.
type segment struct {
	file   string
	table  format.Table
	index  uint32 // of the shard in its table
	head   format.Segment
	keys   *format.Root
	header []byte // a copy
	links  map[format.SectionType][]byte
	mapped []byte
	limit  uint32 // the version of the image, relative to the base

	// The counters as they stood, brought within the sections.
	tail, done, overflow, deltas, words uint32
	units                               uint32 // of the heap
}

// unitsMax is the greatest number of units of a heap.
const unitsMax = math.MaxUint32 - 1

// captureSegment captures a generation: first the links, and then the counters of what the links lead to. The order
// matters. The publisher writes an entry, then its counter, then the link to it; read in the reverse order, everything that
// a captured link leads to is within the captured counter and whole.
//
// It may fault, as may everything that reads the segment later; see guardFaults.
func (im *Image) captureSegment(t *Table, s *Shard) *segment {
	g := &segment{
		file: s.File, table: t.Table, index: s.Index, head: s.Head, keys: &im.Head, mapped: s.m.bytes,
		header: make([]byte, format.SegmentHeader), links: map[format.SectionType][]byte{},
		limit: uint32(min(im.Version-min(s.Base, im.Version), uint64(format.AbortedVersion-1))),
	}
	// The first part of the header never changes.
	copy(g.header, s.m.bytes[:segmentMutable])
	// The skip list is first because its copy is repeated: whatever is captured later has at least its keys.
	words := g.captureSkip(s)
	for _, links := range []format.SectionType{format.SectionIndex, format.SectionDeltaCells, format.SectionChanged} {
		g.captureLinks(s, links)
	}
	// The counters come last, so that they cover everything that the captured links lead to.
	s.m.copyWords(g.header[segmentMutable:], segmentMutable)
	// The skip list has its own counter: nodes may have come since it was copied.
	le.PutUint64(g.header[format.SegmentOrder:], words)
	g.readCounters()
	return g
}

// segmentMutable is where the words of the header begin that change.
const segmentMutable = 4096

// captureLinks copies a section of links word by word.
func (g *segment) captureLinks(s *Shard, t format.SectionType) {
	if sec, ok := g.head.Find(t); ok {
		if g.links[t] == nil {
			g.links[t] = make([]byte, sec.Size)
		}
		s.m.copyWords(g.links[t][:sec.Size&^7], sec.Offset)
	}
}

// skipTries bounds the copies of a skip list that changes.
const skipTries = 1_000

// captureSkip copies the skip list and returns the number of words that its nodes take. Links of a skip list lead to any
// place, also to a node that comes while the copy is under way. So the list is copied again until no node came meanwhile;
// then all nodes that links lead to are whole.
func (g *segment) captureSkip(s *Shard) (words uint64) {
	for range skipTries {
		words = s.m.load64(format.SegmentOrder)
		g.captureLinks(s, format.SectionOrderDelta)
		if s.m.load64(format.SegmentOrder) == words {
			break
		}
	}
	return words
}

// usedContent returns what a section holds, without the part that is free.
func (g *segment) usedContent(sec format.Section) []byte {
	p := g.sectionBytes(sec.Type)
	switch sec.Type {
	case format.SectionHeap:
		return p[:uint64(g.tail)*format.RecordAlign]
	case format.SectionDelta:
		return p[:uint64(g.deltas)*format.DeltaEntrySize]
	}
	return p
}

// readCounters reads the counters. Each is brought within what its section holds, so that later code can trust them;
// checkCounters reports those that were not.
func (g *segment) readCounters() {
	counter := func(offset int, most uint64) uint32 { return uint32(min(le.Uint64(g.header[offset:]), most, unitsMax)) }
	heap, _ := g.head.Find(format.SectionHeap)
	delta, _ := g.head.Find(format.SectionDelta)
	skip, _ := g.head.Find(format.SectionOrderDelta)
	g.units = uint32(min(heap.Size/format.RecordAlign, unitsMax))
	g.tail = counter(format.SegmentAppendTail, uint64(g.units))
	g.done = counter(format.SegmentAppendHead, uint64(g.units))
	g.overflow = counter(format.SegmentOverflow, uint64(g.head.BucketsMax-g.head.Buckets))
	g.deltas = counter(format.SegmentDelta, delta.Size/format.DeltaEntrySize)
	g.words = counter(format.SegmentOrder, skip.Size/4)
}

// sectionBytes returns the bytes of a section, nil if there is none: the copy of a section of links, and the mapped bytes
// of any other.
func (g *segment) sectionBytes(t format.SectionType) []byte {
	if p := g.links[t]; p != nil {
		return p
	}
	sec, ok := g.head.Find(t)
	if !ok {
		return nil
	}
	return g.mapped[sec.Offset:][:sec.Size]
}

// record is a record of a captured heap, decoded and within its bounds.
type record struct {
	ref, units uint32
	word       uint64
	ver, prev  uint32
	flags      uint16
	bytes      []byte // without the filling
	name       []byte
	shardKey   bool
	box        format.Box
}

// recordAt decodes the record at a reference below end. what says why there cannot be a record, and is empty if there is
// one.
func (g *segment) recordAt(ref, end uint32) (r record, what string) {
	if ref >= end {
		return r, "a reference leads past the records"
	}
	p := g.sectionBytes(format.SectionHeap)[uint64(ref)*format.RecordAlign : uint64(end)*format.RecordAlign]
	r = record{
		ref: ref, word: le.Uint64(p), ver: le.Uint32(p[format.RecordVersion:]), prev: le.Uint32(p[format.RecordPrev:]),
		flags: le.Uint16(p[format.RecordFlags:]),
	}
	// The flags are powers of two: dividing and multiplying them yields the 8 bytes of each field that is there.
	at := format.RecordHeadSize + int(r.flags&format.FlagHLC)/2 + int(r.flags&format.FlagExpiry)*2
	if r.flags&format.FlagBox != 0 {
		b := p[at:]
		r.box = format.Box{MinX: int32(le.Uint32(b)), MinY: int32(le.Uint32(b[4:])), MaxX: int32(le.Uint32(b[8:])), MaxY: int32(le.Uint32(b[12:]))}
		at += 16
	}
	if g.head.KeyKind == format.KeyName {
		n := int(p[at]) // the fixed parts lie within one unit
		// A length of 255 stands for a shard key, which always has 16 bytes.
		if r.shardKey = n == format.ShardKeyLen; r.shardKey {
			n = format.ShardKeySize
		}
		if at+1+n > len(p) {
			return r, "a key ends past the records"
		}
		r.name = p[at+1 : at+1+n]
		at += 1 + n
	}
	value := int(le.Uint16(p[format.RecordLen:]))
	if value == int(format.LongValue) {
		if at+format.LongLenSize > len(p) {
			return r, "a record ends past the records"
		}
		// A short length marked as long would be read differently by readers that look at the short field only.
		if value = int(le.Uint32(p[at:])); value < int(format.LongValue) || value > format.ValueSizeMax {
			return r, "a record has a value that is too long, or is marked as long and is not"
		}
		at += format.LongLenSize
	}
	if at+value > len(p) {
		return r, "a record ends past the records"
	}
	r.bytes, r.units = p[:at+value], format.Units(at+value)
	return r, ""
}

// hashOf returns the hash of a record's key. It is computed from the name and not taken from the record, which may be
// damaged.
func (g *segment) hashOf(r *record) uint64 {
	if g.head.KeyKind == format.KeyName {
		return g.keys.HashName(r.name, r.shardKey)
	}
	return g.keys.HashNumber(r.word)
}

// sameKey reports whether two records have the same key.
func sameKey(a, b *record) bool {
	return a.word == b.word && a.shardKey == b.shardKey && string(a.name) == string(b.name)
}

// sealHeader turns the header into that of an image that ends at the captured version; writeSealed does the same with the
// records.
func (g *segment) sealHeader() {
	live := uint64(0)
	for n := range g.head.Buckets + g.overflow {
		for _, ref := range g.bucketAt(n).takenRefs() {
			if r, ok := g.shownVersion(ref); ok && r.flags&format.FlagTombstone == 0 {
				live++
			}
		}
	}
	le.PutUint64(g.header[format.SegmentState:], format.SegmentLiveState) // the live file may be superseded by now
	// The copy has no open commit: records of later versions are marked as aborted when they are written.
	le.PutUint64(g.header[format.SegmentAppendHead:], uint64(g.tail))
	le.PutUint64(g.header[format.SegmentLive:], live)
}

// writeBlock is how much of a segment is copied at a time, in bytes. It is a multiple of the alignment of records, so that
// the head of a record is always in one block.
const writeBlock = 1 << 20

// writeSealed writes the sealed file block by block. Records of later versions are marked as aborted, as recovery would
// mark those of a commit that was never finished.
func (g *segment) writeSealed(w io.Writer) error {
	block := make([]byte, writeBlock)
	next := uint32(0) // record
	for at := uint64(0); at < uint64(len(g.mapped)); at += writeBlock {
		b := block[:min(writeBlock, uint64(len(g.mapped))-at)]
		// What no section covers, and what is free in a section, is zero in the copy, so that it compresses to nothing.
		clear(b)
		overlayBytes(b, at, g.header, 0)
		for _, sec := range g.head.Sections {
			overlayBytes(b, at, g.usedContent(sec), sec.Offset)
		}
		for next < g.tail && uint64(g.heapOffset(next)) < at+uint64(len(b)) {
			r, what := g.recordAt(next, g.tail)
			if what != "" {
				return rhumb.Ef("inspect.write", rhumb.Corrupt, "%s", Fault{g.file, g.heapOffset(next), what})
			}
			if r.ver > g.limit {
				le.PutUint32(b[uint64(g.heapOffset(next))-at+format.RecordVersion:], format.AbortedVersion)
			}
			next += r.units
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// overlayBytes copies the part that two pieces of a file have in common. Both are given with their offsets.
func overlayBytes(dst []byte, at uint64, src []byte, from uint64) {
	first, end := max(at, from), min(at+uint64(len(dst)), from+uint64(len(src)))
	if first < end {
		copy(dst[first-at:end-at], src[first-from:])
	}
}

// shownVersion follows a chain to the version that the image shows.
func (g *segment) shownVersion(ref uint32) (record, bool) {
	for {
		r, what := g.recordAt(ref, g.tail)
		if what != "" {
			return r, false
		}
		if r.ver <= g.limit {
			return r, true
		}
		if r.prev == format.NoPrev || r.prev >= ref {
			return r, false
		}
		ref = r.prev
	}
}

// heapOffset returns the file offset of a record.
func (g *segment) heapOffset(ref uint32) int64 {
	sec, _ := g.head.Find(format.SectionHeap)
	return int64(sec.Offset + uint64(ref)*format.RecordAlign)
}

// bucket is a captured bucket.
type bucket []byte

// bucketAt returns a bucket by its number.
func (g *segment) bucketAt(n uint32) bucket {
	return bucket(g.sectionBytes(format.SectionIndex)[uint64(n)*format.BucketSize:][:format.BucketSize])
}

// fingerprint returns the fingerprint in a slot, 0 for a free one.
func (b bucket) fingerprint(slot int) uint16 { return le.Uint16(b[slot*2:]) }
func (b bucket) ref(slot int) uint32         { return le.Uint32(b[format.BucketRefs+slot*4:]) }
func (b bucket) next() uint32                { return le.Uint32(b[format.BucketNext:]) }

// takenRefs returns the references of the slots in use.
func (b bucket) takenRefs() (refs []uint32) {
	for slot := range format.BucketSlots {
		if b.fingerprint(slot) != 0 {
			refs = append(refs, b.ref(slot))
		}
	}
	return refs
}
