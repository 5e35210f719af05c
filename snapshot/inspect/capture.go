package inspect

import (
	"io"
	"math"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// segment is a generation as it was captured: what is changed in place, copied, and what no commit changes any more, in the
// mapped file. What is copied is about a tenth of a shard with records of 128 bytes.
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

// capture takes a generation: links first, and then the counters that say how much of what they lead to is there. It may fault,
// as may all that looks at the segment afterwards; see guard.
func (im *Image) capture(t *Table, s *Shard) *segment {
	g := &segment{
		file: s.File, table: t.Table, index: s.Index, head: s.Head, keys: &im.Head, mapped: s.m.bytes,
		header: make([]byte, format.SegmentHeader), links: map[format.SectionType][]byte{},
		limit: uint32(min(im.Version-min(s.Base, im.Version), uint64(format.AbortedVersion-1))),
	}
	copy(g.header, s.m.bytes[:segmentMutable])
	words := g.captureSkip(s)
	for _, links := range []format.SectionType{format.SectionIndex, format.SectionDeltaCells, format.SectionChanged} {
		g.captureLinks(s, links)
	}
	s.m.copyWords(g.header[segmentMutable:], segmentMutable)
	le.PutUint64(g.header[format.SegmentOrder:], words)
	g.readCounters()
	return g
}

// segmentMutable is where the header's words begin that change.
const segmentMutable = 4096

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

// captureSkip copies the skip list, in which links lead to any place, again and again until no node came meanwhile: then all
// nodes that links lead to are whole. It gives the number of words that the nodes take.
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

// content gives what a section holds, without what is free in it.
func (g *segment) content(sec format.Section) []byte {
	p := g.section(sec.Type)
	switch sec.Type {
	case format.SectionHeap:
		return p[:uint64(g.tail)*format.RecordAlign]
	case format.SectionDelta:
		return p[:uint64(g.deltas)*format.DeltaEntrySize]
	}
	return p
}

// readCounters takes the counters, each brought within what its section holds.
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

// section gives the bytes of a section, nil without one.
func (g *segment) section(t format.SectionType) []byte {
	if p := g.links[t]; p != nil {
		return p
	}
	sec, ok := g.head.Find(t)
	if !ok {
		return nil
	}
	return g.mapped[sec.Offset:][:sec.Size]
}

// record is a record of a captured heap.
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

// record reads a record that lies below end; what tells why it cannot be one.
func (g *segment) record(ref, end uint32) (r record, what string) {
	if ref >= end {
		return r, "a reference leads behind the records"
	}
	p := g.section(format.SectionHeap)[uint64(ref)*format.RecordAlign : uint64(end)*format.RecordAlign]
	r = record{
		ref: ref, word: le.Uint64(p), ver: le.Uint32(p[format.RecordVersion:]), prev: le.Uint32(p[format.RecordPrev:]),
		flags: le.Uint16(p[format.RecordFlags:]),
	}
	at := format.RecordHeadSize + int(r.flags&format.FlagHLC)/2 + int(r.flags&format.FlagExpiry)*2
	if r.flags&format.FlagBox != 0 {
		b := p[at:]
		r.box = format.Box{MinX: int32(le.Uint32(b)), MinY: int32(le.Uint32(b[4:])), MaxX: int32(le.Uint32(b[8:])), MaxY: int32(le.Uint32(b[12:]))}
		at += 16
	}
	if g.head.KeyKind == format.KeyName {
		n := int(p[at]) // the fixed parts lie within one unit
		if r.shardKey = n == format.ShardKeyLen; r.shardKey {
			n = format.ShardKeySize
		}
		if at+1+n > len(p) {
			return r, "a key ends behind the records"
		}
		r.name = p[at+1 : at+1+n]
		at += 1 + n
	}
	value := int(le.Uint16(p[format.RecordLen:]))
	if value == int(format.LongValue) {
		if at+format.LongLenSize > len(p) {
			return r, "a record ends behind the records"
		}
		if value = int(le.Uint32(p[at:])); value < int(format.LongValue) || value > format.ValueSizeMax {
			return r, "a record has a value that is too long, or is marked as long and is not"
		}
		at += format.LongLenSize
	}
	if at+value > len(p) {
		return r, "a record ends behind the records"
	}
	r.bytes, r.units = p[:at+value], format.Units(at+value)
	return r, ""
}

// hash gives the hash of a record's key.
func (g *segment) hash(r *record) uint64 {
	if g.head.KeyKind == format.KeyName {
		return g.keys.HashName(r.name, r.shardKey)
	}
	return g.keys.HashNumber(r.word)
}

func sameKey(a, b *record) bool {
	return a.word == b.word && a.shardKey == b.shardKey && string(a.name) == string(b.name)
}

// seal makes the header that of an image that ends at the captured version; write makes the records so.
func (g *segment) seal() {
	live := uint64(0)
	for n := range g.head.Buckets + g.overflow {
		for _, ref := range g.bucket(n).taken() {
			if r, ok := g.shown(ref); ok && r.flags&format.FlagTombstone == 0 {
				live++
			}
		}
	}
	le.PutUint64(g.header[format.SegmentState:], format.SegmentLiveState) // it may have been superseded since
	le.PutUint64(g.header[format.SegmentAppendHead:], uint64(g.tail))
	le.PutUint64(g.header[format.SegmentLive:], live)
}

// writeBlock is how much of a segment is copied at a time, in bytes; a multiple of what records are aligned to.
const writeBlock = 1 << 20

// write writes the sealed file block by block. Records of later versions are marked as those of a commit that was never finished.
func (g *segment) write(w io.Writer) error {
	block := make([]byte, writeBlock)
	next := uint32(0) // record
	for at := uint64(0); at < uint64(len(g.mapped)); at += writeBlock {
		b := block[:min(writeBlock, uint64(len(g.mapped))-at)]
		clear(b)
		overlay(b, at, g.header, 0)
		for _, sec := range g.head.Sections {
			overlay(b, at, g.content(sec), sec.Offset)
		}
		for next < g.tail && uint64(g.heapOffset(next)) < at+uint64(len(b)) {
			r, what := g.record(next, g.tail)
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

// overlay copies what two parts of a file have in common, given with their offsets.
func overlay(dst []byte, at uint64, src []byte, from uint64) {
	first, end := max(at, from), min(at+uint64(len(dst)), from+uint64(len(src)))
	if first < end {
		copy(dst[first-at:end-at], src[first-from:])
	}
}

// shown follows a chain to the version that the image shows.
func (g *segment) shown(ref uint32) (record, bool) {
	for {
		r, what := g.record(ref, g.tail)
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

func (g *segment) heapOffset(ref uint32) int64 {
	sec, _ := g.head.Find(format.SectionHeap)
	return int64(sec.Offset + uint64(ref)*format.RecordAlign)
}

// bucket is a captured bucket.
type bucket []byte

func (g *segment) bucket(n uint32) bucket {
	return bucket(g.section(format.SectionIndex)[uint64(n)*format.BucketSize:][:format.BucketSize])
}

func (b bucket) fingerprint(slot int) uint16 { return le.Uint16(b[slot*2:]) }
func (b bucket) ref(slot int) uint32         { return le.Uint32(b[format.BucketRefs+slot*4:]) }
func (b bucket) next() uint32                { return le.Uint32(b[format.BucketNext:]) }

// taken lists the references of the slots in use.
func (b bucket) taken() (refs []uint32) {
	for slot := range format.BucketSlots {
		if b.fingerprint(slot) != 0 {
			refs = append(refs, b.ref(slot))
		}
	}
	return refs
}
