package roll

import (
	"slices"

	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// The parts of a kept generation are written in dependency order: the heap, then R-tree and order,
// which read boxes and keys from the heap, then the index, and last the records after the base,
// which are linked into all of them.

// effortGrowth bounds the effort of the R-tree relative to that of a tree with sorted leaves. Small
// moves hardly increase the effort; sorting all leaves again takes several times as long as a roll
// without sorting.
const effortGrowth = 1.25

// Build writes the planned generation. The file stays locked against readers. If the layout turns
// out not to be worth keeping, Build recycles the file and returns the reason.
func (k *Kept) Build() (*segment.Segment, Reason, error) {
	in, builder := &k.in, k.roller.Builder
	room := in.Room
	room.Units += k.replayUnits
	room.Records += uint64(len(k.replay))
	plan := segment.Plan{
		Flags: in.Shard.Table.Flags, Records: k.records, Units: k.units, Room: room, AppendRatio: builder.AppendRatio,
	}
	if in.Old.IsSpatial() {
		plan.TreeItems = k.leaves()
	}
	// An index with many overflow buckets is slow to read, so it is rebuilt instead of copied.
	if in.Old.OverflowBuckets() <= (in.Old.Head.BucketsMax-in.Old.Head.Buckets)/2 {
		plan.Buckets = in.Old.Head.Buckets
	}
	seg, err := builder.NewSegment("snapshot.roll", in.goal(k.newest, room), plan.Layout())
	if err != nil {
		return nil, "", err
	}
	if reason := k.writeParts(seg); reason != "" {
		builder.Files.Recycle(seg.File)
		return nil, reason, nil
	}
	return seg, "", nil
}

// writeParts writes all parts of the base and what follows it. The heap is first: the tree and the
// order are made from the records there.
func (k *Kept) writeParts(seg *segment.Segment) Reason {
	k.writeHeap(seg)
	if reason := k.writeTree(seg); reason != "" {
		return reason
	}
	if reason := k.writeOrder(seg); reason != "" {
		return reason
	}
	if !k.writeIndex(seg) {
		return BucketsRanOut
	}
	old := k.in.Old
	src := segment.Source{Heap: old.Heap, Replay: k.replay, PendingFrom: old.Done(), PendingTo: old.Tail()}
	if !k.roller.Builder.Complete(seg, &src, int64(k.records)-seg.Base.Dead) {
		return AppendAreaFull
	}
	return ""
}

// writeHeap copies the base and writes what changes in it. Each group of changes is prefetched
// while the previous group is written, because the sources and the destinations are scattered over
// memory.
func (k *Kept) writeHeap(seg *segment.Segment) {
	old := k.in.Old
	size := int(k.base) * format.RecordAlign
	// One sequential copy is faster than copying only the unchanged records, which are interleaved
	// with changed ones.
	copy(seg.Heap.Mem, old.Heap.Mem[:size])
	k.fetchChanges(seg, 0)
	for i := 0; i < len(k.changes); i += segment.GroupSize {
		k.fetchChanges(seg, i+segment.GroupSize)
		for j := i; j < min(i+segment.GroupSize, len(k.changes)); j++ {
			if c := &k.changes[j]; c.from != segment.NoRef {
				writeChange(seg, old, c)
			}
		}
	}
	for _, ref := range k.ended {
		seg.Bury(ref)
	}
	// The checksum of the copied part is known unless a record in it changed, which is nearly
	// always the case.
	from := size
	if k.replaces {
		from = 0
	}
	seg.SumHeap(old, from, int(k.units)*format.RecordAlign)
	seg.Base = k.stats
}

// writeChange writes the version of a key that the new base contains.
func writeChange(seg, old *segment.Segment, c *change) {
	if c.root != segment.NoRef {
		if c.shape.Gone {
			seg.Bury(c.to)
			return
		}
		if c.to != c.root {
			seg.Abandon(c.root) // nothing refers to the old place any more
		}
	}
	seg.CopyRecord(c.to, old.Heap, c.from, 0)
	if c.ended {
		seg.Bury(c.to)
	}
}

// fetchChanges prefetches the memory that the group of changes beginning at i reads and writes.
func (k *Kept) fetchChanges(seg *segment.Segment, i int) {
	fetches := &k.roller.fetches
	for end := min(i+segment.GroupSize, len(k.changes)); i < end; i++ {
		if c := &k.changes[i]; c.from != segment.NoRef {
			fetches.AddCopy(k.in.Old.Heap, c.from, seg.Heap, c.to)
		}
	}
	fetches.Start()
}

// writeTree writes the R-tree over the new base. If no box changes, the tree is copied. Otherwise
// its leaves keep their order and take the new boxes, and the leaves of keys that had no box
// follow, sorted among themselves. writeTree returns the reason if the tree would be too slow to
// search: boxes that move far make nodes overlap.
func (k *Kept) writeTree(seg *segment.Segment) Reason {
	old := k.in.Old
	if !old.IsSpatial() {
		return ""
	}
	if !k.changesTree() {
		seg.CopyTree(old, &k.moves)
		return ""
	}
	// The leaves keep their order, whatever their boxes are now. This makes writeTree several times
	// as fast as sorting.
	refs := k.roller.refs[:0]
	for _, ref := range old.TreeRefs()[:k.tree.Items()] {
		// A leaf of the old tree refers to the old base. Any other reference is damage, and readers
		// would follow a copy of it.
		if ref >= k.base {
			return TreeDamaged
		}
		// A record that moved and no longer has a box loses its leaf. A deleted record keeps its
		// box and its leaf.
		at := k.moves.PlaceOf(ref)
		if _, ok := seg.Heap.Box(at); ok || at == ref {
			refs = append(refs, at)
		}
	}
	n := len(refs)
	refs = append(refs, k.boxed...)
	k.roller.refs = refs
	if seg.Base.Effort == 0 { // unknown after a restart, or before the first boxes
		seg.Base.Effort = k.tree.Effort()
	}
	effort, ok := k.roller.Builder.BuildTree(seg, k.in.Shard.Table, refs, n)
	switch {
	case !ok:
		return BoxCrosses
	case effort > effortGrowth*seg.Base.Effort:
		// The effort of the sorted tree remains the reference: otherwise each roll could make the
		// tree a little worse, without limit.
		return TreeGrewWorse
	}
	return ""
}

// writeOrder writes the order of the new base: the old one, with the keys that it lacks merged in.
func (k *Kept) writeOrder(seg *segment.Segment) Reason {
	old := k.in.Old
	switch {
	case !seg.IsOrdered():
		return ""
	case len(k.added) == 0:
		seg.CopyOrder(old, &k.moves)
		return ""
	case slices.ContainsFunc(old.Order(), func(ref uint32) bool { return ref >= k.base }):
		return OrderDamaged
	}
	// Usually few keys are new. Sorting them and merging is linear in the base, with comparisons
	// only near their positions.
	k.roller.Builder.SortRefs(seg.Heap, k.added)
	seg.MergeOrder(old, k.added, &k.moves)
	return ""
}

// writeIndex writes the index over the new base: a copy of the old one, in which each reference to
// the append area is replaced by the place of its key. The index is rebuilt if the layout has
// another number of buckets, or if the old index has keys that the base lacks, added by the open
// commit or an aborted one. It reports false if overflow buckets run out.
func (k *Kept) writeIndex(seg *segment.Segment) bool {
	old := k.in.Old
	// The copy fails if a key has no place in the base. Then RebuildIndex overwrites it.
	if seg.CanCopyIndex(old) {
		// Without changes no reference points beyond the base, so the copy need not examine each
		// slot.
		moved := k.placeOfAppended
		if len(k.changes) == 0 {
			moved = nil
		}
		if k.copiedIndex = seg.CopyIndex(old, k.base, moved); k.copiedIndex {
			return true
		}
	}
	return k.roller.Builder.RebuildIndex(seg)
}
