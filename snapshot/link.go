package snapshot

import (
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// group is how many records are looked up side by side.
const group = 32

// batch is a group of records on their way into the index.
type batch struct {
	segs   [group]*segment
	refs   [group]uint32
	hashes [group]uint64
	addrs  [group]uintptr
	bits   [group]uintptr // words of the changed bits
	places [group]place   // where the keys are likely to be
	n      int
}

func (b *batch) add(s *segment, hash uint64, ref uint32) {
	b.segs[b.n], b.hashes[b.n], b.refs[b.n], b.places[b.n].found = s, hash, ref, false
	b.n++
}

// link puts the records of a segment from one unit up to another into the index, in their order, with all that goes with it.
// It gives false when buckets, delta entries or skip list words have run out; then the segment is good for views of what was
// committed, but must be rolled before anything is committed in it.
func (p *Publisher) link(s *segment, from, to uint32) bool {
	b := &p.batch
	for from < to {
		for b.n = 0; b.n < group && from < to; {
			b.add(s, hashOf(s.keys, s.kind, s.record(from)), from)
			from += format.Units(recordSize(s.kind, s.heap, from))
		}
		b.fetchBuckets()
		b.fetch()
		for i := range b.n {
			if !b.link(i) {
				return false
			}
		}
	}
	return true
}

// bucketAddr gives the address of a hash's bucket.
func (s *segment) bucketAddr(hash uint64) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(s.index))) + uintptr(format.BucketOf(hash, s.head.Buckets))*format.BucketSize
}

// recordAddr gives the address of a record.
func (s *segment) recordAddr(ref uint32) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(s.heap))) + uintptr(ref)*format.RecordAlign
}

// fetchBuckets asks for the buckets of the records; those of a segment that was rolled meanwhile have none.
func (b *batch) fetchBuckets() {
	n := 0
	for i, s := range b.segs[:b.n] {
		if s != nil {
			b.addrs[n] = s.bucketAddr(b.hashes[i])
			n++
		}
	}
	prefetch(&b.addrs, n)
}

// fetch asks for what the buckets of the records, which were asked for before, lead to: the records that are there already
// and their changed bits.
func (b *batch) fetch() {
	if b.n < 4 {
		return // there is nothing to do meanwhile
	}
	found, base := 0, 0
	for i := range b.n {
		s := b.segs[i]
		if s == nil {
			continue
		}
		at := s.likely(b.hashes[i])
		if b.places[i] = at; !at.found {
			continue
		}
		ref := at.bucket.refs[at.slot]
		b.addrs[found] = s.recordAddr(ref)
		found++
		if ref < s.head.BaseUnits {
			b.bits[base] = uintptr(unsafe.Pointer(unsafe.SliceData(s.changed))) + uintptr(ref/64)*8
			base++
		}
	}
	prefetch(&b.addrs, found)
	prefetch(&b.bits, base)
}

// link makes a record the newest version of its key.
func (b *batch) link(i int) bool {
	s, at, ref := b.segs[i], b.places[i], b.refs[i]
	if !at.found || !sameKey(s.kind, s.heap, ref, s.heap, at.bucket.refs[at.slot]) {
		at = s.probe(b.hashes[i], s.heap, ref)
	}
	return s.linkAt(at, b.hashes[i], ref)
}

// linkAt makes a record the newest version of its key, whose place it is given. A tombstone of a key that has no value says
// nothing and is marked so that it never counts.
func (s *segment) linkAt(at place, hash uint64, ref uint32) bool {
	h := s.record(ref)
	pred := format.NoPrev
	if at.found {
		pred = s.unaborted(at.bucket.refs[at.slot])
	}
	gone := pred == format.NoPrev || s.record(pred).flags&format.FlagTombstone != 0
	tombstone := h.flags&format.FlagTombstone != 0
	if tombstone && gone {
		s.relink(h, format.AbortedVersion, h.prev, h.flags) // nothing refers to it
		return true
	}
	s.relink(h, h.ver, pred, h.flags)
	if pred < s.head.BaseUnits {
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
	} else if !s.insert(at, hash, ref) {
		return false
	}
	if gone {
		s.links++
	} else if tombstone {
		s.links--
	}
	return true
}

// unaborted gives the newest version of a chain that is not marked as aborted.
func (s *segment) unaborted(ref uint32) uint32 {
	for ref != format.NoPrev && s.record(ref).ver == format.AbortedVersion {
		ref = s.record(ref).prev
	}
	return ref
}

// linkBox decides whether a record is found through the R-tree, by way of the key's base record, or through the delta.
func (s *segment) linkBox(ref, pred uint32, gone bool) bool {
	h := s.record(ref)
	if h.flags&format.FlagTombstone != 0 {
		if s.record(pred).flags&format.FlagMoved != 0 {
			s.relink(h, h.ver, h.prev, h.flags|format.FlagMoved)
		}
		return true
	}
	if !gone && s.record(pred).flags&format.FlagMoved == 0 && sameBox(s.heap, ref, pred) {
		return true
	}
	s.relink(h, h.ver, h.prev, h.flags|format.FlagMoved)
	b, has := box(s.heap, ref)
	if !has {
		return true
	}
	parts, n := b.Split()
	for _, part := range parts[:n] {
		if !s.addDelta(part, ref) {
			return false
		}
	}
	return true
}

// addDelta puts a plain box before the others of its cell.
func (s *segment) addDelta(b format.Box, ref uint32) bool {
	if int(s.deltas) == len(s.delta) || s.deltas == math.MaxUint32-1 {
		return false
	}
	e := &s.delta[s.deltas]
	head := &s.cells[format.DeltaHead(b, uint32(len(s.cells)))]
	e.box, e.ref, e.next, e.ver = b, ref, *head, s.record(ref).ver
	e.zero = 0 // the file may be a recycled one
	s.deltas++
	s.file.store64(format.SegmentDelta, uint64(s.deltas))
	atomic.StoreUint32(head, s.deltas)
	return true
}
