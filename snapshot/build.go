package snapshot

import (
	"math"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// source is what a generation is built from: records of one heap, each key once in the base.
type source struct {
	heap []byte
	refs []uint32 // of the base
	// replay are the later versions that closed views need to tell apart, oldest first for each key.
	replay []uint32
	// units and replayUnits are the sizes of both.
	units, replayUnits uint64
	// pendingFrom and pendingTo are where the records of the open commit begin and end; their version follows the base.
	pendingFrom, pendingTo uint32
}

// scratch is memory that builds use one after the other.
type scratch struct {
	batch    batch
	batches  [2]batch // of a build: one is copied while the other goes into the index
	boxes    []format.Box
	owners   []uint32 // the record of each box
	bare     []uint32 // the records without a box
	split    bool     // a record has two boxes
	order    []uint32 // the records in the order of the new heap
	placed   []bool   // by record: it stands in order
	refs     []uint32 // the new references, in the order of the new heap
	places   []uint32 // by record, the new reference
	treeRefs []uint32
	sortKeys []sortKey
	// surveyRefs, chain and kept belong to rolls.
	surveyRefs, chain []uint32
	kept              kept
	sorter            rtree.Sorter
	sorted            []uint32 // the boxes in Hilbert order; the sorter's
}

// buildTries bounds how often a build starts again with more room.
const buildTries = 8

// build writes a generation of a shard that shows version base. The file stays locked against readers; swing lets them in.
func (p *Publisher) build(s *shard, src *source, base uint64, closed rhumb.Timestamp, need room) (*segment, error) {
	const op rhumb.Op = "snapshot.build"
	need.units += src.replayUnits
	need.records += uint64(len(src.replay))
	need.scale = max(need.scale, 1)
	for range buildTries {
		p.collectBoxes(s.table, src)
		l := shape{
			flags: s.table.Flags, records: uint64(len(src.refs)), units: src.units, treeItems: len(p.boxes), room: need, ratio: p.cfg.AppendRatio,
		}
		if src.units+need.units > unitsMax {
			return nil, rhumb.Ef(op, rhumb.TooLarge, "shard %d of table %q outgrows %d units of its heap; give the table more shards",
				s.slot, s.table.Name, uint64(unitsMax))
		}
		seg, err := p.newSegment(op, s, l.layout())
		if err != nil {
			return nil, err
		}
		seg.head.Base, seg.head.Closed = base, closed
		full, err := p.fill(s, seg, src)
		if err == nil && !full {
			return seg, nil
		}
		p.files.remove(seg.file)
		if err != nil {
			return nil, err
		}
		need.scale *= 2
	}
	return nil, rhumb.Ef(op, rhumb.Internal, "shard %d of table %q: no layout holds its %d keys", s.slot, s.table.Name, len(src.refs))
}

// newSegment takes a file for a header and clears what must begin as zero, but for the index.
func (p *Publisher) newSegment(op rhumb.Op, s *shard, head format.Segment) (*segment, error) {
	file, err := p.files.take(op, s.slot, int64(fileSize(head.FileSize)))
	if err != nil {
		return nil, err
	}
	spread(&head, uint64(len(file.mem)))
	head.Generation, head.Shard, head.Table = file.generation, uint32(s.slot), s.table.ID
	head.Image, head.KeyKind = p.root.head.Image, s.table.KeyKind
	seg := &segment{file: file, head: head, kind: s.table.KeyKind, summed: s.table.Summed(), keys: &p.root.head, expires: math.MaxInt64}
	seg.bind()
	clear(file.mem[:format.SegmentHeader])
	clear(seg.changed)
	clear(seg.cells)
	if seg.skip != nil {
		seg.initOrder()
	}
	return seg, nil
}

// collectBoxes lists the plain boxes of a spatial table's base.
func (p *Publisher) collectBoxes(t *Table, src *source) {
	p.boxes, p.owners, p.bare, p.split = p.boxes[:0], p.owners[:0], p.bare[:0], false
	if !t.Spatial() {
		return
	}
	for i, ref := range src.refs {
		if i%group == 0 {
			p.fetch(src, nil, i+group)
		}
		b, ok := box(src.heap, ref)
		if !ok {
			p.bare = append(p.bare, uint32(i))
			continue
		}
		parts, n := b.Split()
		for _, part := range parts[:n] {
			p.boxes = append(p.boxes, part)
			p.owners = append(p.owners, uint32(i))
		}
		p.split = p.split || n > 1
	}
}

// fetch asks for the records of the group that begins at i, if there is one; a nil order is that of the source.
func (p *Publisher) fetch(src *source, order []uint32, i int) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(src.heap)))
	n := 0
	for ; n < group && i+n < len(src.refs); n++ {
		k := i + n
		if order != nil {
			k = int(order[k])
		}
		p.batch.addrs[n] = from + uintptr(src.refs[k])*format.RecordAlign
	}
	prefetchPairs(&p.batch.addrs, n)
}

// fill writes everything into a new segment; full says that overflow buckets, delta entries or skip list words have run out.
func (p *Publisher) fill(s *shard, seg *segment, src *source) (full bool, err error) {
	order := p.heapOrder(s.table, src)
	sum, full, err := p.fillHeap(s, seg, src, order)
	if full || err != nil {
		return full, err
	}
	p.setSum(seg, format.SectionHeap, sum)
	if s.table.Spatial() {
		p.fillTree(seg, order)
	}
	if s.table.Ordered() {
		p.fillOrder(seg)
	}
	seg.live = int64(len(src.refs))
	return !p.complete(seg, src), nil
}

// complete appends to the base what a roll takes along, links it, and declares the segment live. It gives false when
// something has run out.
func (p *Publisher) complete(seg *segment, src *source) bool {
	seg.done, seg.raised, seg.tail = seg.head.BaseUnits, seg.head.BaseUnits, seg.head.BaseUnits
	for _, ref := range src.replay {
		seg.tail += seg.copyRecord(seg.tail, src.heap, ref, 0)
	}
	if !p.link(seg, seg.done, seg.tail) {
		return false
	}
	seg.settle()
	for ref := src.pendingFrom; ref < src.pendingTo; {
		n := seg.copyRecord(seg.tail, src.heap, ref, 1)
		seg.tail += n
		ref += n
	}
	seg.raise()
	if !p.link(seg, seg.done, seg.tail) {
		return false
	}
	format.EncodeSegment(seg.file.mem, seg.head)
	seg.file.store64(format.SegmentState, format.SegmentLiveState)
	return true
}

// settle says that everything written is committed.
func (s *segment) settle() {
	s.live += s.links
	s.links, s.pending = 0, 0
	s.done, s.raised = s.tail, s.tail
	s.file.store64(format.SegmentOverflow, uint64(s.overflow))
	s.file.store64(format.SegmentDelta, uint64(s.deltas))
	s.file.store64(format.SegmentOrder, uint64(s.words))
	s.file.store64(format.SegmentAppendTail, uint64(s.tail))
	s.file.store64(format.SegmentLive, uint64(s.live))
	s.file.store64(format.SegmentAppendHead, uint64(s.tail))
}

// heapOrder gives the order of the records in the heap: along the Hilbert curve, then those without a box. nil is the
// order of the source.
func (p *Publisher) heapOrder(t *Table, src *source) []uint32 {
	if !t.Spatial() {
		return nil
	}
	p.sorted = p.sorter.Order(p.boxes)
	if len(p.boxes) == len(src.refs) && !p.split {
		return p.sorted // each record has its box
	}
	p.placed = resize(p.placed, len(src.refs))
	clear(p.placed)
	out := p.order[:0]
	for _, item := range p.sorted {
		if owner := p.owners[item]; !p.placed[owner] {
			p.placed[owner] = true
			out = append(out, owner)
		}
	}
	p.order = append(out, p.bare...)
	return p.order
}

// fillHeap lays the base down and puts it into the index. It leaves the new references in refs, and the boxes in their order
// where each record has one at most, and gives the checksum.
func (p *Publisher) fillHeap(s *shard, seg *segment, src *source, order []uint32) (sum uint32, full bool, err error) {
	clear(seg.index)
	p.refs = resize(p.refs, len(src.refs))
	at := uint32(0)
	p.batches[0].n, p.batches[1].n = 0, 0
	p.fetch(src, order, 0)
	for i := 0; i < len(src.refs) || p.batches[0].n+p.batches[1].n > 0; i += group {
		p.fetch(src, order, i+group)
		b, last := &p.batches[i/group%2], &p.batches[1-i/group%2]
		end := p.placeBatch(seg, src, order, b, i, at)
		sum = format.ExtendChecksum(sum, seg.heap[int(at)*format.RecordAlign:int(end)*format.RecordAlign])
		at = end
		for j, ref := range last.refs[:last.n] {
			place := seg.probe(last.hashes[j], seg.heap, ref)
			if place.found {
				return 0, false, p.duplicate(s, seg, ref)
			}
			if !seg.insert(place, last.hashes[j], ref) {
				return 0, true, nil
			}
		}
		last.n = 0
	}
	if uint64(at) != src.units {
		return 0, false, rhumb.Ef("snapshot.build", rhumb.Internal, "the base has %d units, counted %d", at, src.units)
	}
	return sum, false, nil
}

// placeBatch copies the group of records that begins at i to a unit, asks for the buckets that they go into, and gives the
// unit behind them.
func (p *Publisher) placeBatch(seg *segment, src *source, order []uint32, b *batch, i int, at uint32) uint32 {
	for b.n = 0; b.n < group && i < len(src.refs); i++ {
		k := i
		if order != nil {
			k = int(order[i])
		}
		units := seg.copyRecord(at, src.heap, src.refs[k], 0)
		seg.note(at)
		p.refs[i] = at
		if i < len(p.boxes) && !p.split {
			p.boxes[i], _ = box(seg.heap, at)
		}
		hash := hashOf(seg.keys, seg.kind, seg.record(at))
		b.addrs[b.n] = seg.bucketAddr(hash)
		b.add(seg, hash, at)
		at += units
	}
	prefetch(&b.addrs, b.n)
	return at
}

// copyRecord copies a record of another heap as a version, with no predecessor yet, and gives its units.
func (s *segment) copyRecord(at uint32, heap []byte, ref, ver uint32) uint32 {
	n := recordSize(s.kind, heap, ref)
	units := format.Units(n)
	dst := s.heap[int(at)*format.RecordAlign:][:int(units)*format.RecordAlign]
	copy(dst, heap[int(ref)*format.RecordAlign:][:n])
	clear(dst[n:])
	h := s.record(at)
	s.relink(h, ver, format.NoPrev, h.flags&^format.FlagMoved)
	return units
}

// duplicate is the error for a key that a source has twice.
func (p *Publisher) duplicate(s *shard, seg *segment, ref uint32) error {
	key := any(seg.record(ref).key)
	if seg.kind == format.KeyName {
		key = string(nameKey(seg.heap, ref)[1:])
	}
	return rhumb.Ef("snapshot.build", rhumb.InvalidArgument, "table %q: key %q is there twice; give each key once", s.table.Name, key)
}

// fillTree writes the R-tree over the base. Where no record has two boxes, they lie as the leaves do by now, and the references
// with them.
func (p *Publisher) fillTree(seg *segment, order []uint32) {
	if p.split {
		seg.effort = p.buildTree(seg, p.refsOfBoxes(order), p.sorted)
	} else {
		seg.effort = p.buildTree(seg, p.refs[:len(p.boxes)], nil)
	}
}

// buildTree writes the R-tree over the boxes that were collected, and gives its effort; see rtree.Build.
func (p *Publisher) buildTree(seg *segment, refs, order []uint32) (effort float64) {
	rtree.Build(seg.treeNodes, seg.treeRefs, p.boxes, refs, order)
	p.setSum(seg, format.SectionTreeNodes, format.Checksum(seg.treeNodes))
	p.setSum(seg, format.SectionTreeRefs, format.Checksum(seg.treeRefs))
	t, err := rtree.Open(seg.treeNodes, seg.treeRefs)
	if err != nil {
		panic("snapshot: an R-tree that was just built: " + err.Error())
	}
	return t.Effort()
}

// refsOfBoxes gives the new reference of each box.
func (p *Publisher) refsOfBoxes(order []uint32) []uint32 {
	p.places = resize(p.places, len(order))
	for i, owner := range order {
		p.places[owner] = p.refs[i]
	}
	p.treeRefs = resize(p.treeRefs, len(p.boxes))
	for i, owner := range p.owners {
		p.treeRefs[i] = p.places[owner]
	}
	return p.treeRefs
}

// fillOrder writes the sorted references.
func (p *Publisher) fillOrder(seg *segment) {
	copy(seg.order, p.refs)
	p.sortRefs(seg.kind, seg.heap, seg.order)
	p.sumOrder(seg)
}

func (p *Publisher) sumOrder(seg *segment) {
	p.setSum(seg, format.SectionOrder, format.Checksum(seg.file.mem[seg.section(format.SectionOrder).Offset:][:len(seg.order)*4]))
}

func (s *segment) section(t format.SectionType) *format.Section {
	for i := range s.head.Sections {
		if s.head.Sections[i].Type == t {
			return &s.head.Sections[i]
		}
	}
	panic("snapshot: a section that was laid out is missing")
}

func (p *Publisher) setSum(seg *segment, t format.SectionType, sum uint32) { seg.section(t).Sum = sum }

// resize gives a slice of n elements, whose content is undefined.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
