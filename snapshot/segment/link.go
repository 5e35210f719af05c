package segment

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Linking makes an appended record the newest version of its key. It is most of the work of a
// commit, and nearly all of that work is waiting for memory: the bucket of the key, the version
// before, and the changed bit of that version lie anywhere in hundreds of megabytes. So records are
// linked in groups. The buckets of a group are loaded together, then the versions before, and only
// then is each record linked, out of the cache.

// GroupSize is how many records are looked up side by side. A group is large enough to have all the
// loads under way that a processor can have, and small enough that the lines it fetched are still
// in the first cache when they are used.
const GroupSize = 32

// Batch is a group of records on their way into the index, of one segment or of several.
//
// The caller adds records, then calls FetchBuckets, FetchRecords and Link in this order, with other
// work between them. Each kind of address is requested in one go. A processor walks several page
// tables at once, but only as far as it looks ahead: with the work on a record between two
// addresses, each walk would be waited for.
type Batch struct {
	segs   [GroupSize]*Segment // nil for a record that a roll has linked meanwhile
	refs   [GroupSize]uint32
	hashes [GroupSize]uint64
	addrs  [GroupSize]uintptr
	bits   [GroupSize]uintptr // addresses of changed bits
	places [GroupSize]place   // where the keys are likely to be
	n      int
}

// Add adds a record of a segment and reports whether the batch is full.
func (b *Batch) Add(s *Segment, hash uint64, ref uint32) (full bool) {
	b.segs[b.n], b.hashes[b.n], b.refs[b.n], b.places[b.n].found = s, hash, ref, false
	b.n++
	return b.n == GroupSize
}

// Len returns the number of records.
func (b *Batch) Len() int { return b.n }

// Reset removes all records.
func (b *Batch) Reset() { b.n = 0 }

// Drop keeps record i from being linked. A roll of its segment has linked it in the new generation
// already.
func (b *Batch) Drop(i int) { b.segs[i] = nil }

// FetchBuckets loads the buckets of the records.
func (b *Batch) FetchBuckets() {
	n := 0
	for i, s := range b.segs[:b.n] {
		if s != nil {
			b.addrs[n] = s.bucketAddress(b.hashes[i])
			n++
		}
	}
	prefetch(&b.addrs, n)
}

// FetchRecords loads the targets of the buckets: the versions that the records follow, and their
// changed bits. FetchBuckets must have run.
func (b *Batch) FetchRecords() {
	if b.n < 4 {
		return // so few are looked up faster one by one
	}
	found, base := 0, 0
	for i := range b.n {
		s := b.segs[i]
		if s == nil {
			continue
		}
		at := s.likelyPlace(b.hashes[i])
		// The place is noted, so that linking need not look into the bucket again.
		if b.places[i] = at; !at.found {
			continue
		}
		ref := at.bucket.refs[at.slot]
		b.addrs[found] = s.Heap.Address(ref)
		found++
		if ref < s.Head.BaseUnits {
			// The version may be in the base, and then its changed bit is set when the record is
			// linked.
			b.bits[base] = uintptr(unsafe.Pointer(unsafe.SliceData(s.changed))) + uintptr(ref/64)*8
			base++
		}
	}
	prefetch(&b.addrs, found)
	prefetch(&b.bits, base)
}

// Link makes record i the newest version of its key. It publishes the records of the segment first,
// if the record is not covered yet. It reports false if the segment has run out of buckets, delta
// entries or skip list words. The segment then still serves views of committed versions, but must
// be rolled before the next commit.
func (b *Batch) Link(i int) bool {
	s := b.segs[i]
	if s == nil {
		return true
	}
	if b.refs[i] >= s.raised {
		s.Publish()
	}
	return b.linkOne(i)
}

// linkOne links a record that is published. The place that FetchRecords saw is likely the right
// one; it is checked, since the records linked in between may have changed the bucket.
func (b *Batch) linkOne(i int) bool {
	s, at, ref := b.segs[i], b.places[i], b.refs[i]
	if !at.found || !s.Heap.sameKey(ref, s.Heap, at.bucket.refs[at.slot]) {
		at = s.probe(b.hashes[i], s.Heap, ref)
	}
	return s.linkAt(at, b.hashes[i], ref)
}

// linkRange links the records from one unit to another, in their order. It reports false as Link
// does.
func (s *Segment) linkRange(b *Batch, from, to uint32) bool {
	for from < to {
		for b.n = 0; b.n < GroupSize && from < to; {
			b.Add(s, s.hashOf(from), from)
			from += s.Heap.Units(from)
		}
		b.FetchBuckets()
		b.FetchRecords()
		for i := range b.n {
			if !b.linkOne(i) {
				return false
			}
		}
	}
	return true
}

// FetchCounters requests the two lines of the header that a commit changes. With many shards they
// are in no cache.
func (s *Segment) FetchCounters() {
	prefetchPair(uintptr(unsafe.Pointer(unsafe.SliceData(s.File.Mem))) + format.SegmentAppendHead)
}

// linkAt makes a record the newest version of its key, whose place is known.
//
// The order matters to readers that look at the key meanwhile. First the record gets its
// predecessor, then the changed bit makes readers of the base look the key up, then the record
// enters the deltas, and the reference in the index comes last.
func (s *Segment) linkAt(at place, hash uint64, ref uint32) bool {
	h := s.Heap.At(ref)
	pred := NoRef
	if at.found {
		// An aborted version has no successors: whoever follows a chain from here must meet only
		// versions that count or that belong to the open commit.
		pred = s.skipAborted(at.bucket.refs[at.slot])
	}
	// The key has no value now if nothing precedes the record, or if a deletion does. An expired
	// record counts as a value here: readers decide about time, and the publisher must not depend
	// on when it links.
	gone := pred == NoRef || s.Heap.IsTombstone(pred)
	tombstone := h.Flags&format.FlagTombstone != 0
	if tombstone && gone {
		// A tombstone of a key that has no value says nothing. It is marked so that it never
		// counts; nothing refers to it.
		s.relinkHead(h, format.AbortedVersion, h.Prev, h.Flags)
		return true
	}
	s.relinkHead(h, h.Ver, pred, h.Flags)
	// Both heads are in the cache here, so that the comparison costs next to nothing. A roll that
	// had to make it would wait for each of the older versions.
	if pred != NoRef && !s.reshaped {
		s.reshaped = !s.Heap.sameShape(ref, pred)
	}
	// The mark says that the R-tree and the order must not be trusted for this record. NoRef is
	// greater than any base.
	if pred < s.Head.BaseUnits {
		s.setChanged(pred)
	}
	if s.delta != nil && !s.linkBox(ref, pred, gone) {
		return false
	}
	if s.skip != nil && !at.found && !s.linkOrder(hash, ref) {
		return false
	}
	if at.found {
		atomic.StoreUint32(&at.bucket.refs[at.slot], ref)
	} else if !s.insertAt(at, hash, ref) {
		return false
	}
	if gone {
		s.links++
	} else if tombstone {
		s.links--
	}
	return true
}

// skipAborted returns the newest version of a chain that is not marked as aborted, or NoRef.
func (s *Segment) skipAborted(ref uint32) uint32 {
	for ref != NoRef && s.Heap.IsAborted(ref) {
		ref = s.Heap.At(ref).Prev
	}
	return ref
}

// linkBox decides whether queries by place find a record through the R-tree, by way of the base
// record of its key, or through the spatial delta. Exactly one of the two must lead to a key, or
// queries would return it twice or never. FlagMoved says which: the delta leads to moved versions.
// It stays set along the chain until the next roll.
func (s *Segment) linkBox(ref, pred uint32, gone bool) bool {
	h := s.Heap.At(ref)
	if h.Flags&format.FlagTombstone != 0 {
		if s.Heap.At(pred).Flags&format.FlagMoved != 0 {
			s.relinkHead(h, h.Ver, h.Prev, h.Flags|format.FlagMoved)
		}
		return true
	}
	// The R-tree leads to the key by the box of its base record, and the box is still that.
	if !gone && s.Heap.At(pred).Flags&format.FlagMoved == 0 && s.Heap.sameBox(ref, pred) {
		return true
	}
	s.relinkHead(h, h.Ver, h.Prev, h.Flags|format.FlagMoved)
	b, has := s.Heap.Box(ref)
	if !has {
		return true
	}
	// Without a box nothing leads to the record, and FlagMoved keeps the R-tree from leading there.
	parts, n := b.Split()
	for _, part := range parts[:n] {
		if !s.addDelta(part, ref) {
			return false
		}
	}
	return true
}

// deltaEntry is an entry of the spatial delta: a box that was put or moved since the R-tree was
// built.
type deltaEntry struct {
	box            format.Box
	ref, next, ver uint32
	zero           uint32
}

// addDelta puts a plain box at the head of the chain of its cell. It reports false if no entry is
// left.
func (s *Segment) addDelta(b format.Box, ref uint32) bool {
	if int(s.deltas) == len(s.delta) || s.deltas == math.MaxUint32-1 {
		return false
	}
	e := &s.delta[s.deltas]
	head := &s.cells[format.DeltaHead(b, uint32(len(s.cells)))]
	e.box, e.ref, e.next, e.ver = b, ref, *head, s.Heap.At(ref).Ver
	e.zero = 0 // the file may be a recycled one
	s.deltas++
	// Readers check that a link is not above the count, so the count comes first.
	s.File.Store64(format.SegmentDelta, uint64(s.deltas))
	atomic.StoreUint32(head, s.deltas)
	return true
}
