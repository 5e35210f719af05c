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
	scattered bool // the records do not lie one behind the other
	heap      []byte
	refs      []uint32 // of the base
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
	boxes    []format.Box
	owners   []uint32 // the record of each box
	refs     []uint32 // in the order of the new heap
	placed   []uint32 // by record, the new reference plus one
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
	p.collectBoxes(s.table, src)
	for range buildTries {
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
	p.boxes, p.owners = p.boxes[:0], p.owners[:0]
	if !t.Spatial() {
		return
	}
	for i, ref := range src.refs {
		if i%group == 0 && src.scattered {
			p.fetch(src, i)
		}
		b, ok := box(src.heap, ref)
		if !ok {
			continue
		}
		parts, n := b.Split()
		for _, part := range parts[:n] {
			p.boxes = append(p.boxes, part)
			p.owners = append(p.owners, uint32(i))
		}
	}
}

// fetch asks for the records of the group that begins at i.
func (p *Publisher) fetch(src *source, i int) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(src.heap)))
	n := 0
	for _, ref := range src.refs[i:min(i+group, len(src.refs))] {
		p.batch.addrs[n] = from + uintptr(ref)*format.RecordAlign
		n++
	}
	prefetch(&p.batch.addrs, n)
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
		p.fillTree(seg)
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

// heapOrder gives the order in which the records are laid down: along the Hilbert curve, then those without a box. nil is the
// order of the source.
func (p *Publisher) heapOrder(t *Table, src *source) []uint32 {
	if !t.Spatial() {
		return nil
	}
	n := len(src.refs)
	p.placed = resize(p.placed, n)
	clear(p.placed)
	out := p.refs[:0]
	p.sorted = p.sorter.Order(p.boxes)
	for _, item := range p.sorted {
		if owner := p.owners[item]; p.placed[owner] == 0 {
			p.placed[owner] = 1
			out = append(out, owner)
		}
	}
	for i := range n {
		if p.placed[i] == 0 {
			out = append(out, uint32(i))
		}
	}
	p.refs = out
	return out
}

// fillHeap lays the base down and puts it into the index. It leaves the new references in placed and gives the checksum.
func (p *Publisher) fillHeap(s *shard, seg *segment, src *source, order []uint32) (sum uint32, full bool, err error) {
	clear(seg.index)
	p.placed = resize(p.placed, len(src.refs))
	at, summed := uint32(0), uint32(0)
	from := uintptr(unsafe.Pointer(unsafe.SliceData(src.heap)))
	b := &p.batch
	for i := 0; i < len(src.refs); i += group {
		b.n = min(group, len(src.refs)-i)
		for j := range b.n {
			k := i + j
			if order != nil {
				k = int(order[k])
			}
			b.refs[j] = uint32(k)
			b.addrs[j] = from + uintptr(src.refs[k])*format.RecordAlign
		}
		if order != nil || src.scattered {
			prefetchPairs(&b.addrs, b.n)
		}
		at = p.placeBatch(seg, src, b, at)
		for j := range b.n {
			ref := b.refs[j]
			place := seg.probe(b.hashes[j], seg.heap, ref)
			if place.found {
				return 0, false, p.duplicate(s, seg, ref)
			}
			if !seg.insert(place, b.hashes[j], ref) {
				return 0, true, nil
			}
		}
		sum = format.ExtendChecksum(sum, seg.heap[int(summed)*format.RecordAlign:int(at)*format.RecordAlign])
		summed = at
	}
	if uint64(at) != src.units {
		return 0, false, rhumb.Ef("snapshot.build", rhumb.Internal, "the base has %d units, counted %d", at, src.units)
	}
	return sum, false, nil
}

// placeBatch copies a group of records and fetches the buckets that they go into.
func (p *Publisher) placeBatch(seg *segment, src *source, b *batch, at uint32) uint32 {
	index := uintptr(unsafe.Pointer(unsafe.SliceData(seg.index)))
	for j := range b.n {
		k := b.refs[j]
		n := seg.copyRecord(at, src.heap, src.refs[k], 0)
		seg.noteExpiry(at)
		p.placed[k] = at + 1
		b.refs[j] = at
		b.hashes[j] = hashOf(seg.keys, seg.kind, seg.record(at))
		b.addrs[j] = index + uintptr(format.BucketOf(b.hashes[j], seg.head.Buckets))*format.BucketSize
		at += n
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

// fillTree writes the R-tree over the base; boxes, owners and the sorter's order are those of heapOrder.
func (p *Publisher) fillTree(seg *segment) {
	p.treeRefs = resize(p.treeRefs, len(p.boxes))
	for i, owner := range p.owners {
		p.treeRefs[i] = p.placed[owner] - 1
	}
	rtree.Build(seg.treeNodes, seg.treeRefs, p.boxes, p.treeRefs, p.sorted)
	p.setSum(seg, format.SectionTreeNodes, format.Checksum(seg.treeNodes))
	p.setSum(seg, format.SectionTreeRefs, format.Checksum(seg.treeRefs))
}

// fillOrder writes the sorted references.
func (p *Publisher) fillOrder(seg *segment) {
	for i := range seg.order {
		seg.order[i] = p.placed[i] - 1
	}
	p.sortRefs(seg.kind, seg.heap, seg.order)
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
