package snapshot

import (
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// kept is the plan of a roll that keeps the layout of the base: every record of it stays where it is, newer versions take the
// places of older ones, and new keys come behind. The order is copied then, and so is the index, since almost all of its
// references stay right, and the R-tree, whose leaves stay in their order when boxes moved: the roll costs little more than
// copying memory.
type kept struct {
	// roots gives, for each record of the append area by its unit, where the record of its key lies in the new base.
	roots   []uint32
	boxed   []uint32 // where in the new base the new keys with a box lie
	homes   []home   // of all records of the append area, in its order
	patches []patch  // likewise
	replay  []uint32 // later versions that closed views need to tell apart, likewise
	units   uint32   // of the new base
	records uint64
	// replayUnits is the size of the replay.
	replayUnits uint64
	newest      rhumb.Timestamp
	expires     int64
	replaces    bool // a record of the base is replaced
	moved       bool // by one with another box
	copied      bool // the index is a copy, as it nearly always is
}

// patch is a record of the append area and its place in the new base.
type patch struct{ to, from uint32 }

// home is a record of the append area and the primary bucket of its key.
type home struct{ ref, bucket uint32 }

// noRoot is the root of a record whose key the new base lacks.
const noRoot = format.NoPrev

// rollKept rolls a shard with the layout of its base kept. It gives nil when that cannot be.
func (p *Publisher) rollKept(s *shard, wall int64, need room) (*segment, error) {
	old, k := s.seg, &p.kept
	if !p.planKept(s, wall) {
		return nil, nil
	}
	need.units += k.replayUnits
	need.records += uint64(len(k.replay))
	if uint64(k.units)+need.units > unitsMax {
		return nil, nil
	}
	l := shape{flags: s.table.Flags, records: k.records, units: uint64(k.units), room: need, ratio: p.cfg.AppendRatio}
	var tree rtree.Tree
	if s.table.Spatial() {
		var err error
		if tree, err = rtree.Open(old.treeNodes, old.treeRefs); err != nil {
			return nil, nil // it was damaged since it was opened, and is made anew
		}
		l.treeItems = tree.Items() + len(k.boxed)
	}
	if old.overflow <= (old.head.BucketsMax-old.head.Buckets)/2 {
		l.buckets = old.head.Buckets
	}
	seg, err := p.newSegment("snapshot.roll", s, l.layout())
	if err != nil {
		return nil, err
	}
	seg.head.Base, seg.head.Closed = p.committed, p.closedAfter(s, k.newest)
	if !p.keepHeap(seg, old) {
		p.files.recycle(seg.file)
		return nil, nil
	}
	seg.copySection(old, format.SectionOrder)
	src := &source{heap: old.heap, replay: k.replay, pendingFrom: old.done, pendingTo: old.tail}
	if !p.keepTree(s.table, seg, old, &tree) || !p.keepIndex(seg, old) || !p.complete(seg, src) {
		p.files.recycle(seg.file)
		return nil, nil
	}
	return seg, nil
}

// planAhead is how many units of the append area are brought into the cache before the records there are looked at.
const planAhead = 4 << 10 / format.RecordAlign

// planKept finds out whether the base can keep its layout, and what changes in it. It cannot when a key was deleted or has
// expired, when an ordered table has a new key, and when the timestamps of a key fall.
func (p *Publisher) planKept(s *shard, wall int64) bool {
	seg, k := s.seg, &p.kept
	base := seg.head.BaseUnits
	if base == 0 || seg.expires <= wall {
		return false
	}
	*k = kept{
		roots: resize(k.roots, int(seg.tail-base)), boxed: k.boxed[:0], homes: k.homes[:0], patches: k.patches[:0], replay: k.replay[:0],
		units: base, records: seg.head.Records, expires: seg.expires,
	}
	read := base
	for ref := base; ref < seg.tail; {
		if ref >= read {
			read = min(ref+planAhead, seg.tail)
			format.ReadAhead(seg.heap[int(ref)*format.RecordAlign : int(read)*format.RecordAlign])
		}
		h, units := seg.record(ref), seg.unitsOf(ref)
		root := noRoot
		switch {
		case h.prev == format.NoPrev:
		case h.prev < base:
			root = h.prev
		default:
			root = k.roots[h.prev-base]
		}
		if ref < seg.done && h.ver != format.AbortedVersion {
			if !p.keepVersion(s, ref, &root, units, wall) {
				return false
			}
		}
		k.roots[ref-base] = root
		k.homes = append(k.homes, home{ref, format.BucketOf(hashOf(seg.keys, seg.kind, h), seg.head.Buckets)})
		ref += units
	}
	return true
}

// keepVersion decides what becomes of a committed record of the append area. A key that has no root gets one.
func (p *Publisher) keepVersion(s *shard, ref uint32, root *uint32, units uint32, wall int64) bool {
	seg, k := s.seg, &p.kept
	base := seg.head.BaseUnits
	h, at := seg.record(ref), hlc(seg.heap, ref)
	fresh := *root >= base // or noRoot
	if h.flags&format.FlagTombstone != 0 || fresh && s.table.Ordered() {
		return false
	}
	if h.flags&format.FlagExpiry != 0 {
		end := expiry(seg.heap, ref)
		if end <= wall {
			return false
		}
		k.expires = min(k.expires, end)
	}
	k.newest = max(k.newest, at)
	switch {
	case *root == noRoot:
		*root = k.units
		if s.table.Spatial() && h.flags&format.FlagBox != 0 {
			k.boxed = append(k.boxed, *root)
		}
		k.units += units
		k.records++
	case p.closed != 0 && at > p.closed:
		k.replay = append(k.replay, ref)
		k.replayUnits += uint64(units)
		return true
	case len(k.replay) > 0 && h.prev >= base && hlc(seg.heap, h.prev) > p.closed:
		return false // the version before is replayed
	default:
		k.replaces = k.replaces || !fresh
		k.moved = k.moved || h.flags&format.FlagMoved != 0
	}
	k.patches = append(k.patches, patch{to: *root, from: ref})
	return true
}

// keepHeap copies the base and lays down what changes in it. It gives false when a version has another size than the one
// before, or one of them no box, which only a look at that tells, and that may lie anywhere.
func (p *Publisher) keepHeap(seg, old *segment) bool {
	k := &p.kept
	size := int(old.head.BaseUnits) * format.RecordAlign
	copy(seg.heap, old.heap[:size])
	p.fetchPatches(seg, old, 0)
	for i := 0; i < len(k.patches); i += group {
		p.fetchPatches(seg, old, i+group)
		for _, c := range k.patches[i:min(i+group, len(k.patches))] {
			if h := old.record(c.from); h.prev != format.NoPrev {
				if seg.unitsOf(c.to) != old.unitsOf(c.from) || (seg.record(c.to).flags^h.flags)&format.FlagBox != 0 {
					return false
				}
			}
			seg.copyRecord(c.to, old.heap, c.from, 0)
		}
	}
	sum, from := old.section(format.SectionHeap).Sum, size
	if k.replaces {
		sum, from = 0, 0
	}
	p.setSum(seg, format.SectionHeap, format.ExtendChecksum(sum, seg.heap[from:int(k.units)*format.RecordAlign]))
	seg.live, seg.expires = int64(k.records), k.expires
	return true
}

// effortGrowth is how much more the R-tree may take than when its leaves were sorted. Boxes that move a little leave it near that;
// sorting all of them again takes several times as long as a roll that does not.
const effortGrowth = 1.25

// keepTree makes the R-tree over the new base. While no box changed it is a copy. Else its leaves stay in their order and take
// the new boxes, and those of new keys come behind, sorted among themselves. It gives false when a box crosses the antimeridian,
// which takes two leaves, and when the boxes moved so far that queries would read too much.
func (p *Publisher) keepTree(t *Table, seg, old *segment, tree *rtree.Tree) bool {
	k := &p.kept
	seg.split, seg.effort = old.split, old.effort
	if !t.Spatial() || !k.moved && len(k.boxed) == 0 {
		seg.copySection(old, format.SectionTreeNodes)
		seg.copySection(old, format.SectionTreeRefs)
		return true
	}
	n := tree.Items()
	if old.split || n+len(k.boxed) > rtree.ItemsMax {
		return false
	}
	p.refs = append(append(p.refs[:0], view[uint32](old.treeRefs)[:n]...), k.boxed...)
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

// fetchPatches asks for what a group of patches reads and writes.
func (p *Publisher) fetchPatches(seg, old *segment, from int) {
	b, k := &p.batch, &p.kept
	n := 0
	for i := from; i < min(from+group, len(k.patches)); i++ {
		c := k.patches[i]
		b.addrs[n], b.bits[n] = seg.recordAddr(c.to), old.recordAddr(c.from)
		n++
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
			hash := hashOf(seg.keys, seg.kind, seg.record(ref))
			b.addrs[b.n] = seg.bucketAddr(hash)
			b.add(seg, hash, ref)
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

// copyIndex copies an index with as many buckets, and gives false when it has a key without a root.
func (p *Publisher) copyIndex(seg, old *segment) bool {
	n := old.head.Buckets + old.overflow
	copy(seg.index, old.index[:n])
	clear(seg.index[n:])
	seg.overflow = old.overflow
	k := &p.kept
	p.fetchHomes(seg, 0)
	for i := 0; i < len(k.homes); i += group {
		p.fetchHomes(seg, i+group)
		for _, h := range k.homes[i:min(i+group, len(k.homes))] {
			if !seg.redirect(h, k.roots[h.ref-old.head.BaseUnits]) {
				return false
			}
		}
	}
	return true
}

// fetchHomes asks for the buckets of a group of records.
func (p *Publisher) fetchHomes(seg *segment, from int) {
	b, k := &p.batch, &p.kept
	n := 0
	for i := from; i < min(from+group, len(k.homes)); i++ {
		b.addrs[n] = uintptr(unsafe.Pointer(&seg.index[k.homes[i].bucket]))
		n++
	}
	prefetch(&b.addrs, n)
}

// redirect makes the index lead to the root of a key where it leads to a record of the append area: only the newest of the key
// stands there. It gives false when there is no root. A root is never behind the records of its key, so that no root is taken
// for a record of another key as long as these come in their order.
func (s *segment) redirect(h home, root uint32) bool {
	b := &s.index[h.bucket]
	for {
		for slot := range b.refs {
			if b.refs[slot] == h.ref {
				b.refs[slot] = root
				return root != noRoot
			}
		}
		if b.next == 0 {
			return true
		}
		b = &s.index[b.next]
	}
}
