package snapshot

import (
	"math"

	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

const (
	appendUnitsMin = 1024 // of a shard's append area, 64 KiB
	unitsMax       = math.MaxUint32 - 1
	fileStep       = 64 << 10 // file sizes are multiples of it, or of a sixteenth of the size, so that files fit again
	orderWordsEach = 4        // expected words of a skip list node, rounded up
)

// room is what the next generation of a shard must have place for beyond its base.
type room struct {
	units   uint64 // of the heap
	records uint64
	// scale doubles with every build that had too few overflow buckets, delta entries or skip list words.
	scale uint64
}

// shape is what decides the layout of a segment.
type shape struct {
	flags     uint16
	records   uint64 // in the base
	units     uint64 // of the base
	treeItems int    // plain boxes of the base
	room      room
	ratio     float64
	// buckets is how many the segment before had, 0 for none. As many are taken, so that its index can be copied, unless
	// they would hold an eighth more than meant.
	buckets uint32
}

// layout gives the header of a segment without identity and checksums. The heap is the last section, so that it can take
// what a larger file has to spare.
func (l *shape) layout() format.Segment {
	units, records := l.appendRoom()
	scale := max(l.room.scale, 1)
	h := format.Segment{Records: l.records, BaseUnits: uint32(l.units)}
	h.Buckets = uint32((l.records+records)/format.BucketLoad + 1)
	if l.buckets >= h.Buckets-h.Buckets/8 {
		h.Buckets = l.buckets
	}
	h.BucketsMax = h.Buckets + uint32(min((uint64(h.Buckets)/8+64)*scale, math.MaxUint32/2))
	at := uint64(format.SegmentHeader)
	add := func(t format.SectionType, size, items uint64, item uint32) {
		align := uint64(format.SectionAlign)
		if size >= format.SectionHuge {
			align = format.SectionHuge
		}
		at = (at + align - 1) / align * align
		h.Sections = append(h.Sections, format.Section{Type: t, Offset: at, Size: size, Items: items, Item: item})
		at += size
	}
	add(format.SectionChanged, max((l.units+63)/64, 1)*8, 0, 0)
	if l.flags&format.TableSpatial != 0 {
		nodes, refs := rtree.Size(l.treeItems)
		entries := (records + records/8 + 16) * scale
		add(format.SectionTreeNodes, uint64(nodes), uint64(nodes)/format.NodeSize, format.NodeSize)
		add(format.SectionTreeRefs, uint64(refs), uint64(refs)/4, 4)
		add(format.SectionDeltaCells, pow2(max(entries/2, 64))*4, 0, 4)
		add(format.SectionDelta, entries*format.DeltaEntrySize, 0, format.DeltaEntrySize)
	}
	if l.flags&format.TableOrdered != 0 {
		words := (records + 16) * orderWordsEach * scale
		add(format.SectionOrder, l.records*4, l.records, 4)
		add(format.SectionOrderDelta, (words+format.OrderHeightMax+4)*4, 0, 4)
	}
	add(format.SectionIndex, uint64(h.BucketsMax)*format.BucketSize, 0, format.BucketSize)
	add(format.SectionHeap, (l.units+units)*format.RecordAlign, l.records, 0)
	h.FileSize = at
	return h
}

// appendRoom gives the size of the append area, and how many records it is expected to take.
func (l *shape) appendRoom() (units, records uint64) {
	units = max(uint64(l.ratio*float64(l.units)), l.room.units, appendUnitsMin)
	units = min(units, unitsMax-l.units)
	each := uint64(2) // units of a record, unless the base knows better
	if l.records > 0 {
		each = max(l.units/l.records, 1)
	}
	return units, max(units/each, l.room.records)
}

// fileSize rounds the size of a segment so that the files of one shard over time are of few sizes.
func fileSize(size uint64) uint64 {
	step := max(pow2(size)/16, fileStep)
	return (size + step - 1) / step * step
}

// pow2 gives the smallest power of two that is not below n.
func pow2(n uint64) uint64 {
	p := uint64(1)
	for p < n {
		p *= 2
	}
	return p
}

// spread gives a segment a whole file: the heap grows into what is left over.
func spread(h *format.Segment, size uint64) {
	heap := &h.Sections[len(h.Sections)-1]
	room := (size - heap.Offset) / format.RecordAlign * format.RecordAlign
	heap.Size = min(room, unitsMax*format.RecordAlign)
	h.FileSize = size
}
