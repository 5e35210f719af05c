package segment

import (
	"math"

	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// The sections of a file are in this order, each at a multiple of a page or, from 2 MiB on, of a
// huge page:
//
//	header | changed bits | R-tree, its references, delta cells, delta | order, skip list | index | heap
//
// The heap is last and takes the rest of the file, because its append area runs out first. The
// other sections that commits fill, the overflow buckets, the deltas and the skip list, are sized
// for as many records as the append area is expected to take.

const (
	// UnitsMax bounds the units of a heap: references have 32 bits, and the greatest one means
	// none.
	UnitsMax = math.MaxUint32 - 1

	appendUnitsMin = 1024     // least size of an append area in units: 64 KiB
	fileStep       = 64 << 10 // least step of file sizes in bytes, see fileSize
	orderWordsEach = 4        // expected words of a node of the skip list, rounded up
	// bucketSlack: one overflow bucket is kept for so many primary ones.
	bucketSlack = 8
	// bucketReuse: the number of buckets of the generation before is kept, so that its index can be
	// copied, unless each bucket would exceed the intended load by more than 1/bucketReuse.
	bucketReuse = 8
)

// Room is the free space that a generation must have beyond its base.
type Room struct {
	Units   uint64 // of the heap
	Records uint64
	// scale doubles with every build that had too few overflow buckets, delta entries or skip list
	// words.
	scale uint64
}

// Plan is what decides the layout of a generation.
type Plan struct {
	Flags     uint16 // of the table
	Records   uint64 // in the base
	Units     uint64 // of the base
	TreeItems int    // plain boxes of the base
	Room      Room
	// AppendRatio is the size of the append area as a part of the base.
	AppendRatio float64
	// Buckets is how many primary buckets the generation before had, 0 for none.
	Buckets uint32
}

// Layout returns the header of a segment without identity and checksums. The heap is the last
// section, so that it can use the extra space of a larger file.
func (l *Plan) Layout() format.Segment {
	units, records := l.appendRoom()
	scale := max(l.Room.scale, 1)
	h := format.Segment{Records: l.Records, BaseUnits: uint32(l.Units)}
	// The index has room for the keys of the base and, if all records of the append area are new
	// keys, for theirs.
	h.Buckets = uint32((l.Records+records)/format.BucketLoad + 1)
	if l.Buckets >= h.Buckets-h.Buckets/bucketReuse {
		h.Buckets = l.Buckets
	}
	h.BucketsMax = h.Buckets + uint32(min((uint64(h.Buckets)/bucketSlack+64)*scale, math.MaxUint32/2))
	at := uint64(format.SegmentHeader)
	add := func(t format.SectionType, size, items uint64, item uint32) {
		align := uint64(format.SectionAlign)
		if size >= format.SectionHuge {
			align = format.SectionHuge // a section that begins inside a huge page would share it with another
		}
		at = (at + align - 1) / align * align
		h.Sections = append(h.Sections, format.Section{Type: t, Offset: at, Size: size, Items: items, Item: item})
		at += size
	}
	add(format.SectionChanged, max((l.Units+63)/64, 1)*8, 0, 0)
	if l.Flags&format.TableSpatial != 0 {
		nodes, refs := rtree.Size(l.TreeItems)
		// Every record of the append area may have moved. A box across the antimeridian takes two
		// entries; an eighth more covers a few of them, and scale covers many.
		entries := (records + records/8 + 16) * scale
		add(format.SectionTreeNodes, uint64(nodes), uint64(nodes)/format.NodeSize, format.NodeSize)
		add(format.SectionTreeRefs, uint64(refs), uint64(refs)/4, 4)
		add(format.SectionDeltaCells, powerOfTwo(max(entries/2, 64))*4, 0, 4)
		add(format.SectionDelta, entries*format.DeltaEntrySize, 0, format.DeltaEntrySize)
	}
	if l.Flags&format.TableOrdered != 0 {
		words := (records + 16) * orderWordsEach * scale
		add(format.SectionOrder, l.Records*4, l.Records, 4)
		add(format.SectionOrderDelta, (words+format.OrderHeightMax+4)*4, 0, 4)
	}
	add(format.SectionIndex, uint64(h.BucketsMax)*format.BucketSize, 0, format.BucketSize)
	add(format.SectionHeap, (l.Units+units)*format.RecordAlign, l.Records, 0)
	h.FileSize = at
	return h
}

// appendRoom returns the size of the append area, and how many records it is expected to take.
func (l *Plan) appendRoom() (units, records uint64) {
	units = max(uint64(l.AppendRatio*float64(l.Units)), l.Room.Units, appendUnitsMin)
	units = min(units, UnitsMax-l.Units)
	each := uint64(2) // units of a record, unless the base knows better
	if l.Records > 0 {
		each = max(l.Units/l.Records, 1)
	}
	return units, max(units/each, l.Room.Records)
}

// fileSize rounds the size of a segment to a sixteenth of the next power of two, so that the
// generations of one shard have few sizes and a recycled file fits again.
func fileSize(size uint64) uint64 {
	step := max(powerOfTwo(size)/16, fileStep)
	return (size + step - 1) / step * step
}

// powerOfTwo returns the smallest power of two that is not below n.
func powerOfTwo(n uint64) uint64 {
	p := uint64(1)
	for p < n {
		p *= 2
	}
	return p
}

// spreadHeap extends the heap to the end of a file of the given size.
func spreadHeap(h *format.Segment, size uint64) {
	heap := &h.Sections[len(h.Sections)-1]
	room := (size - heap.Offset) / format.RecordAlign * format.RecordAlign
	heap.Size = min(room, UnitsMax*format.RecordAlign)
	h.FileSize = size
}
