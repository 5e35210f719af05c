package inspect

import (
	"math"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// segment is a generation as it was captured: bytes of its own, which nobody changes.
type segment struct {
	file  string
	table format.Table
	index uint32 // of the shard in its table
	head  format.Segment
	keys  *format.Root
	buf   []byte
	limit uint32 // the version of the image, relative to the base

	// The counters as they stood, brought within the sections.
	tail, done, overflow, deltas, words uint32
	units                               uint32 // of the heap
}

// unitsMax is the greatest number of units of a heap.
const unitsMax = math.MaxUint32 - 1

// capture reads a generation: links first, and what they lead to last.
func (im *Image) capture(t *Table, s *Shard) (*segment, error) {
	const op rhumb.Op = "inspect.capture"
	g := &segment{
		file: s.File, table: t.Table, index: s.Index, head: s.Head, keys: &im.Head, buf: make([]byte, len(s.m.bytes)),
		limit: uint32(min(im.Version-min(s.Base, im.Version), uint64(format.AbortedVersion-1))),
	}
	err := guard(op, s.File, func() {
		copy(g.buf[:4096], s.m.bytes)
		words := g.captureSkip(s)
		for _, links := range []format.SectionType{format.SectionIndex, format.SectionDeltaCells, format.SectionChanged} {
			if sec, ok := s.Head.Find(links); ok {
				s.m.copyWords(g.buf[sec.Offset:][:sec.Size&^7], sec.Offset)
			}
		}
		s.m.copyWords(g.buf[4096:format.SegmentHeader], 4096)
		le.PutUint64(g.buf[format.SegmentOrder:], words)
		g.readCounters()
		for _, sec := range s.Head.Sections {
			if n := g.contentSize(sec); n > 0 {
				copy(g.buf[sec.Offset:][:n], s.m.bytes[sec.Offset:])
			}
		}
	})
	return g, err
}

// skipTries bounds the copies of a skip list that changes.
const skipTries = 1_000

// captureSkip copies the skip list, in which links lead to any place, again and again until no node came meanwhile: then all
// nodes that links lead to are whole. It gives the number of words that the nodes take.
func (g *segment) captureSkip(s *Shard) (words uint64) {
	sec, ok := g.head.Find(format.SectionOrderDelta)
	for range skipTries {
		s.m.copyWords(g.buf[format.SegmentOrder:][:8], format.SegmentOrder)
		words = le.Uint64(g.buf[format.SegmentOrder:])
		if !ok {
			return words
		}
		s.m.copyWords(g.buf[sec.Offset:][:sec.Size&^7], sec.Offset)
		s.m.copyWords(g.buf[format.SegmentOrder:][:8], format.SegmentOrder)
		if le.Uint64(g.buf[format.SegmentOrder:]) == words {
			break
		}
	}
	return words
}

// contentSize gives how much of a section that is not a link holds something.
func (g *segment) contentSize(sec format.Section) uint64 {
	switch sec.Type {
	case format.SectionHeap:
		return min(uint64(g.tail)*format.RecordAlign, sec.Size)
	case format.SectionDelta:
		return min(uint64(g.deltas)*format.DeltaEntrySize, sec.Size)
	case format.SectionTreeNodes, format.SectionTreeRefs, format.SectionOrder:
		return sec.Size
	}
	return 0
}

// readCounters takes the counters, each brought within what its section holds.
func (g *segment) readCounters() {
	counter := func(offset int, most uint64) uint32 { return uint32(min(le.Uint64(g.buf[offset:]), most, unitsMax)) }
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

// section gives the captured bytes of a section, nil without one.
func (g *segment) section(t format.SectionType) []byte {
	sec, ok := g.head.Find(t)
	if !ok {
		return nil
	}
	return g.buf[sec.Offset:][:sec.Size]
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
	tooLong    bool // the length stands in place of the checksum
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
	value := int(le.Uint16(p[format.RecordLen:]))
	if r.tooLong = value == int(format.LongValue); r.tooLong {
		value = int(le.Uint32(p[format.RecordSum:]))
	}
	if value > format.ValueSizeMax {
		return r, "a record has a value that is too long"
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

// seal makes the captured generation one of an image that ends at the captured version: later records are marked as those
// of a commit that was never finished.
func (g *segment) seal() error {
	const op rhumb.Op = "inspect.seal"
	heap := g.section(format.SectionHeap)
	live := uint64(0)
	for ref := uint32(0); ref < g.tail; {
		r, what := g.record(ref, g.tail)
		if what != "" {
			return rhumb.Ef(op, rhumb.Corrupt, "%s", Fault{g.file, g.heapOffset(ref), what})
		}
		if r.ver > g.limit {
			le.PutUint32(heap[uint64(ref)*format.RecordAlign+format.RecordVersion:], format.AbortedVersion)
		}
		ref += r.units
	}
	for n := range g.head.Buckets + g.overflow {
		for _, ref := range g.bucket(n).taken() {
			if r, ok := g.shown(ref); ok && r.flags&format.FlagTombstone == 0 {
				live++
			}
		}
	}
	le.PutUint64(g.buf[format.SegmentState:], format.SegmentLiveState) // it may have been superseded since
	le.PutUint64(g.buf[format.SegmentAppendTail:], uint64(g.tail))
	le.PutUint64(g.buf[format.SegmentAppendHead:], uint64(g.tail))
	le.PutUint64(g.buf[format.SegmentLive:], live)
	return nil
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
