package inspect

import (
	"io"
	"math"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// The publisher keeps writing while a generation is read here. It changes only links and counters
// in place, and stores them in a fixed order: data, counter, link. A capture reads them in the
// opposite order.

// segment is a captured generation: a copy of the parts that change in place, and the mapped file
// for everything that no commit changes. The copy is about a tenth of a shard with records of 128
// bytes.
//
// All later reading goes through the captured links and counters. So a check or a copy sees one
// consistent state, however many commits arrive meanwhile.
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

	// The captured counters, clamped to the sections.
	tail, done, overflow, deltas, words uint32
	units                               uint32 // of the heap
}

// unitsMax is the greatest number of units of a heap.
const unitsMax = math.MaxUint32 - 1

// captureSegment captures a generation: first the links, and then the counters of their targets.
// The order matters. The publisher writes an entry, then its counter, then the link to it. Reading
// in the reverse order guarantees that the target of every captured link is complete and within the
// captured counter.
//
// It may fault, like everything that reads the segment later; see guardFaults.
func (im *Image) captureSegment(t *Table, s *Shard) *segment {
	g := &segment{
		file: s.File, table: t.Table, index: s.Index, head: s.Head, keys: &im.Head, mapped: s.m.bytes,
		header: make([]byte, format.SegmentHeader), links: map[format.SectionType][]byte{},
		limit: uint32(min(im.Version-min(s.Base, im.Version), uint64(format.AbortedVersion-1))),
	}
	// The first part of the header never changes.
	copy(g.header, s.m.bytes[:segmentMutable])
	// The skip list comes first because its copy may be repeated: everything captured later
	// contains at least its keys.
	words := g.captureSkip(s)
	for _, links := range []format.SectionType{format.SectionIndex, format.SectionDeltaCells, format.SectionChanged} {
		g.captureLinks(s, links)
	}
	// The counters come last, so that they cover the targets of all captured links.
	s.m.copyWords(g.header[segmentMutable:], segmentMutable)
	// The counter of the skip list was read with its copy: nodes may have been added since.
	le.PutUint64(g.header[format.SegmentOrder:], words)
	g.readCounters()
	return g
}

// segmentMutable is where the words of the header begin that change.
const segmentMutable = 4096

// captureLinks copies a section of links word by word.
func (g *segment) captureLinks(s *Shard, t format.SectionType) {
	// A repeated copy reuses the memory of the first one.
	if sec, ok := g.head.Find(t); ok {
		if g.links[t] == nil {
			g.links[t] = make([]byte, sec.Size)
		}
		// Words are copied atomically, so a link is either the old or the new one and never half of
		// each.
		s.m.copyWords(g.links[t][:sec.Size&^7], sec.Offset)
	}
}

// skipTries bounds the copies of a skip list that changes.
const skipTries = 1_000

// captureSkip copies the skip list and returns the number of words that its nodes take. A link of a
// skip list may lead anywhere, also to a node that is added during the copy. So the list is copied
// again until no node was added meanwhile; then every linked node is complete.
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

// usedContent returns the used part of a section.
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

// readCounters reads the counters. Each is clamped to the size of its section, so that later code
// can trust it; checkCounters reports counters that were out of range.
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

// sectionBytes returns the bytes of a section, nil if there is none: the copy of a section of
// links, and the mapped bytes of any other.
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

// record is a record of a captured heap, decoded and within its bounds. name and bytes alias the
// mapping, so reading them may fault; see guardFaults.
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

// recordAt decodes the record at a reference below end. If there is none, what returns the reason;
// otherwise what is empty. It is the only function that reads lengths from a heap, and it checks
// each one before use, so its callers need not check bounds.
func (g *segment) recordAt(ref, end uint32) (r record, what string) {
	// All bounds are checked against end and not against the section: beyond it bytes may be from
	// an older generation.
	if ref >= end {
		return r, "a reference leads past the records"
	}
	p := g.sectionBytes(format.SectionHeap)[uint64(ref)*format.RecordAlign : uint64(end)*format.RecordAlign]
	r = record{
		ref: ref, word: le.Uint64(p), ver: le.Uint32(p[format.RecordVersion:]), prev: le.Uint32(p[format.RecordPrev:]),
		flags: le.Uint16(p[format.RecordFlags:]),
	}
	// The flags are powers of two: dividing and multiplying them yields the 8 bytes of each field
	// that is there.
	at := format.RecordHeadSize + int(r.flags&format.FlagHLC)/2 + int(r.flags&format.FlagExpiry)*2
	if r.flags&format.FlagBox != 0 {
		b := p[at:]
		r.box = format.Box{MinX: int32(le.Uint32(b)), MinY: int32(le.Uint32(b[4:])), MaxX: int32(le.Uint32(b[8:])), MaxY: int32(le.Uint32(b[12:]))}
		at += 16
	}
	if g.head.KeyKind == format.KeyName {
		n := int(p[at]) // the fixed parts lie within one unit
		// A length of 255 marks a shard key, which always has 16 bytes.
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
		// Only values that do not fit the short field may use the long one: a record has exactly
		// one valid encoding.
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

// hashOf returns the hash of a record's key. It is computed from the name and not taken from the
// record, which may be damaged.
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

// sealHeader changes the header to that of an image that ends at the captured version; writeSealed
// does the same for the records. Every record up to the tail counts as committed then, so
// append_head moves to the tail.
func (g *segment) sealHeader() {
	// Counted and not copied: the counter in the file may already include later commits.
	live := uint64(0)
	for n := range g.head.Buckets + g.overflow {
		for _, ref := range g.bucketAt(n).takenRefs() {
			if r, ok := g.shownVersion(ref); ok && r.flags&format.FlagTombstone == 0 {
				live++
			}
		}
	}
	le.PutUint64(g.header[format.SegmentState:], format.SegmentLiveState) // the source may be superseded by now
	// The copy has no open commit: records of later versions are marked as aborted when they are
	// written.
	le.PutUint64(g.header[format.SegmentAppendHead:], uint64(g.tail))
	le.PutUint64(g.header[format.SegmentLive:], live)
}

// writeBlock is how much of a segment is copied at a time, in bytes. It is a multiple of the
// alignment of records, so that the head of a record is always in one block.
const writeBlock = 1 << 20

// writeSealed writes the sealed file block by block. Records of later versions are marked as
// aborted, as recovery would mark those of a commit that was never finished.
func (g *segment) writeSealed(w io.Writer) error {
	block := make([]byte, writeBlock)
	next := uint32(0) // record
	for at := uint64(0); at < uint64(len(g.mapped)); at += writeBlock {
		b := block[:min(writeBlock, uint64(len(g.mapped))-at)]
		// Gaps between sections and free parts of sections are zero in the copy, so that they
		// compress to almost nothing.
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

// overlayBytes copies the bytes that two pieces of a file have in common. at and from are the file
// offsets of the pieces. A block of the copy is assembled from several pieces: the header, and the
// used part of each section that overlaps the block.
func overlayBytes(dst []byte, at uint64, src []byte, from uint64) {
	first, end := max(at, from), min(at+uint64(len(dst)), from+uint64(len(src)))
	if first < end {
		copy(dst[first-at:end-at], src[first-from:])
	}
}

// shownVersion follows a chain from its newest record to the version that the image shows.
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
