package segment

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// Open returns the live generation of a shard in a mapped file. It checks everything that the
// publisher relies on: that the file is the one that the root's entry names, the checksums, and
// that each reference leads to a record. All later code trusts the segment, so nothing here may be
// left out for speed.
func Open(file *shm.File, shard Shard, e format.Shard) (*Segment, error) {
	const op rhumb.Op = "snapshot.check"
	seg := newSegment(file, shard)
	seg.reshaped = true // nothing is known of the records that were appended before
	var err error
	if seg.Head, err = format.DecodeSegment(file.Mem, uint64(len(file.Mem))); err != nil {
		return nil, err
	}
	h, t := &seg.Head, shard.Table
	switch {
	case h.Image != shard.Root.Image:
		return nil, rhumb.Ef(op, rhumb.Corrupt, "it belongs to image %s, not %s", h.Image, shard.Root.Image)
	case h.Generation != e.Generation || h.Shard != uint32(shard.Slot) || h.Table != t.ID || h.Base != e.Base || h.KeyKind != t.KeyKind || h.Closed != e.Closed:
		return nil, rhumb.Ef(op, rhumb.Corrupt, "it is generation %d of shard %d of table %s with base %d, the root names generation %d of shard %d of table %s with base %d",
			h.Generation, h.Shard, h.Table, h.Base, e.Generation, shard.Slot, t.ID, e.Base)
	case file.Load64(format.SegmentState) != format.SegmentLiveState:
		return nil, rhumb.Ef(op, rhumb.Corrupt, "offset %d: state %d of a live file", format.SegmentState, file.Load64(format.SegmentState))
	}
	if err := checkSections(op, t, h); err != nil {
		return nil, err
	}
	seg.bindSections()
	c := &checker{Segment: seg}
	// The order matters: the counters bound the accesses of later checks, and checkRecords finds
	// the units at which records begin, without which no reference can be judged.
	for _, check := range []func() error{
		c.checkCounters, c.checkSums, c.checkRecords, c.checkIndex, c.checkTree, c.checkDelta, c.checkOrder, c.checkSkipList,
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return seg, nil
}

// checker is a segment that is being checked.
type checker struct {
	*Segment
	// starts has a bit for each unit at which a record begins. A reference to any other unit would
	// make the publisher take a payload for a record.
	starts []uint64
}

// isStart reports whether a complete record begins at a unit.
func (s *checker) isStart(ref uint32) bool {
	return ref < s.raised && s.starts[ref/64]>>(ref%64)&1 != 0
}

// checkSections checks that the segment has the sections that its table needs.
func checkSections(op rhumb.Op, t *format.Table, h *format.Segment) error {
	need := []format.SectionType{format.SectionChanged}
	if t.Spatial() {
		need = append(need, format.SectionTreeNodes, format.SectionTreeRefs, format.SectionDelta, format.SectionDeltaCells)
	}
	if t.Ordered() {
		need = append(need, format.SectionOrder, format.SectionOrderDelta)
	}
	for _, want := range need {
		if _, ok := h.Find(want); !ok {
			return rhumb.Ef(op, rhumb.Corrupt, "table %q needs a section of type %d", t.Name, want)
		}
	}
	return nil
}

// checkCounters reads the counters of the file and checks that each is within its section.
func (s *checker) checkCounters() error {
	read := func(offset int, least, most uint64) (uint64, error) {
		v := s.File.Load64(offset)
		if v < least || v > most {
			return 0, rhumb.Ef("snapshot.check", rhumb.Corrupt, "offset %d: %d is not %d to %d", offset, v, least, most)
		}
		return v, nil
	}
	base, units := uint64(s.Head.BaseUnits), uint64(s.units)
	first := uint64(0)
	if s.skip != nil {
		first = skipFirst
	}
	// The tail is first, since it bounds append_head.
	tail, err := read(format.SegmentAppendTail, base, units)
	for _, c := range []struct {
		to          *uint32
		offset      int
		least, most uint64
	}{
		{&s.done, format.SegmentAppendHead, base, tail},
		{&s.overflow, format.SegmentOverflow, 0, uint64(s.Head.BucketsMax - s.Head.Buckets)},
		{&s.deltas, format.SegmentDelta, 0, uint64(len(s.delta))},
		{&s.words, format.SegmentOrder, first, uint64(len(s.skip))},
	} {
		if err != nil {
			return err
		}
		var v uint64
		v, err = read(c.offset, c.least, c.most)
		*c.to = uint32(v)
	}
	s.raised, s.tail = uint32(tail), uint32(tail)
	s.live = int64(s.File.Load64(format.SegmentLive))
	return err
}

// checkSums checks the sections that are never changed once they are written.
func (s *checker) checkSums() error {
	for _, sec := range s.Head.Sections {
		if err := s.Head.CheckSum(sec, s.File.Mem[sec.Offset:]); err != nil {
			return err
		}
	}
	return nil
}

// checkRecords checks every complete record and notes where it begins.
func (s *checker) checkRecords() error {
	s.starts = make([]uint64, s.raised/64+1)
	heapOffset := s.section(format.SectionHeap).Offset
	for ref := uint32(0); ref < s.raised; {
		if err := s.Heap.checkRecordAt(ref, s.raised, heapOffset); err != nil {
			return err
		}
		// Only units below this one are marked yet, so that a reference to this record or a later
		// one is found too.
		if prev := s.Heap.At(ref).Prev; prev != NoRef && !s.isStart(prev) {
			return s.corruptAt(format.SectionHeap, uint64(ref)*format.RecordAlign+format.RecordPrev, "a record refers to no record")
		}
		// Marked after its own predecessor was judged: a record cannot precede itself.
		s.starts[ref/64] |= 1 << (ref % 64)
		next := ref + s.Heap.Units(ref)
		// The append area must begin where a record begins, or the walk through it would read
		// payload as heads.
		if ref < s.Head.BaseUnits && next > s.Head.BaseUnits {
			return s.corruptAt(format.SectionHeap, uint64(ref)*format.RecordAlign, "a record lies across the end of the base")
		}
		if ref < s.Head.BaseUnits {
			s.countBase(ref)
		}
		ref = next
	}
	return nil
}

// corruptAt returns the error for a fault at an offset of a section.
func (s *Segment) corruptAt(t format.SectionType, at uint64, what string) error {
	return rhumb.Ef("snapshot.check", rhumb.Corrupt, "section of type %d, offset %d: %s", t, s.section(t).Offset+at, what)
}

// checkIndex checks that overflow chains end and that every slot leads to a record.
func (s *checker) checkIndex() error {
	taken := s.Head.Buckets + s.overflow
	for i := range taken {
		b := &s.index[i]
		// A chain leads to ever higher buckets, so that it ends.
		if b.next != 0 && (b.next <= i || b.next < s.Head.Buckets || b.next >= taken) {
			return s.corruptAt(format.SectionIndex, uint64(i)*format.BucketSize+format.BucketNext, "a bucket leads to a bucket that may not follow it")
		}
		for slot := range b.slotsTaken() {
			if !s.isStart(b.refs[slot]) {
				return s.corruptAt(format.SectionIndex, uint64(i)*format.BucketSize+format.BucketRefs+uint64(slot)*4, "a reference leads to no record")
			}
		}
	}
	for i := taken; i < s.Head.BucketsMax; i++ {
		// insertAt counts on it: it takes the bucket without clearing it.
		if s.index[i] != (bucket{}) {
			return s.corruptAt(format.SectionIndex, uint64(i)*format.BucketSize, "a bucket that is not taken is not empty")
		}
	}
	return nil
}

// checkTree checks that every leaf of the R-tree leads into the base.
func (s *checker) checkTree() error {
	if s.treeNodes == nil {
		return nil
	}
	if _, err := rtree.Open(s.treeNodes, s.treeRefs); err != nil {
		return err
	}
	// All lanes are checked, also those of the last leaf that hold nothing.
	for i, ref := range shm.View[uint32](s.treeRefs) {
		if ref >= s.Head.BaseUnits && ref != rtree.NoRef {
			return s.corruptAt(format.SectionTreeRefs, uint64(i)*4, "a reference leads past the base")
		}
	}
	return nil
}

// checkDelta checks that the chains of the spatial delta end and lead to records.
func (s *checker) checkDelta() error {
	for i, e := range s.delta[:s.deltas] {
		if !s.isStart(e.ref) || e.next > uint32(i) {
			return s.corruptAt(format.SectionDelta, uint64(i)*format.DeltaEntrySize, "an entry leads to no record, or to a later entry")
		}
	}
	for i, head := range s.cells {
		if head > s.deltas {
			return s.corruptAt(format.SectionDeltaCells, uint64(i)*4, "a chain begins past the entries")
		}
	}
	if s.delta != nil && (len(s.cells) < 2 || len(s.cells)&(len(s.cells)-1) != 0) {
		return s.corruptAt(format.SectionDeltaCells, 0, "the number of chains is not a power of two")
	}
	return nil
}

// checkOrder checks that the order leads into the base.
func (s *checker) checkOrder() error {
	for i, ref := range s.order {
		if ref >= s.Head.BaseUnits {
			return s.corruptAt(format.SectionOrder, uint64(i)*4, "a reference leads past the base")
		}
	}
	return nil
}

// checkSkipList follows every level of the skip list. Keys must rise, which is also why each level
// ends.
func (s *checker) checkSkipList() error {
	if s.skip == nil {
		return nil
	}
	for level := range uint32(format.OrderHeightMax) {
		last := NoRef
		for at := s.skip[format.OrderHead+2+level]; at != 0; {
			if at < skipFirst || uint64(at)+2 > uint64(s.words) {
				return s.corruptAt(format.SectionOrderDelta, uint64(at)*4, "a link leads to no node")
			}
			ref, height := s.skip[at], s.skip[at+1]
			// The node must reach this level, and all its links must lie within the words in use.
			if height <= level || height > format.OrderHeightMax || uint64(at)+2+uint64(height) > uint64(s.words) || !s.isStart(ref) {
				return s.corruptAt(format.SectionOrderDelta, uint64(at)*4, "a node is not whole, or leads to no record")
			}
			if last != NoRef && s.Heap.Compare(last, ref) >= 0 {
				return s.corruptAt(format.SectionOrderDelta, uint64(at)*4, "the keys do not rise")
			}
			last, at = ref, s.skip[at+2+level]
		}
	}
	return nil
}
