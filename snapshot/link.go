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
	refs   [group]uint32
	hashes [group]uint64
	addrs  [group]uintptr
	bits   [group]uintptr // words of the changed bits
	n      int
}

// link puts the records from one unit up to another into the index, in their order, with all that goes with it. It gives
// false when buckets, delta entries or skip list words have run out; then the segment is good for views of what was
// committed, but must be rolled before anything is committed in it.
func (p *Publisher) link(s *segment, flags uint16, from, to uint32) bool {
	b := &p.batch
	for from < to {
		from = p.gather(s, b, from, to)
		for i := range b.n {
			if !s.linkOne(flags, b.hashes[i], b.refs[i]) {
				return false
			}
		}
	}
	return true
}

// gather takes the next records and fetches their buckets, and then the records that are there already and their changed
// bits.
func (p *Publisher) gather(s *segment, b *batch, from, to uint32) uint32 {
	n := 0
	index := uintptr(unsafe.Pointer(unsafe.SliceData(s.index)))
	for ; n < group && from < to; n++ {
		b.refs[n] = from
		b.hashes[n] = hashOf(s.keys, s.kind, s.record(from))
		b.addrs[n] = index + uintptr(format.BucketOf(b.hashes[n], s.head.Buckets))*format.BucketSize
		from += format.Units(recordSize(s.kind, s.heap, from))
	}
	b.n = n
	if n < 4 {
		return from
	}
	prefetch(&b.addrs, n)
	heap := uintptr(unsafe.Pointer(unsafe.SliceData(s.heap)))
	changed := uintptr(unsafe.Pointer(unsafe.SliceData(s.changed)))
	found, base := 0, 0
	for i := range n {
		pattern := uint64(format.Fingerprint(b.hashes[i])) * lanesLow
		if ref, ok := s.index[format.BucketOf(b.hashes[i], s.head.Buckets)].candidate(pattern); ok {
			b.addrs[found] = heap + uintptr(ref)*format.RecordAlign
			found++
			if ref < s.head.BaseUnits {
				b.bits[base] = changed + uintptr(ref/64)*8
				base++
			}
		}
	}
	prefetch(&b.addrs, found)
	prefetch(&b.bits, base)
	return from
}

// linkOne makes a record the newest version of its key. A tombstone of a key that has no value says nothing and is marked so
// that it never counts.
func (s *segment) linkOne(flags uint16, hash uint64, ref uint32) bool {
	at := s.probe(hash, s.heap, ref)
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
	if flags&format.TableSpatial != 0 && !s.linkBox(ref, pred, gone) {
		return false
	}
	if flags&format.TableOrdered != 0 && !at.found && !s.linkOrder(hash, ref) {
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
	b, has := box(s.heap, ref)
	h := s.record(ref)
	if h.flags&format.FlagTombstone != 0 {
		if s.record(pred).flags&format.FlagMoved != 0 {
			s.relink(h, h.ver, h.prev, h.flags|format.FlagMoved)
		}
		return true
	}
	if !gone && s.record(pred).flags&format.FlagMoved == 0 {
		if o, had := box(s.heap, pred); had == has && o == b {
			return true
		}
	}
	s.relink(h, h.ver, h.prev, h.flags|format.FlagMoved)
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
