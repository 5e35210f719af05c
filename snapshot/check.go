package snapshot

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// checkSegment reads the header of a mapped file and checks everything that the publisher goes on with: that it is the file
// that the root means, the checksums, and that each reference leads to a record.
func (p *Publisher) checkSegment(s *shard, seg *segment, e format.Shard) (err error) {
	const op rhumb.Op = "snapshot.check"
	if seg.head, err = format.DecodeSegment(seg.file.mem, uint64(len(seg.file.mem))); err != nil {
		return err
	}
	h := &seg.head
	switch {
	case h.Image != p.root.head.Image:
		return rhumb.Ef(op, rhumb.Corrupt, "it belongs to image %s, not %s", h.Image, p.root.head.Image)
	case h.Generation != e.Generation || h.Shard != uint32(s.slot) || h.Table != s.table.ID || h.Base != e.Base || h.KeyKind != s.table.KeyKind || h.Closed != e.Closed:
		return rhumb.Ef(op, rhumb.Corrupt, "it is generation %d of shard %d of table %s with base %d, the root means generation %d of shard %d of table %s with base %d",
			h.Generation, h.Shard, h.Table, h.Base, e.Generation, s.slot, s.table.ID, e.Base)
	case seg.file.load64(format.SegmentState) != format.SegmentLiveState:
		return rhumb.Ef(op, rhumb.Corrupt, "offset %d: state %d of a live file", format.SegmentState, seg.file.load64(format.SegmentState))
	}
	if err := checkSections(op, s.table, h); err != nil {
		return err
	}
	seg.bind()
	c := &checker{segment: seg}
	for _, check := range []func() error{
		c.checkCounters, c.checkSums, c.checkRecords, c.checkIndex, c.checkTree, c.checkDelta, c.checkOrder, c.checkSkip,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checker is a segment that is being checked.
type checker struct {
	*segment
	// starts has a bit for each unit at which a record begins. What leads to any other unit would have the publisher take a
	// payload for a record.
	starts []uint64
}

// begins reports whether a complete record begins at a unit.
func (s *checker) begins(ref uint32) bool { return ref < s.raised && s.starts[ref/64]>>(ref%64)&1 != 0 }

// checkSections checks that the segment has what its table needs.
func checkSections(op rhumb.Op, t *Table, h *format.Segment) error {
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

func (s *checker) checkCounters() error {
	read := func(offset int, least, most uint64) (uint64, error) {
		v := s.file.load64(offset)
		if v < least || v > most {
			return 0, rhumb.Ef("snapshot.check", rhumb.Corrupt, "offset %d: %d is not %d to %d", offset, v, least, most)
		}
		return v, nil
	}
	base, units := uint64(s.head.BaseUnits), uint64(s.units)
	first := uint64(0)
	if s.skip != nil {
		first = skipFirst
	}
	tail, err := read(format.SegmentAppendTail, base, units)
	for _, c := range []struct {
		to          *uint32
		offset      int
		least, most uint64
	}{
		{&s.done, format.SegmentAppendHead, base, tail},
		{&s.overflow, format.SegmentOverflow, 0, uint64(s.head.BucketsMax - s.head.Buckets)},
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
	s.live = int64(s.file.load64(format.SegmentLive))
	return err
}

// checkSums checks the parts that are never changed once they are written.
func (s *checker) checkSums() error {
	for _, sec := range s.head.Sections {
		if err := s.head.CheckSum(sec, s.file.mem[sec.Offset:]); err != nil {
			return err
		}
	}
	return nil
}

func (s *checker) checkRecords() error {
	s.starts = make([]uint64, s.raised/64+1)
	for ref := uint32(0); ref < s.raised; {
		if err := s.checkRecordAt(ref, s.raised); err != nil {
			return err
		}
		if prev := s.record(ref).prev; prev != format.NoPrev && !s.begins(prev) {
			return s.corrupt(format.SectionHeap, uint64(ref)*format.RecordAlign+format.RecordPrev, "a record refers to no record")
		}
		s.starts[ref/64] |= 1 << (ref % 64)
		next := ref + format.Units(recordSize(s.kind, s.heap, ref))
		if ref < s.head.BaseUnits && next > s.head.BaseUnits {
			return s.corrupt(format.SectionHeap, uint64(ref)*format.RecordAlign, "a record stands across the end of the base")
		}
		if ref < s.head.BaseUnits {
			s.note(ref)
		}
		ref = next
	}
	return nil
}

func (s *segment) corrupt(t format.SectionType, at uint64, what string) error {
	return rhumb.Ef("snapshot.check", rhumb.Corrupt, "section of type %d, offset %d: %s", t, s.section(t).Offset+at, what)
}

func (s *checker) checkIndex() error {
	taken := s.head.Buckets + s.overflow
	for i := range taken {
		b := &s.index[i]
		if b.next != 0 && (b.next <= i || b.next < s.head.Buckets || b.next >= taken) {
			return s.corrupt(format.SectionIndex, uint64(i)*format.BucketSize+format.BucketNext, "a bucket leads to none that may follow it")
		}
		for slot := range b.taken() {
			if !s.begins(b.refs[slot]) {
				return s.corrupt(format.SectionIndex, uint64(i)*format.BucketSize+format.BucketRefs+uint64(slot)*4, "a reference leads to no record")
			}
		}
	}
	for i := taken; i < s.head.BucketsMax; i++ {
		if s.index[i] != (bucket{}) {
			return s.corrupt(format.SectionIndex, uint64(i)*format.BucketSize, "a bucket that is not taken is not empty")
		}
	}
	return nil
}

func (s *checker) checkTree() error {
	if s.treeNodes == nil {
		return nil
	}
	if _, err := rtree.Open(s.treeNodes, s.treeRefs); err != nil {
		return err
	}
	for i, ref := range view[uint32](s.treeRefs) {
		if ref >= s.head.BaseUnits && ref != rtree.NoRef {
			return s.corrupt(format.SectionTreeRefs, uint64(i)*4, "a reference leads behind the base")
		}
	}
	return nil
}

func (s *checker) checkDelta() error {
	for i, e := range s.delta[:s.deltas] {
		if !s.begins(e.ref) || e.next > uint32(i) {
			return s.corrupt(format.SectionDelta, uint64(i)*format.DeltaEntrySize, "an entry leads to no record, or to a later entry")
		}
	}
	for i, head := range s.cells {
		if head > s.deltas {
			return s.corrupt(format.SectionDeltaCells, uint64(i)*4, "a chain begins behind the entries")
		}
	}
	if s.delta != nil && (len(s.cells) < 2 || len(s.cells)&(len(s.cells)-1) != 0) {
		return s.corrupt(format.SectionDeltaCells, 0, "the number of chains is not a power of two")
	}
	return nil
}

func (s *checker) checkOrder() error {
	for i, ref := range s.order {
		if ref >= s.head.BaseUnits {
			return s.corrupt(format.SectionOrder, uint64(i)*4, "a reference leads behind the base")
		}
	}
	return nil
}

// checkSkip follows every level of the skip list: keys rise, so that each ends.
func (s *checker) checkSkip() error {
	if s.skip == nil {
		return nil
	}
	for level := range uint32(format.OrderHeightMax) {
		last := format.NoPrev
		for at := s.skip[format.OrderHead+2+level]; at != 0; {
			if at < skipFirst || uint64(at)+2 > uint64(s.words) {
				return s.corrupt(format.SectionOrderDelta, uint64(at)*4, "a link leads to no node")
			}
			ref, height := s.skip[at], s.skip[at+1]
			if height <= level || height > format.OrderHeightMax || uint64(at)+2+uint64(height) > uint64(s.words) || !s.begins(ref) {
				return s.corrupt(format.SectionOrderDelta, uint64(at)*4, "a node is not whole, or leads to no record")
			}
			if last != format.NoPrev && compareKeys(s.kind, s.heap, last, ref) >= 0 {
				return s.corrupt(format.SectionOrderDelta, uint64(at)*4, "the keys do not rise")
			}
			last, at = ref, s.skip[at+2+level]
		}
	}
	return nil
}
