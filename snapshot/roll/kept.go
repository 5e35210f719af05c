package roll

import (
	"math"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// The plan scans the append area once. Each record there belongs to a change, one per key, and
// after the scan the change holds the version for the new base. Everything else is derived from the
// changes: the places of versions, the references that must be updated, the number of leaves of the
// R-tree, and the amount of unused space.

const (
	// wasteShare bounds the unused part of a base: if more than one unit in wasteShare is unused, a
	// roll builds a new layout. Deleted records, whose keys stay in the index, and places that
	// records left count as unused. Tables grow by at most this share. In return each unused unit
	// costs at most wasteShare times the time that a new layout takes for one unit.
	wasteShare = 8
	// planAhead is how many units of the append area are read into the cache before their records
	// are decoded: 4 KiB.
	planAhead = 4 << 10 / format.RecordAlign
)

// Kept is the plan of a roll that keeps the layout of the base.
type Kept struct {
	roller *Roller
	in     Input

	// changeOf has, for each unit of the append area at which a record begins, the change that the
	// record belongs to. The index refers to records of the append area, and each such reference
	// must be replaced by the place of its key.
	changeOf []uint32
	changes  []change
	added    []uint32 // the places of keys that the base lacked
	boxed    []uint32 // the places of records whose keys had no box before
	replay   []uint32 // later versions that closed views need to distinguish, in the order of the append area
	ended    []uint32 // records of the base that have ended and that no change replaces
	moves    segment.Moves
	replaced []uint64 // a bit for each unit of the base: a change replaces the record there; only for planEnded

	base           uint32 // where the append area begins
	units, records uint64 // of the new base
	replayUnits    uint64
	newest         rhumb.Timestamp
	stats          segment.BaseStats // of the new base
	tree           rtree.Tree        // of the old base
	unboxed        int               // records that had a box and have none now
	readsBase      bool              // the shapes of the replaced versions are looked at
	fresh          bool              // a key comes that the base lacks
	replaces       bool              // a record of the base changes
	moved          bool              // a record of the base has another box
	copiedIndex    bool              // set by Build
}

// change is the outcome for a key that has records in the append area.
//
// A key without committed records has a change too: its from is NoRef, and its to is the record of
// the base, which stays, or NoRef.
type change struct {
	root     uint32        // its record in the base, NoRef for none
	from     uint32        // the version for the new base, as a reference to the old heap
	to       uint32        // the place of that version in the new heap
	shape    segment.Shape // of from
	replayed bool          // later versions are appended again, so from is final
	crosses  bool          // the box of from crosses the antimeridian
	ended    bool          // from has ended: a tombstone takes its place
}

// PlanKept plans a roll that keeps the layout of the base, or returns the reason why that is not
// possible or not worth it.
func (r *Roller) PlanKept(in Input) (*Kept, Reason) {
	k := &r.kept
	if in.Old.Head.BaseUnits == 0 {
		return nil, EmptyBase
	}
	k.reset(r, in)
	// The steps in order: the version of each key, then its place, then the expired records, and
	// only then the amount of unused space.
	if !k.collectChanges() {
		return nil, TimestampsFall
	}
	if k.readsBase || k.fresh {
		k.placeChanges()
	}
	if k.stats.Expires <= in.Wall {
		k.planEnded()
	}
	switch {
	case k.stats.Waste > k.units/wasteShare:
		return nil, TooMuchWaste
	case k.units+in.Room.Units+k.replayUnits > segment.UnitsMax:
		return nil, HeapFull
	case !in.Old.IsSpatial():
		return k, ""
	}
	return k, k.planTree()
}

// reset begins a plan in the memory of the one before.
func (k *Kept) reset(r *Roller, in Input) {
	old := in.Old
	// All slices keep their memory from roll to roll; a roll of a million records would otherwise
	// allocate tens of megabytes each time.
	base := old.Head.BaseUnits
	moves, replaced := k.moves, k.replaced
	moves.Reset(base)
	*k = Kept{
		roller: r, in: in,
		changeOf: resizeSlice(k.changeOf, int(old.Tail()-base)), changes: k.changes[:0], added: k.added[:0], boxed: k.boxed[:0],
		replay: k.replay[:0], ended: k.ended[:0], moves: moves, replaced: replaced,
		base: base, units: uint64(base), records: old.Head.Records, stats: old.Base, readsBase: old.Reshaped(),
	}
}

// collectChanges scans the append area and determines the change of each key. It reports false if
// the timestamps of a key fall, so that closed views need a version other than the latest.
func (k *Kept) collectChanges() bool {
	old, heap := k.in.Old, k.in.Old.Heap
	read := k.base
	for ref := k.base; ref < old.Tail(); {
		if ref >= read {
			read = min(ref+planAhead, old.Tail())
			format.ReadAhead(heap.Mem[int(ref)*format.RecordAlign : int(read)*format.RecordAlign])
		}
		// Only the length of a record locates the next one, so the area must be read in order.
		h, units := heap.At(ref), heap.Units(ref)
		i := uint32(len(k.changes))
		if h.Prev != segment.NoRef && h.Prev >= k.base {
			i = k.changeOf[h.Prev-k.base] // predecessors come first, so theirs is known
		} else {
			k.changes = append(k.changes, change{root: h.Prev, from: segment.NoRef, to: h.Prev})
		}
		k.changeOf[ref-k.base] = i
		// Records of the open commit and aborted ones have a change, because the index may lead to
		// them, but they do not affect the base.
		if ref < old.Done() && h.Ver != format.AbortedVersion && !k.keepVersion(&k.changes[i], ref, units) {
			return false
		}
		ref += units
	}
	return true
}

// keepVersion decides about a committed record of the append area: it goes into the base, replacing
// earlier versions of its key, or it is appended again. It reports false if the timestamps of the
// key fall.
//
// Views at the last closed timestamp see the latest version that is not later than it, and views at
// later timestamps see the versions that followed. So the base takes the last version up to the
// closed timestamp, and for a new key the first version of all. If a record with an earlier
// timestamp follows a version that is appended again, views would show the wrong one.
func (k *Kept) keepVersion(c *change, ref, units uint32) bool {
	heap := k.in.Old.Heap
	h, at := heap.At(ref), heap.HLC(ref)
	k.newest = max(k.newest, at)
	// The first version of a new key goes into the base whatever its timestamp: no earlier version
	// exists that a view could need.
	first := c.root == segment.NoRef && c.from == segment.NoRef
	switch {
	case !first && k.in.Closed != 0 && at > k.in.Closed:
		c.replayed = true
		k.replay = append(k.replay, ref)
		k.replayUnits += uint64(units)
		return true
	case c.replayed:
		return false
	}
	c.from, c.shape = ref, segment.Shape{Units: units, Gone: heap.IsTombstone(ref), Boxed: h.Flags&format.FlagBox != 0}
	if c.root == segment.NoRef {
		k.fresh = true
	} else {
		k.replaces = true
		// The segment has compared the boxes when it linked the record.
		k.moved = k.moved || h.Flags&format.FlagMoved != 0
	}
	// Recorded here, while the record is in the cache; planTree needs it only if the tree changes.
	box, ok := heap.Box(ref)
	c.crosses = ok && box.Crosses()
	// A version that a later one replaces counts too, which at worst makes planEnded run once in
	// vain.
	if end := heap.Expiry(ref); end != 0 {
		k.stats.Expires = min(k.stats.Expires, end)
	}
	return true
}

// placeChanges assigns places to versions that do not replace earlier ones in place. If it must
// read the replaced versions, it prefetches them group by group.
func (k *Kept) placeChanges() {
	heap, fetches := k.in.Old.Heap, &k.roller.fetches
	for i := 0; i < len(k.changes); i += segment.GroupSize {
		changes := k.changes[i:min(i+segment.GroupSize, len(k.changes))]
		if k.readsBase {
			for j := range changes {
				if root := changes[j].root; root != segment.NoRef {
					fetches.AddRead(heap, root)
				}
			}
			fetches.Wait()
		}
		for j := range changes {
			k.placeChange(&changes[j])
		}
	}
}

// placeChange assigns the place of one version. Keys that the base lacks follow the base. A version
// of a key in the base keeps the old place if it fits; in a segment that is not reshaped every
// version fits, so nothing has to be read.
func (k *Kept) placeChange(c *change) {
	switch {
	case c.from == segment.NoRef: // no record of the key was committed
	case c.root == segment.NoRef:
		c.to = k.takePlace(c.shape.Units)
		// New keys need a place in the order and, with a box, a leaf. The index needs nothing: it
		// already refers to the record in the append area, and that reference is replaced.
		k.added = append(k.added, c.to)
		k.records++
		k.countIdle(c.shape, segment.Shape{})
		if c.shape.Boxed {
			k.boxed = append(k.boxed, c.to)
		}
	case k.readsBase:
		was := k.in.Old.Heap.ShapeOf(c.root)
		k.countIdle(c.shape, was)
		if !c.shape.Fits(was) {
			k.leavePlace(c, was)
		}
	}
}

// takePlace returns a place after everything else. If the base outgrows the references, the layout
// is not kept, so the place does not matter.
func (k *Kept) takePlace(units uint32) uint32 {
	at := uint32(min(k.units, segment.UnitsMax))
	k.units += uint64(units)
	return at
}

// countIdle updates the unused space when a version replaces another one. If there is no earlier
// version, was has 0 units.
func (k *Kept) countIdle(v, was segment.Shape) {
	if was.Gone {
		k.stats.Dead--
		k.stats.Waste -= uint64(was.Units)
	}
	switch {
	case v.Gone && was.Units == 0:
		k.stats.Dead++
		k.stats.Waste += uint64(v.Units)
	case v.Gone: // the tombstone keeps the place of the version that it deletes
		k.stats.Dead++
		k.stats.Waste += uint64(was.Units)
	case !v.Fits(was):
		k.stats.Waste += uint64(was.Units)
	}
}

// leavePlace moves a key to a new place after the base.
func (k *Kept) leavePlace(c *change, was segment.Shape) {
	c.to = k.takePlace(c.shape.Units)
	k.moves.Move(c.root, c.to)
	switch {
	case c.shape.Boxed && !was.Boxed:
		k.boxed = append(k.boxed, c.to)
	case was.Boxed && !c.shape.Boxed:
		k.unboxed++
	}
}

// planEnded finds the expired records, and when the next record expires. It reads the whole base,
// so it runs only if the earliest expiry has passed. Records that a change replaces do not count.
func (k *Kept) planEnded() {
	heap := k.in.Old.Heap
	// A bit per unit: the changes are unordered, and the walk over the base looks up every record.
	k.replaced = resizeSlice(k.replaced, int(k.base/64)+1)
	clear(k.replaced)
	for i := range k.changes {
		if c := &k.changes[i]; c.from != segment.NoRef && c.root != segment.NoRef {
			k.replaced[c.root/64] |= 1 << (c.root % 64)
		}
	}
	// Recomputed below from the records of the new base.
	k.stats.Expires = math.MaxInt64
	for ref := uint32(0); ref < k.base; ref += heap.Units(ref) {
		if k.replaced[ref/64]>>(ref%64)&1 == 0 && !heap.IsAborted(ref) && !heap.IsTombstone(ref) && k.hasEnded(ref) {
			k.ended = append(k.ended, ref)
			k.stats.Waste += uint64(heap.Units(ref))
			k.replaces = true
		}
	}
	for i := range k.changes {
		if c := &k.changes[i]; c.from != segment.NoRef && !c.shape.Gone && k.hasEnded(c.from) {
			c.ended = true
			k.stats.Waste += uint64(c.shape.Units)
		}
	}
}

// hasEnded reports whether a record has expired, and counts it. If not, hasEnded records when it
// will expire.
func (k *Kept) hasEnded(ref uint32) bool {
	switch end := k.in.Old.Heap.Expiry(ref); {
	case end == 0:
		return false
	case end <= k.in.Wall:
		k.stats.Dead++
		return true
	default:
		k.stats.Expires = min(k.stats.Expires, end)
		return false
	}
}

// planTree returns the reason if the leaves of the R-tree cannot keep their order.
func (k *Kept) planTree() Reason {
	tree, err := k.in.Old.Tree()
	if err != nil {
		return TreeDamaged
	}
	k.tree = tree
	if !k.changesTree() {
		return ""
	}
	if k.leaves() > rtree.ItemsMax {
		return TreeFull
	}
	// Some record of the base has two leaves, and a leaf does not record which part of the box it
	// is.
	if k.stats.Split {
		return BoxCrosses
	}
	for i := range k.changes {
		if c := &k.changes[i]; c.from != segment.NoRef && c.crosses {
			return BoxCrosses
		}
	}
	return ""
}

// changesTree reports whether a box moved, came or went.
func (k *Kept) changesTree() bool { return k.moved || len(k.boxed) > 0 || k.unboxed > 0 }

// leaves returns the number of leaves of the new R-tree.
func (k *Kept) leaves() int { return k.tree.Items() + len(k.boxed) - k.unboxed }

// placeOfAppended returns the place in the new base of the key of a record of the append area; ok
// is false if the base has none. The index may refer to a record that is not the newest of its key,
// and after a crash to a record that was never fully linked.
func (k *Kept) placeOfAppended(ref uint32) (to uint32, ok bool) {
	// Both bounds are checked, because the index may have been damaged since the file was opened.
	// For a unit inside a record, changeOf holds a value from an earlier roll.
	if ref -= k.base; ref < uint32(len(k.changeOf)) {
		if c := k.changeOf[ref]; c < uint32(len(k.changes)) {
			to = k.changes[c].to
			return to, to != segment.NoRef
		}
	}
	return 0, false
}

// resizeSlice returns a slice of n elements whose content is undefined.
func resizeSlice[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
