package segment

import (
	"iter"
	"math"
	"sync/atomic"

	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// Shard identifies the shard and the image of a segment.
type Shard struct {
	Table *format.Table
	Slot  int          // the shard's entry in the root
	Root  *format.Root // identity of the image and the seeds of the key hash
}

// Segment is a generation of a shard as the publisher sees it: the mapped sections, and the
// counters. The file holds copies of the counters for readers and for recovery; the counters here
// are authoritative while the publisher lives.
type Segment struct {
	File *shm.File
	Head format.Segment
	Heap Heap
	// Base holds statistics of the base for the next roll.
	Base BaseStats

	keys   *format.Root // hashes the keys
	summed bool         // every record carries a checksum

	index     []bucket
	changed   []uint64 // a bit per unit of the base: the record there has a newer version
	treeNodes []byte
	treeRefs  []byte
	delta     []deltaEntry
	cells     []uint32
	order     []uint32
	skip      []uint32 // words of the skip list; nil if the table is not ordered

	units    uint32 // size of the heap
	done     uint32 // end of the committed records: append_head in the file
	raised   uint32 // end of the complete records: append_tail in the file
	tail     uint32 // end of the written records
	overflow uint32 // overflow buckets taken
	deltas   uint32 // delta entries taken
	words    uint32 // skip list words taken
	live     int64  // keys with a visible value
	links    int64  // change of live by the open commit
	pending  uint64 // records of the open commit

	// reshaped is false while every record linked here has the shape of the version before it, see
	// Heap.sameShape. A roll then knows that all newer versions fit into the places of the older
	// ones without reading the older ones, which lie anywhere in memory. It is true when that is
	// unknown: after a start, and for good once one record had another shape.
	reshaped bool
}

// BaseStats holds statistics that a roll needs and would otherwise have to compute by reading the
// whole base. Each generation continues the counts of the previous one; after a restart Open
// recomputes them.
type BaseStats struct {
	// Expires is the first time at which a record ends, in ns since 1970; math.MaxInt64 for never.
	// It may be the end of a record that was replaced since: then a roll looks for ended records in
	// vain, once.
	Expires int64
	// Dead is the number of tombstones.
	Dead int64
	// Waste is the number of units that no view needs: those of tombstones, and the places that
	// records left for others.
	Waste uint64
	// Split reports whether a box crosses the antimeridian. Such a record has two leaves in the
	// R-tree.
	Split bool
	// Effort is the effort of the R-tree when its leaves were last sorted; see rtree.Tree.Effort. 0
	// if unknown.
	Effort float64
}

// bindSections sets the views of the sections.
func (s *Segment) bindSections() {
	for _, sec := range s.Head.Sections {
		mem := s.File.Mem[sec.Offset:][:sec.Size:sec.Size]
		switch sec.Type {
		case format.SectionIndex:
			s.index = shm.View[bucket](mem)[:s.Head.BucketsMax]
		case format.SectionHeap:
			s.Heap.Mem = mem
			s.units = uint32(min(sec.Size/format.RecordAlign, UnitsMax))
		case format.SectionChanged:
			s.changed = shm.View[uint64](mem)
		case format.SectionTreeNodes:
			s.treeNodes = mem
		case format.SectionTreeRefs:
			s.treeRefs = mem
		case format.SectionDelta:
			s.delta = shm.View[deltaEntry](mem)
		case format.SectionDeltaCells:
			s.cells = shm.View[uint32](mem)
		case format.SectionOrder:
			s.order = shm.View[uint32](mem)[:sec.Items]
		case format.SectionOrderDelta:
			s.skip = shm.View[uint32](mem)
		}
	}
}

// section returns a section that the layout of the table has.
func (s *Segment) section(t format.SectionType) *format.Section {
	for i := range s.Head.Sections {
		if s.Head.Sections[i].Type == t {
			return &s.Head.Sections[i]
		}
	}
	panic("snapshot: a section that was laid out is missing")
}

// Live returns the number of keys with a visible value.
func (s *Segment) Live() int64 { return s.live }

// LinksOfCommit returns by how much the open commit changes the number of keys with a visible
// value.
func (s *Segment) LinksOfCommit() int64 { return s.links }

// Done returns the end of the committed records.
func (s *Segment) Done() uint32 { return s.done }

// Tail returns the end of everything that was written.
func (s *Segment) Tail() uint32 { return s.tail }

// FreeUnits returns how many units of the heap are left.
func (s *Segment) FreeUnits() uint32 { return s.units - s.tail }

// Pending returns the number of records that the open commit wrote here.
func (s *Segment) Pending() uint64 { return s.pending }

// Reshaped reports whether a newer version may have another shape than the one before it. False is
// a promise.
func (s *Segment) Reshaped() bool { return s.reshaped }

// IsOrdered reports whether the segment keeps its keys in order.
func (s *Segment) IsOrdered() bool { return s.skip != nil }

// IsSpatial reports whether the segment keeps an index over the boxes of its records.
func (s *Segment) IsSpatial() bool { return s.delta != nil }

// Order returns the references of the base in the order of their keys. They alias the file.
func (s *Segment) Order() []uint32 { return s.order }

// OverflowBuckets returns how many overflow buckets are taken.
func (s *Segment) OverflowBuckets() uint32 { return s.overflow }

// RelativeVersion returns a version as records of the generation count it. A shard that is never
// written to may be more than 2^32 commits behind; the result then still includes everything
// committed and nothing aborted.
func (s *Segment) RelativeVersion(version uint64) uint32 {
	return uint32(min(version-s.Head.Base, uint64(format.AbortedVersion-1)))
}

// Append writes a record after the others and returns its reference. There must be enough
// FreeUnits. Nothing refers to the record before it is linked.
func (s *Segment) Append(rec *Record, e Encoding, ver uint32) (ref uint32) {
	ref = s.tail
	s.Heap.EncodeAt(ref, rec, e, ver, s.summed)
	s.tail += e.Units
	s.pending++
	// The next record of a commit goes to another shard as a rule. With many shards no hardware
	// prefetcher knows where each of them continues.
	prefetchPair(s.Heap.Address(s.tail))
	return ref
}

// Publish stores in the file that all records written so far are complete. Nothing may refer to a
// record before that: recovery marks records only up to there, and a reference to one beyond would
// lead to whatever is written there next.
func (s *Segment) Publish() {
	s.raised = s.tail
	s.File.Store64(format.SegmentAppendTail, uint64(s.raised))
}

// SettleCommit makes the records of the open commit committed ones. The root must show their
// version already: recovery searches for records to abort only from append_head on, so an
// uncommitted record before it would never be marked.
func (s *Segment) SettleCommit() {
	s.live += s.links
	s.links, s.pending = 0, 0
	s.done = s.tail
	s.File.Store64(format.SegmentLive, uint64(s.live))
	s.File.Store64(format.SegmentAppendHead, uint64(s.done))
}

// settleAll makes everything that was written committed, and stores all counters. The file must not
// be visible yet.
func (s *Segment) settleAll() {
	s.live += s.links
	s.links, s.pending = 0, 0
	s.done, s.raised = s.tail, s.tail
	s.File.Store64(format.SegmentOverflow, uint64(s.overflow))
	s.File.Store64(format.SegmentDelta, uint64(s.deltas))
	s.File.Store64(format.SegmentOrder, uint64(s.words))
	s.File.Store64(format.SegmentAppendTail, uint64(s.tail))
	s.File.Store64(format.SegmentLive, uint64(s.live))
	s.File.Store64(format.SegmentAppendHead, uint64(s.tail))
}

// AbortCommit takes back the records of the open commit and returns how many were marked as
// aborted. Complete records are marked and keep their place, because the index may lead to them and
// the next commit takes the same version number. Records beyond are forgotten, because nothing
// leads to them.
func (s *Segment) AbortCommit() (marked uint64) {
	if s.raised > s.done {
		for ref := s.done; ref < s.raised; ref += s.Heap.Units(ref) {
			// A reader may be looking at the record, hence the atomic store. To a view both
			// versions mean the same: not visible.
			atomic.StoreUint32(&s.Heap.At(ref).Ver, format.AbortedVersion)
			marked++
		}
		s.done = s.raised
		s.File.Store64(format.SegmentAppendHead, uint64(s.done))
	}
	// The next commit overwrites the memory from here on. Nothing refers to it.
	s.tail, s.links, s.pending = s.done, 0, 0
	return marked
}

// AbortUnfinished marks the complete records of a commit that a dead publisher did not finish, and
// returns how many there are. committed is the newest version of the image. It must run before the
// next commit takes the version number of the unfinished one.
func (s *Segment) AbortUnfinished(committed uint64) (aborted uint64) {
	if s.raised == s.done {
		return 0
	}
	v := s.RelativeVersion(committed)
	for ref := s.done; ref < s.raised; ref += s.Heap.Units(ref) {
		// A publisher that died between the commit word and append_head left committed records
		// here.
		if head := s.Heap.At(ref); head.Ver > v && head.Ver != format.AbortedVersion {
			atomic.StoreUint32(&head.Ver, format.AbortedVersion)
			aborted++
		}
	}
	s.done, s.tail = s.raised, s.raised
	// The counter in the file may be of the commit before, or of the unfinished one.
	s.live = 0
	for range s.Visible(committed) {
		s.live++
	}
	s.File.Store64(format.SegmentLive, uint64(s.live))
	s.File.Store64(format.SegmentAppendHead, uint64(s.done))
	return aborted
}

// TakePending takes over the count of records of the open commit from the generation before.
func (s *Segment) TakePending(old *Segment) { s.pending = old.pending }

// relinkHead changes the part of a head that places the record among the versions, and its checksum
// with it. The CRC of the payload is not touched, so that damage of the payload stays visible; see
// format.LinkChecksum.
func (s *Segment) relinkHead(h *RecordHead, ver, prev uint32, flags uint16) {
	if s.summed {
		h.Sum ^= format.LinkChecksum(h.Ver, h.Prev, h.Flags) ^ format.LinkChecksum(ver, prev, flags)
	}
	h.Ver, h.Prev, h.Flags = ver, prev, flags
}

// CopyRecord copies a record of another heap to a unit, as a version that has no predecessor yet,
// and returns its units.
func (s *Segment) CopyRecord(at uint32, from Heap, ref, ver uint32) uint32 {
	n := from.Size(ref)
	units := format.Units(n)
	dst := s.Heap.Mem[int(at)*format.RecordAlign:][:int(units)*format.RecordAlign]
	copy(dst, from.Mem[int(ref)*format.RecordAlign:][:n])
	clear(dst[n:]) // the file may be a recycled one
	h := s.Heap.At(at)
	s.relinkHead(h, ver, NoRef, h.Flags&^format.FlagMoved)
	return units
}

// Bury makes a tombstone of a record of the base. The record keeps its size, its key and its box,
// because later records, the index, the order and the R-tree depend on them.
func (s *Segment) Bury(ref uint32) {
	h := s.Heap.At(ref)
	h.Flags |= format.FlagTombstone
	s.Heap.WipeValue(ref)
	if s.summed {
		h.Sum = format.RecordChecksum(s.Heap.bytesOf(ref))
	}
}

// Abandon marks a record of the base whose key has another place now, and wipes its value.
func (s *Segment) Abandon(ref uint32) {
	s.Heap.At(ref).Ver = format.AbortedVersion
	s.Heap.WipeValue(ref)
}

// countBase counts a record of the base in the statistics.
func (s *Segment) countBase(ref uint32) {
	switch end := s.Heap.Expiry(ref); {
	case s.Heap.IsAborted(ref):
		s.Base.Waste += uint64(s.Heap.Units(ref))
		return
	case s.Heap.IsTombstone(ref):
		s.Base.Dead++
		s.Base.Waste += uint64(s.Heap.Units(ref))
	case end != 0:
		s.Base.Expires = min(s.Base.Expires, end)
	}
	if b, ok := s.Heap.Box(ref); ok && b.Crosses() {
		s.Base.Split = true
	}
}

// CountBase returns the statistics of the base as its records say, instead of as they were counted
// from roll to roll.
func (s *Segment) CountBase() BaseStats {
	counted := Segment{Heap: s.Heap, Base: BaseStats{Expires: math.MaxInt64}}
	for ref := uint32(0); ref < s.Head.BaseUnits; ref += s.Heap.Units(ref) {
		counted.countBase(ref)
	}
	return counted.Base
}

// setChanged sets the bit of a record of the base that has a newer version.
func (s *Segment) setChanged(ref uint32) {
	w := &s.changed[ref/64]
	if bit := uint64(1) << (ref % 64); *w&bit == 0 {
		atomic.StoreUint64(w, *w|bit)
	}
}

// isChanged reports whether a record of the base has a newer version.
func (s *Segment) isChanged(ref uint32) bool { return s.changed[ref/64]>>(ref%64)&1 != 0 }

// Heads returns, for each key that ever had a committed version in the segment, the newest
// reference. The reference may belong to a commit that is open or was aborted. Keys of the base
// come first, in the order of the base.
func (s *Segment) Heads() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		var g headGroup
		for ref := uint32(0); ref < s.done; {
			ref = s.gatherHeads(&g, ref)
			for i, first := range g.refs[:g.n] {
				head, ok := first, true
				if g.changed[i] {
					head, ok = s.NewestOf(g.hashes[i], s.Heap, first)
				}
				if ok && !yield(head) {
					return
				}
			}
		}
	}
}

// headGroup is a group of first versions whose newest versions are looked up side by side.
type headGroup struct {
	Batch
	changed [GroupSize]bool // there may be a newer version
}

// gatherHeads collects the next records that are the first version of their key here, beginning at
// from. It prefetches the buckets of the changed ones and then the records that the buckets lead
// to. Without that, a roll after many changes waits for memory twice per record.
func (s *Segment) gatherHeads(g *headGroup, from uint32) (next uint32) {
	g.n = 0
	n := 0
	for ; g.n < GroupSize && from < s.done; from += s.Heap.Units(from) {
		h := s.Heap.At(from)
		// Records of the base are first versions. A record of the append area is one if it follows
		// no other: of a key that the base lacks.
		base := from < s.Head.BaseUnits
		if h.Ver == format.AbortedVersion || !base && h.Prev != NoRef {
			continue
		}
		// A record of the base without a mark is the newest of its key, so that no bucket has to be
		// read for it. Most are.
		g.refs[g.n], g.changed[g.n] = from, !base || s.isChanged(from)
		if g.changed[g.n] {
			g.hashes[g.n] = s.hashOf(from)
			g.addrs[n] = s.bucketAddress(g.hashes[g.n])
			n++
		}
		g.n++
	}
	prefetch(&g.addrs, n)
	n = 0
	for i := range g.n {
		if !g.changed[i] {
			continue
		}
		if at := s.likelyPlace(g.hashes[i]); at.found {
			g.addrs[n] = s.Heap.Address(at.bucket.refs[at.slot])
			n++
		}
	}
	prefetch(&g.addrs, n)
	return from
}

// Visible returns the references of the records that a version shows.
func (s *Segment) Visible(version uint64) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		v := s.RelativeVersion(version)
		for ref := range s.Heads() {
			// Records of the open commit and aborted ones are skipped: aborted has the greatest
			// version of all.
			for ref != NoRef && s.Heap.At(ref).Ver > v {
				ref = s.Heap.At(ref).Prev
			}
			if ref != NoRef && !s.Heap.IsTombstone(ref) && !yield(ref) {
				return
			}
		}
	}
}

// Tree returns the R-tree over the base. It fails if the tree was damaged since the segment was
// opened.
func (s *Segment) Tree() (rtree.Tree, error) { return rtree.Open(s.treeNodes, s.treeRefs) }

// TreeRefs returns the references of the R-tree's leaves, in their order. They alias the file.
func (s *Segment) TreeRefs() []uint32 { return shm.View[uint32](s.treeRefs) }

// SumHeap stores the checksum of a base of size bytes that has the first from bytes of the base of
// an older segment.
func (s *Segment) SumHeap(old *Segment, from, size int) {
	sum := uint32(0)
	if from > 0 {
		sum = old.section(format.SectionHeap).Sum
	}
	s.section(format.SectionHeap).Sum = format.ExtendChecksum(sum, s.Heap.Mem[from:size])
}
