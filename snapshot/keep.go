package snapshot

import (
	"math"
	"slices"
	"sort"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// kept is the plan of a roll that keeps the layout of the base: every record of it stays where it is, newer versions take the
// places of older ones, and new keys come behind, with versions that do not fit. The order is copied then, and so is the index,
// since almost all of its references stay right, and the R-tree, whose leaves stay in their order when boxes moved: the roll costs
// little more than copying memory.
type kept struct {
	of      []uint32 // for each record of the append area, by its unit, the change that it belongs to
	changes []change
	added   []uint32 // the places of keys that the base lacked
	boxed   []uint32 // the places of records whose key had no box before
	replay  []uint32 // later versions that closed views need to tell apart, in the order of the append area
	// away tells by the unit which records of the base were left for another place, and places which.
	away   []uint64
	places map[uint32]uint32

	base           uint32 // where the append area begins
	units, records uint64 // of the new base
	replayUnits    uint64
	newest         rhumb.Timestamp
	expires        int64 // the first end of a record
	dead           int64 // see segment
	waste          uint64
	unboxed        int  // records that had a box and have none now
	fresh          bool // a key comes that the base lacks
	replaces       bool // a record of the base changes
	moved          bool // and its box
	careful        bool // the places are found before the base is copied
	misfit         bool // they were not, and a version does not fit
	copied         bool // the index is a copy, as it nearly always is
}

// change is what becomes of a key that has records in the append area.
type change struct {
	root     uint32  // its record in the base
	from     uint32  // the version that the new base has of it
	to       uint32  // where that lies
	is       version // from
	replayed bool    // later versions are kept too
}

// version is what decides whether a version can take the place of another.
type version struct {
	units       uint32
	gone, boxed bool
}

func versionOf(h *recordHead, units uint32) version {
	return version{units, h.flags&format.FlagTombstone != 0, h.flags&format.FlagBox != 0}
}

// fits reports whether a version can take the place of another. A deletion leaves all as it is but for a flag.
func (v version) fits(was version) bool {
	return v.gone || v.units == was.units && v.boxed == was.boxed
}

// noRef stands for no record.
const noRef = format.NoPrev

// wasteShare is the part of a base that may lie idle, one unit in so many, before a roll lays everything out anew: deleted records,
// whose keys stay in the index, and places that were left. Tables grow by as much, and pay for each idle unit at most so many times
// what a new layout takes for one.
const wasteShare = 8

// rollKept rolls a shard with the layout of its base kept. It gives nil when that cannot be. What the base has of a key that changed
// may lie anywhere and takes a while to be seen, so that at first every version is taken to fit into the place of the one before,
// which is seen when it is written there. Once one does not, the places are found before, and in later rolls of the shard too as
// long as there are such.
func (p *Publisher) rollKept(s *shard, wall int64, need room) (*segment, error) {
	k := &p.kept
	k.misfit = false
	seg, err := p.keepLayout(s, wall, need)
	if k.misfit {
		s.careful = true
		seg, err = p.keepLayout(s, wall, need)
	}
	s.careful = s.careful && (seg == nil || len(k.places) > 0)
	return seg, err
}

// keepLayout gives nil when the layout cannot be kept, or not in the hope that every version fits.
func (p *Publisher) keepLayout(s *shard, wall int64, need room) (*segment, error) {
	old, k := s.seg, &p.kept
	if !p.planKept(s) || k.tooMuchWaste() {
		return nil, nil
	}
	need.units += k.replayUnits
	need.records += uint64(len(k.replay))
	if k.units+need.units > unitsMax {
		return nil, nil
	}
	l := shape{flags: s.table.Flags, records: k.records, units: k.units, room: need, ratio: p.cfg.AppendRatio}
	var tree rtree.Tree
	if s.table.Spatial() {
		var err error
		if tree, err = rtree.Open(old.treeNodes, old.treeRefs); err != nil {
			return nil, nil // it was damaged since it was opened, and is made anew
		}
		l.treeItems = tree.Items() + len(k.boxed) - k.unboxed
	}
	if old.overflow <= (old.head.BucketsMax-old.head.Buckets)/2 {
		l.buckets = old.head.Buckets
	}
	seg, err := p.newSegment("snapshot.roll", s, l.layout())
	if err != nil {
		return nil, err
	}
	seg.head.Base, seg.head.Closed = p.committed, p.closedAfter(s, k.newest)
	if !p.keepParts(s, seg, &tree, wall) {
		p.files.recycle(seg.file)
		return nil, nil
	}
	return seg, nil
}

// keepParts makes all parts of the new base and what follows it, and gives false when the layout cannot be kept.
func (p *Publisher) keepParts(s *shard, seg *segment, tree *rtree.Tree, wall int64) bool {
	old, k := s.seg, &p.kept
	p.keepHeap(seg, old, wall)
	if k.misfit || k.tooMuchWaste() || !p.keepTree(s.table, seg, old, tree) || !p.keepOrder(seg, old) || !p.keepIndex(seg, old) {
		return false
	}
	return p.complete(seg, &source{heap: old.heap, replay: k.replay, pendingFrom: old.done, pendingTo: old.tail})
}

func (k *kept) tooMuchWaste() bool { return k.waste > k.units/wasteShare }

// planAhead is how many units of the append area are brought into the cache before the records there are looked at.
const planAhead = 4 << 10 / format.RecordAlign

// planKept finds out what becomes of each key that has records in the append area. It gives false when the timestamps of a key
// fall, so that closed views need something else than the latest version.
func (p *Publisher) planKept(s *shard) bool {
	seg, k := s.seg, &p.kept
	base := seg.head.BaseUnits
	if base == 0 {
		return false
	}
	*k = kept{
		of: resize(k.of, int(seg.tail-base)), changes: k.changes[:0], added: k.added[:0], boxed: k.boxed[:0], replay: k.replay[:0],
		away: resize(k.away, int(base/64)+1), places: k.places,
		base: base, units: uint64(base), records: seg.head.Records, expires: seg.expires, dead: seg.dead, waste: seg.waste, careful: s.careful,
	}
	clear(k.away)
	if clear(k.places); k.places == nil {
		k.places = map[uint32]uint32{}
	}
	read := base
	for ref := base; ref < seg.tail; {
		if ref >= read {
			read = min(ref+planAhead, seg.tail)
			format.ReadAhead(seg.heap[int(ref)*format.RecordAlign : int(read)*format.RecordAlign])
		}
		h, units := seg.record(ref), seg.unitsOf(ref)
		i := uint32(len(k.changes))
		if h.prev != format.NoPrev && h.prev >= base {
			i = k.of[h.prev-base]
		} else {
			k.changes = append(k.changes, change{root: h.prev, from: noRef, to: h.prev})
		}
		k.of[ref-base] = i
		if ref < seg.done && h.ver != format.AbortedVersion && !p.keepVersion(seg, &k.changes[i], ref, units) {
			return false
		}
		ref += units
	}
	if k.careful || k.fresh {
		p.placeChanges(seg)
	}
	return true
}

// keepVersion decides what becomes of a committed record of the append area.
func (p *Publisher) keepVersion(seg *segment, c *change, ref, units uint32) bool {
	k, h, at := &p.kept, seg.record(ref), hlc(seg.heap, ref)
	k.newest = max(k.newest, at)
	first := c.root == noRef && c.from == noRef
	switch {
	case !first && p.closed != 0 && at > p.closed:
		c.replayed = true
		k.replay = append(k.replay, ref)
		k.replayUnits += uint64(units)
		return true
	case c.replayed:
		return false
	}
	c.from, c.is = ref, versionOf(h, units)
	if c.root == noRef {
		k.fresh = true
	} else {
		k.replaces = true
		k.moved = k.moved || h.flags&format.FlagMoved != 0
	}
	if end := expiry(seg.heap, ref); end != 0 {
		k.expires = min(k.expires, end)
	}
	return true
}

// placeChanges finds the places of the versions that do not take those of earlier ones.
func (p *Publisher) placeChanges(seg *segment) {
	k := &p.kept
	for i := 0; i < len(k.changes); i += group {
		changes := k.changes[i:min(i+group, len(k.changes))]
		if k.careful {
			p.fetchRoots(seg, changes)
		}
		for j := range changes {
			k.place(seg, &changes[j])
		}
	}
}

// fetchRoots asks for the records of the base that are changed.
func (p *Publisher) fetchRoots(seg *segment, changes []change) {
	n := 0
	for i := range changes {
		if root := changes[i].root; root != noRef {
			p.batch.addrs[n] = seg.recordAddr(root)
			n++
		}
	}
	prefetch(&p.batch.addrs, n)
}

// place finds the place of a version that may have none by now.
func (k *kept) place(seg *segment, c *change) {
	switch {
	case c.from == noRef: // nothing of it was committed
	case c.root == noRef:
		c.to = k.take(c.is.units)
		k.added = append(k.added, c.to)
		k.records++
		k.count(c.is, version{})
		if c.is.boxed {
			k.boxed = append(k.boxed, c.to)
		}
	case k.careful:
		was := versionOf(seg.record(c.root), seg.unitsOf(c.root))
		k.count(c.is, was)
		if !c.is.fits(was) {
			k.leave(c, was)
		}
	}
}

// take gives a place behind everything else.
func (k *kept) take(units uint32) uint32 {
	at := uint32(min(k.units, unitsMax)) // what does not fit is not kept
	k.units += uint64(units)
	return at
}

// count adds up what lies idle when a version follows another, or none, which has no units.
func (k *kept) count(v, was version) {
	if was.gone {
		k.dead--
		k.waste -= uint64(was.units)
	}
	switch {
	case v.gone && was.units == 0:
		k.dead++
		k.waste += uint64(v.units)
	case v.gone:
		k.dead++
		k.waste += uint64(was.units)
	case !v.fits(was):
		k.waste += uint64(was.units)
	}
}

// leave gives a key another place than the base has for it.
func (k *kept) leave(c *change, was version) {
	c.to = k.take(c.is.units)
	k.away[c.root/64] |= 1 << (c.root % 64)
	k.places[c.root] = c.to
	switch {
	case c.is.boxed && !was.boxed:
		k.boxed = append(k.boxed, c.to)
	case was.boxed && !c.is.boxed:
		k.unboxed++
	}
}

// placeOf gives the place of a record of the base.
func (k *kept) placeOf(ref uint32) uint32 {
	if k.away[ref/64]>>(ref%64)&1 == 0 {
		return ref
	}
	return k.places[ref]
}

// keepHeap copies the base and lays down what changes in it.
func (p *Publisher) keepHeap(seg, old *segment, wall int64) {
	k := &p.kept
	size := int(old.head.BaseUnits) * format.RecordAlign
	copy(seg.heap, old.heap[:size])
	p.fetchPatches(seg, old, 0)
	for i := 0; i < len(k.changes) && !k.misfit; i += group {
		p.fetchPatches(seg, old, i+group)
		for j := i; j < min(i+group, len(k.changes)); j++ {
			if c := &k.changes[j]; c.from != noRef {
				k.patch(seg, old, c)
			}
		}
	}
	if k.misfit {
		return
	}
	if k.expires <= wall {
		k.buryEnded(seg, wall)
	}
	sum, from := old.section(format.SectionHeap).Sum, size
	if k.replaces {
		sum, from = 0, 0
	}
	p.setSum(seg, format.SectionHeap, format.ExtendChecksum(sum, seg.heap[from:int(k.units)*format.RecordAlign]))
	seg.live, seg.expires, seg.dead, seg.waste = int64(k.records)-k.dead, k.expires, k.dead, k.waste
}

// patch lays down the version that the new base has of a key.
func (k *kept) patch(seg, old *segment, c *change) {
	if c.root != noRef {
		if !k.careful {
			was := versionOf(seg.record(c.to), seg.unitsOf(c.to))
			if !c.is.fits(was) {
				k.misfit = true
				return
			}
			k.count(c.is, was)
		}
		if c.is.gone {
			seg.bury(c.to)
			return
		}
		if c.to != c.root {
			seg.record(c.root).ver = format.AbortedVersion // nothing leads there any more
			seg.wipe(c.root)
		}
	}
	seg.copyRecord(c.to, old.heap, c.from, 0)
}

// bury makes a tombstone of a record of the base. It keeps its size, its key and its box, by which other parts know it.
func (s *segment) bury(ref uint32) {
	h := s.record(ref)
	h.flags |= format.FlagTombstone
	s.wipe(ref)
	if s.summed {
		h.sum = format.RecordChecksum(s.heap[int(ref)*format.RecordAlign:][:recordSize(s.kind, s.heap, ref)])
	}
}

// wipe clears a value that nobody is to read any more.
func (s *segment) wipe(ref uint32) {
	at, n := value(s.kind, s.heap, ref)
	clear(s.heap[int(ref)*format.RecordAlign+at:][:n])
}

// buryEnded makes tombstones of the records that have ended, and finds out when the next does.
func (k *kept) buryEnded(seg *segment, wall int64) {
	k.replaces, k.expires = true, math.MaxInt64
	for ref := uint32(0); ref < uint32(k.units); ref += seg.unitsOf(ref) {
		h, end := seg.record(ref), expiry(seg.heap, ref)
		switch {
		case end == 0 || h.ver == format.AbortedVersion || h.flags&format.FlagTombstone != 0:
		case end <= wall:
			seg.bury(ref)
			k.dead++
			k.waste += uint64(seg.unitsOf(ref))
		default:
			k.expires = min(k.expires, end)
		}
	}
}

// effortGrowth is how much more the R-tree may take than when its leaves were sorted. Boxes that move a little leave it near that;
// sorting all of them again takes several times as long as a roll that does not.
const effortGrowth = 1.25

// keepTree makes the R-tree over the new base. While no box changed it is a copy. Else its leaves stay in their order and take
// the new boxes, and those of keys that had none come behind, sorted among themselves. It gives false when a box crosses the
// antimeridian, which takes two leaves, and when the boxes moved so far that queries would read too much.
func (p *Publisher) keepTree(t *Table, seg, old *segment, tree *rtree.Tree) bool {
	k := &p.kept
	seg.split, seg.effort = old.split, old.effort
	if !t.Spatial() {
		return true
	}
	if !k.moved && len(k.boxed) == 0 && k.unboxed == 0 {
		seg.copySection(old, format.SectionTreeNodes)
		p.keepRefs(seg, old, format.SectionTreeRefs)
		return true
	}
	if old.split || tree.Items()+len(k.boxed)-k.unboxed > rtree.ItemsMax {
		return false
	}
	p.refs = p.refs[:0]
	for _, ref := range view[uint32](old.treeRefs)[:tree.Items()] {
		if ref >= k.base { // it was damaged since it was opened
			return false
		}
		at := k.placeOf(ref)
		if _, ok := box(seg.heap, at); ok || at == ref {
			p.refs = append(p.refs, at)
		}
	}
	n := len(p.refs)
	p.refs = append(p.refs, k.boxed...)
	p.collectBoxes(t, &source{heap: seg.heap, refs: p.refs})
	if p.split {
		return false
	}
	if seg.effort == 0 { // since a start, or the first boxes came
		seg.effort = tree.Effort()
	}
	effort := p.buildTree(seg, p.refs, p.leafOrder(n))
	return effort <= effortGrowth*seg.effort
}

// leafOrder gives the order of leaves of which the first n stay as they are, nil when these are all.
func (p *Publisher) leafOrder(n int) []uint32 {
	if n == len(p.boxes) {
		return nil
	}
	p.order = resize(p.order, len(p.boxes))
	for i := range n {
		p.order[i] = uint32(i)
	}
	for i, at := range p.sorter.Order(p.boxes[n:]) {
		p.order[n+i] = uint32(n) + at
	}
	return p.order
}

// keepRefs copies a section of references, and replaces those of records that have another place.
func (p *Publisher) keepRefs(seg, old *segment, t format.SectionType) {
	seg.copySection(old, t)
	if len(p.kept.places) == 0 {
		return
	}
	mem := seg.file.mem[seg.section(t).Offset:][:seg.section(t).Items*4]
	refs := view[uint32](mem)
	for i, ref := range refs {
		if ref < p.kept.base { // a lane of the tree may be free
			refs[i] = p.kept.placeOf(ref)
		}
	}
	p.setSum(seg, t, format.Checksum(mem))
}

// keepOrder makes the order of the new base: the old one, with the keys that it lacks put in. It gives false when the old one was
// damaged since it was opened.
func (p *Publisher) keepOrder(seg, old *segment) bool {
	k := &p.kept
	switch {
	case seg.skip == nil: // the table is not ordered
		return true
	case len(k.added) == 0:
		p.keepRefs(seg, old, format.SectionOrder)
		return true
	case slices.ContainsFunc(old.order, func(ref uint32) bool { return ref >= k.base }):
		return false
	}
	p.sortRefs(seg.kind, seg.heap, k.added)
	out, rest := seg.order[:0], old.order
	for _, ref := range k.added {
		n := seg.before(rest, ref)
		out = append(append(out, rest[:n]...), ref)
		rest = rest[n:]
	}
	out = append(out, rest...)
	for i, ref := range out {
		if ref < k.base {
			out[i] = k.placeOf(ref)
		}
	}
	p.sumOrder(seg)
	return true
}

// before tells how many of the references, which are in the order of their keys, lead to keys below that of a record. It looks at
// 1, 2, 4, … of them before it halves, so that the next one is near when many are put in.
func (s *segment) before(refs []uint32, ref uint32) int {
	end := 1
	for end <= len(refs) && compareKeys(s.kind, s.heap, refs[end-1], ref) < 0 {
		end *= 2
	}
	from := end / 2
	return from + sort.Search(min(end-1, len(refs))-from, func(i int) bool {
		return compareKeys(s.kind, s.heap, refs[from+i], ref) >= 0
	})
}

// fetchPatches asks for what a group of changes reads and writes.
func (p *Publisher) fetchPatches(seg, old *segment, from int) {
	b, k := &p.batch, &p.kept
	n := 0
	for i := from; i < min(from+group, len(k.changes)); i++ {
		if c := &k.changes[i]; c.from != noRef {
			b.addrs[n], b.bits[n] = seg.recordAddr(c.to), old.recordAddr(c.from)
			n++
		}
	}
	prefetchPairs(&b.bits, n)
	prefetchPairs(&b.addrs, n)
}

// unitsOf gives how many units a record takes.
func (s *segment) unitsOf(ref uint32) uint32 { return format.Units(recordSize(s.kind, s.heap, ref)) }

// copySection copies a section that stays as it is, if there is one.
func (s *segment) copySection(old *segment, t format.SectionType) {
	from, ok := old.head.Find(t)
	if !ok {
		return
	}
	to := s.section(t)
	copy(s.file.mem[to.Offset:][:to.Size], old.file.mem[from.Offset:][:from.Size])
	to.Sum = from.Sum
}

// keepIndex makes the index over the new base: a copy of the old one, in which what leads behind the base leads to the place
// of its key in the base. When the layout has another number of buckets, or the old index has keys that the base lacks, which
// the open commit or an aborted one put there, it is made anew. It gives false when overflow buckets run out.
func (p *Publisher) keepIndex(seg, old *segment) bool {
	if seg.head.Buckets == old.head.Buckets && seg.head.BucketsMax >= old.head.Buckets+old.overflow && p.copyIndex(seg, old) {
		p.kept.copied = true
		return true
	}
	clear(seg.index)
	seg.overflow = 0
	b := &p.batch
	for ref := uint32(0); ref < seg.head.BaseUnits; {
		for b.n = 0; b.n < group && ref < seg.head.BaseUnits; {
			if h := seg.record(ref); h.ver != format.AbortedVersion {
				hash := hashOf(seg.keys, seg.kind, h)
				b.addrs[b.n] = seg.bucketAddr(hash)
				b.add(seg, hash, ref)
			}
			ref += seg.unitsOf(ref)
		}
		prefetch(&b.addrs, b.n)
		for i, hash := range b.hashes[:b.n] {
			if !seg.insert(seg.end(hash), hash, b.refs[i]) {
				return false
			}
		}
	}
	return true
}

// copyIndex copies an index with as many buckets. What leads to a record of the append area, be it the newest of its key or not, then
// leads to the place of the key. It gives false when a key has none, and when a reference was damaged since the segment was opened.
func (p *Publisher) copyIndex(seg, old *segment) bool {
	k := &p.kept
	n := copy(seg.index, old.index[:old.head.Buckets+old.overflow])
	clear(seg.index[n:])
	seg.overflow = old.overflow
	if len(k.changes) == 0 {
		return true
	}
	for i := range seg.index[:n] {
		refs := &seg.index[i].refs
		for slot, ref := range refs {
			if ref < k.base {
				continue
			}
			to := k.placeOfAppended(ref)
			if to == noRef {
				return false
			}
			refs[slot] = to
		}
	}
	return true
}

// placeOfAppended gives the place of the key of a record of the append area, noRef when the base lacks it.
func (k *kept) placeOfAppended(ref uint32) uint32 {
	if ref -= k.base; ref < uint32(len(k.of)) {
		if c := k.of[ref]; c < uint32(len(k.changes)) {
			return k.changes[c].to
		}
	}
	return noRef
}
