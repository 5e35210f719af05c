package segment

import (
	"math"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// A build is a pass over the records in the order of the new heap, which is Hilbert order in
// spatial tables. The order is decided from the boxes alone, before a record is copied, so that
// each record is read once and written once. Everything else is made over the new heap: the index
// while the records are copied, the R-tree and the order afterwards.

// Files provides the files of new generations.
type Files interface {
	// Take returns a file of at least size bytes under a new generation number, locked against
	// readers. Its content is undefined.
	Take(op rhumb.Op, slot int, size int64) (*shm.File, error)
	// Remove deletes a file.
	Remove(f *shm.File)
	// Recycle keeps a locked file, whose memory is there already, for the next Take.
	Recycle(f *shm.File)
}

// Source is the input of a build: records of one heap, each key once in the base.
type Source struct {
	Heap Heap
	Refs []uint32 // of the base
	// Replay lists the later versions that closed views need to distinguish, oldest first for each
	// key. They are appended to the base and committed.
	Replay []uint32
	// Units and ReplayUnits are the sizes of both.
	Units, ReplayUnits uint64
	// PendingFrom and PendingTo are where the records of the open commit begin and end. They are
	// appended and linked, with the version that follows the base, and not committed.
	PendingFrom, PendingTo uint32
}

// Goal describes the generation to build: its shard, its version, and the free room.
type Goal struct {
	Shard Shard
	// Version is the version of the image that the base shows.
	Version uint64
	// Closed is the least closed timestamp whose views the generation can serve.
	Closed rhumb.Timestamp
	Room   Room
}

// Builder writes new generations. It holds memory that one build after another uses: a build needs
// tens of bytes per record, and allocating them for each roll would keep the garbage collector
// busy.
//
// A build has three steps. The records are copied into the heap in an order in which queries read
// them together, the index, the R-tree and the order are made over them, and the records of
// Source.Replay and of the open commit are appended and linked as a commit would do it.
type Builder struct {
	Files Files
	// AppendRatio is the size of an append area as a part of the base.
	AppendRatio float64

	boxes    boxList
	batch    Batch
	batches  [2]Batch // of the heap: one is copied while the other goes into the index
	order    []uint32 // the records in the order of the new heap
	placed   []bool   // by record: it is in order
	refs     []uint32 // the new references, in the order of the new heap
	places   []uint32 // by record: its new reference
	treeRefs []uint32
	sortKeys []sortKey
	sorter   rtree.Sorter
	sorted   []uint32 // the boxes in Hilbert order; the sorter owns it
}

// boxList is the plain boxes of a list of records.
type boxList struct {
	boxes  []format.Box
	owners []uint32 // the record of each box
	bare   []uint32 // the records without a box
	split  bool     // a record has two boxes
}

// buildTries bounds how often a build starts again with more room.
const buildTries = 8

// Build writes a generation from records. The file stays locked against readers.
//
// How many overflow buckets, delta entries and skip list words the records take depends on their
// hashes and boxes, and is known only once they are linked. The layout has enough for the likely
// case; a build that runs out starts again with twice as many.
func (b *Builder) Build(goal Goal, src *Source) (*Segment, error) {
	const op rhumb.Op = "snapshot.build"
	need := goal.Room
	// The records that are appended again must fit after the base too, in addition to the requested
	// room.
	need.Units += src.ReplayUnits
	need.Records += uint64(len(src.Replay))
	need.scale = max(need.scale, 1)
	table := goal.Shard.Table
	for range buildTries {
		// The boxes are collected in each try, because fillHeap brings them into the order of the
		// heap.
		b.collectBoxes(table, src.Heap, src.Refs)
		plan := Plan{
			Flags: table.Flags, Records: uint64(len(src.Refs)), Units: src.Units, TreeItems: len(b.boxes.boxes), Room: need,
			AppendRatio: b.AppendRatio,
		}
		if src.Units+need.Units > UnitsMax {
			return nil, rhumb.Ef(op, rhumb.TooLarge, "shard %d of table %q outgrows %d units of its heap; give the table more shards",
				goal.Shard.Slot, table.Name, uint64(UnitsMax))
		}
		seg, err := b.NewSegment(op, goal, plan.Layout())
		if err != nil {
			return nil, err
		}
		full, err := b.fillSegment(goal.Shard, seg, src)
		if err == nil && !full {
			return seg, nil
		}
		// The next try needs a larger file, so that this one is of no use for it.
		b.Files.Remove(seg.File)
		if err != nil {
			return nil, err
		}
		need.scale *= 2
	}
	return nil, rhumb.Ef(op, rhumb.Internal, "shard %d of table %q: no layout holds its %d keys", goal.Shard.Slot, table.Name, len(src.Refs))
}

// NewSegment takes a file for a header and clears what must begin as zero, except the index, which
// every build fills whole.
func (b *Builder) NewSegment(op rhumb.Op, goal Goal, head format.Segment) (*Segment, error) {
	shard := goal.Shard
	file, err := b.Files.Take(op, shard.Slot, int64(fileSize(head.FileSize)))
	if err != nil {
		return nil, err
	}
	spreadHeap(&head, uint64(len(file.Mem)))
	head.Generation, head.Shard, head.Table = file.Generation, uint32(shard.Slot), shard.Table.ID
	head.Image, head.KeyKind = shard.Root.Image, shard.Table.KeyKind
	// The header goes into the file only when the segment is complete, in Complete: until then a
	// file that a crash leaves has no magic.
	head.Base, head.Closed = goal.Version, goal.Closed
	seg := newSegment(file, shard)
	seg.Head = head
	seg.bindSections()
	clear(file.Mem[:format.SegmentHeader])
	clear(seg.changed)
	clear(seg.cells)
	if seg.skip != nil {
		seg.clearSkipList()
	}
	return seg, nil
}

// newSegment returns a segment of a file whose header is not known yet.
func newSegment(file *shm.File, shard Shard) *Segment {
	return &Segment{
		File: file, Heap: Heap{Kind: shard.Table.KeyKind}, Base: BaseStats{Expires: math.MaxInt64},
		keys: shard.Root, summed: shard.Table.Summed(),
	}
}

// collectBoxes lists the plain boxes of records of a spatial table.
func (b *Builder) collectBoxes(t *format.Table, heap Heap, refs []uint32) {
	l := &b.boxes
	l.boxes, l.owners, l.bare, l.split = l.boxes[:0], l.owners[:0], l.bare[:0], false
	if !t.Spatial() {
		return
	}
	for i, ref := range refs {
		if i%GroupSize == 0 {
			b.fetchRecords(heap, refs, nil, i+GroupSize)
		}
		box, ok := heap.Box(ref)
		if !ok {
			l.bare = append(l.bare, uint32(i))
			continue
		}
		// A box across the antimeridian is two plain boxes, each with a leaf of its own.
		parts, n := box.Split()
		for _, part := range parts[:n] {
			l.boxes = append(l.boxes, part)
			l.owners = append(l.owners, uint32(i))
		}
		l.split = l.split || n > 1
	}
}

// fetchRecords requests the group of records that begins at i, if there is one. A nil order is that
// of refs.
func (b *Builder) fetchRecords(heap Heap, refs, order []uint32, i int) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(heap.Mem)))
	n := 0
	for ; n < GroupSize && i+n < len(refs); n++ {
		k := i + n
		if order != nil {
			k = int(order[k])
		}
		b.batch.addrs[n] = from + uintptr(refs[k])*format.RecordAlign
	}
	prefetchPairs(&b.batch.addrs, n)
}

// fillSegment writes everything into a new segment. full reports that overflow buckets, delta
// entries or skip list words have run out.
func (b *Builder) fillSegment(shard Shard, seg *Segment, src *Source) (full bool, err error) {
	order := b.heapOrder(shard.Table, src)
	sum, full, err := b.fillHeap(shard, seg, src, order)
	if full || err != nil {
		return full, err
	}
	seg.section(format.SectionHeap).Sum = sum
	if shard.Table.Spatial() {
		b.fillTree(seg, order)
	}
	if shard.Table.Ordered() {
		b.fillOrder(seg)
	}
	return !b.Complete(seg, src, int64(len(src.Refs))), nil
}

// Complete appends the records that a roll takes along to a base, links them, and declares the
// segment live. live is the number of keys that the base shows. It reports false if overflow
// buckets, delta entries or skip list words have run out.
//
// The pending records come last and are not settled: append_head stays before them, so that
// recovery aborts them if the open commit is never finished.
func (b *Builder) Complete(seg *Segment, src *Source, live int64) bool {
	seg.live = live
	seg.done, seg.raised, seg.tail = seg.Head.BaseUnits, seg.Head.BaseUnits, seg.Head.BaseUnits
	for _, ref := range src.Replay {
		seg.tail += seg.CopyRecord(seg.tail, src.Heap, ref, 0)
	}
	if !seg.linkRange(&b.batch, seg.done, seg.tail) {
		return false
	}
	// The replayed records are committed. The counters are stored before the header makes the file
	// a segment.
	seg.settleAll()
	for ref := src.PendingFrom; ref < src.PendingTo; {
		n := seg.CopyRecord(seg.tail, src.Heap, ref, 1)
		seg.tail += n
		ref += n
	}
	// From here on the rules of an open commit hold: published first, then linked, and settled only
	// by Publish of the commit.
	seg.Publish()
	if !seg.linkRange(&b.batch, seg.done, seg.tail) {
		return false
	}
	// The header comes last and the state after it: recovery takes a file with a valid header in
	// state live for a whole generation.
	format.EncodeSegment(seg.File.Mem, seg.Head)
	seg.File.Store64(format.SegmentState, format.SegmentLiveState)
	return true
}

// heapOrder returns the order of the records in the heap: along the Hilbert curve, then those
// without a box, so that a query by place reads records that lie together. nil is the order of the
// source.
func (b *Builder) heapOrder(t *format.Table, src *Source) []uint32 {
	if !t.Spatial() {
		return nil
	}
	l := &b.boxes
	b.sorted = b.sorter.Order(l.boxes)
	if len(l.boxes) == len(src.Refs) && !l.split {
		return b.sorted // each record has one box, so boxes and records have the same numbers
	}
	// A record with two boxes comes up twice and takes its first place.
	b.placed = resizeSlice(b.placed, len(src.Refs))
	clear(b.placed)
	out := b.order[:0]
	for _, item := range b.sorted {
		if owner := l.owners[item]; !b.placed[owner] {
			b.placed[owner] = true
			out = append(out, owner)
		}
	}
	b.order = append(out, l.bare...)
	return b.order
}

// fillHeap writes the base and puts it into the index. It leaves the new references in b.refs and,
// if no record has two boxes, the boxes in their order, and returns the checksum.
//
// Three groups are under way: one is prefetched, one is copied, and one goes into the index, whose
// buckets were prefetched when the group was copied. With 4 M records this took 470 ns per record
// instead of 620 to 750.
func (b *Builder) fillHeap(shard Shard, seg *Segment, src *Source, order []uint32) (sum uint32, full bool, err error) {
	// The file may be a recycled one. Sections that are written whole need no clearing; the index
	// is probed while it is filled.
	clear(seg.index)
	b.refs = resizeSlice(b.refs, len(src.Refs))
	at := uint32(0)
	b.batches[0].n, b.batches[1].n = 0, 0
	b.fetchRecords(src.Heap, src.Refs, order, 0)
	for i := 0; i < len(src.Refs) || b.batches[0].n+b.batches[1].n > 0; i += GroupSize {
		b.fetchRecords(src.Heap, src.Refs, order, i+GroupSize)
		batch, last := &b.batches[i/GroupSize%2], &b.batches[1-i/GroupSize%2]
		end := b.placeGroup(seg, src, order, batch, i, at)
		// The sum is taken while the group is in the cache.
		sum = format.ExtendChecksum(sum, seg.Heap.Mem[int(at)*format.RecordAlign:int(end)*format.RecordAlign])
		at = end
		for j, ref := range last.refs[:last.n] {
			// Every key is compared with those already in the index. Load cannot know that its keys
			// are distinct, and a duplicate key would hide one of its records permanently.
			place := seg.probe(last.hashes[j], seg.Heap, ref)
			if place.found {
				return 0, false, rhumb.Ef("snapshot.build", rhumb.InvalidArgument, "table %q: key %q occurs twice; give each key once",
					shard.Table.Name, seg.Heap.keyText(ref))
			}
			if !seg.insertAt(place, last.hashes[j], ref) {
				return 0, true, nil
			}
		}
		last.n = 0
	}
	// A source that miscounts would make a base whose end no record meets.
	if uint64(at) != src.Units {
		return 0, false, rhumb.Ef("snapshot.build", rhumb.Internal, "the base has %d units, counted %d", at, src.Units)
	}
	return sum, false, nil
}

// placeGroup copies the group of records that begins at i to a unit, requests the buckets that the
// records go into, and returns the unit after them.
func (b *Builder) placeGroup(seg *Segment, src *Source, order []uint32, batch *Batch, i int, at uint32) uint32 {
	l := &b.boxes
	for batch.n = 0; batch.n < GroupSize && i < len(src.Refs); i++ {
		k := i
		if order != nil {
			k = int(order[i])
		}
		// Version 0 is the base, and no predecessor: earlier versions are not in this generation.
		units := seg.CopyRecord(at, src.Heap, src.Refs[k], 0)
		seg.countBase(at)
		b.refs[i] = at
		if i < len(l.boxes) && !l.split {
			// The boxes take the order of the heap, so that the tree is built without looking each
			// of them up by number.
			l.boxes[i], _ = seg.Heap.Box(at)
		}
		hash := seg.hashOf(at)
		batch.addrs[batch.n] = seg.bucketAddress(hash)
		batch.Add(seg, hash, at)
		at += units
	}
	prefetch(&batch.addrs, batch.n)
	return at
}

// fillTree writes the R-tree over the base. If no record has two boxes, placeGroup has brought
// boxes and references into the order of the leaves already.
func (b *Builder) fillTree(seg *Segment, order []uint32) {
	if b.boxes.split {
		seg.Base.Effort = b.writeTree(seg, b.refsOfBoxes(order), b.sorted)
	} else {
		seg.Base.Effort = b.writeTree(seg, b.refs[:len(b.boxes.boxes)], nil)
	}
}

// BuildTree writes an R-tree over records of a base and returns its effort. The first kept leaves
// keep their order; the others are sorted among themselves. ok is false if a box crosses the
// antimeridian: then a record has two leaves.
func (b *Builder) BuildTree(seg *Segment, t *format.Table, refs []uint32, kept int) (effort float64, ok bool) {
	b.collectBoxes(t, seg.Heap, refs)
	if b.boxes.split {
		return 0, false
	}
	return b.writeTree(seg, refs, b.leafOrder(kept)), true
}

// leafOrder returns the order of the leaves, in which the first n keep their positions; nil if n is
// all of them.
func (b *Builder) leafOrder(n int) []uint32 {
	boxes := b.boxes.boxes
	if n == len(boxes) {
		return nil
	}
	b.order = resizeSlice(b.order, len(boxes))
	for i := range n {
		b.order[i] = uint32(i)
	}
	for i, at := range b.sorter.Order(boxes[n:]) {
		b.order[n+i] = uint32(n) + at
	}
	return b.order
}

// writeTree writes the R-tree over the boxes that were collected, and returns its effort.
func (b *Builder) writeTree(seg *Segment, refs, order []uint32) (effort float64) {
	rtree.Build(seg.treeNodes, seg.treeRefs, b.boxes.boxes, refs, order)
	seg.section(format.SectionTreeNodes).Sum = format.Checksum(seg.treeNodes)
	seg.section(format.SectionTreeRefs).Sum = format.Checksum(seg.treeRefs)
	// Opened for its effort, which later rolls compare with.
	t, err := rtree.Open(seg.treeNodes, seg.treeRefs)
	if err != nil {
		panic("snapshot: an R-tree that was just built: " + err.Error())
	}
	return t.Effort()
}

// refsOfBoxes returns the new reference of each box.
func (b *Builder) refsOfBoxes(order []uint32) []uint32 {
	b.places = resizeSlice(b.places, len(order))
	for i, owner := range order {
		b.places[owner] = b.refs[i]
	}
	b.treeRefs = resizeSlice(b.treeRefs, len(b.boxes.boxes))
	for i, owner := range b.boxes.owners {
		b.treeRefs[i] = b.places[owner]
	}
	return b.treeRefs
}
