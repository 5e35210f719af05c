package storage

import (
	"bytes"
	"container/list"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
)

// Bounds of the names that a store keeps in memory.
const (
	// namesBytesDefault bounds the memory of all names of a store.
	namesBytesDefault = 16 << 20
	// nameOverhead approximates the memory of a name besides its bytes.
	nameOverhead = 48
	// segmentNamesMax is the number of names at which a segment is divided, so that an addition moves few.
	segmentNamesMax = 1_024
	// missedMax bounds the names that are written during one walk. A walk with more is not kept.
	missedMax = 4_096
	// absentSpare is the number of names without a record that a segment may have besides as many as it has names, before it is
	// dropped and read again.
	absentSpare = 64
)

// nameCache keeps the names of parts of tables in their order, so that a scan of few records need not seek in each slot of a range
// (docs/decisions/0072-names-in-order.md).
//
// A segment has every name of one table and range between two names that may have a record at a timestamp from since on. It may have
// names without one: readers look each name up at their timestamp. So nothing has to be removed when a write is undone, a version
// collected or a record deleted. Only an addition must not be missed:
//
//   - Batch.Apply adds the names of a batch after the database has it, and before anybody learns of a commit position in it.
//   - A walk that makes a segment registers before it opens its iterator. It sees all batches that were applied before, and later ones are
//     collected for it in missed.
//
// Segments belong to the state of one range with one last slot: a split, a merge, a drop and an installed copy drop them all.
//
// For a range of three slots, a segment from "b" up to "k" looks like this. "g" was deleted after the segment was made, and "e" was written:
//
//	slot 5     b@1        h@1                     a version of each record in the store
//	slot 6          g@1 g@7 (deleted)
//	slot 7          e@9
//	names      b5   e7   g6   h5                  a read at 8 looks up all four and finds b and h
//
// A read at 8 does not find "e", whose version is later, nor "g". A read at 3 finds "g" too.
type nameCache struct {
	// max is the bound of bytes. Names of one batch may exceed it, until all of them are added.
	max int64

	mu    sync.Mutex // guards all below, and rangeState.names with the indexes in it
	bytes int64
	order list.List // of *nameSegment, the last read first

	// reads and walks count where the names of scans were taken from, evictions the segments that were dropped for others.
	reads, walks, evictions prometheus.Counter
}

// slotName is a name with the slot of its home. The slot could be computed from the name, but only with the settings of its table, which a store
// does not know.
type slotName struct {
	name []byte
	slot rhumb.Slot
}

func (a slotName) compare(b slotName) int {
	if c := bytes.Compare(a.name, b.name); c != 0 {
		return c
	}
	return int(a.slot) - int(b.slot)
}

// nameIndex holds the segments of one table and range.
type nameIndex struct {
	table rhumb.TableID
	// last is the last slot of the range when the index began. With another one, the index is of no use: a range that was merged has more names, and
	// one that was split has fewer.
	last rhumb.Slot
	// walking is held by the walk that makes a segment. It comes before nameCache.mu.
	walking sync.Mutex
	// segments are disjoint and ascending. There may be gaps between them, in which nothing is known.
	segments []*nameSegment
	// open is set while a walk is in progress, and missed has the names that were written since it began.
	open   bool
	missed []slotName
}

// nameSegment holds the names from one name on up to another one.
type nameSegment struct {
	rs    *rangeState
	index *nameIndex
	// from is included and to is not; nil for to is the end of the table.
	from, to []byte
	// since is the timestamp of the read that made the segment. Records that were deleted up to then are not among the names.
	since   rhumb.Timestamp
	names   []slotName
	bytes   int64
	absent  int // lookups that found no record
	element *list.Element
}

// search returns the position of the segment that has a name, or where it would be.
func (x *nameIndex) search(name []byte) (i int, found bool) {
	i, exact := slices.BinarySearchFunc(x.segments, name, func(g *nameSegment, name []byte) int { return bytes.Compare(g.from, name) })
	if exact {
		return i, true
	}
	if i > 0 && x.segments[i-1].contains(name) {
		return i - 1, true
	}
	return i, false
}

// contains reports whether a name that is not below from belongs to the segment.
func (g *nameSegment) contains(name []byte) bool { return g.to == nil || bytes.Compare(name, g.to) < 0 }

// read copies up to limit names from one on into dst. It returns the name from which the next read continues, nil at the end of
// the table; ok is false if the names must be walked.
func (n *nameCache) read(rs *rangeState, q *NameQuery, last rhumb.Slot, from []byte, limit int, dst []slotName) (names []slotName, next []byte, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := rs.names[q.Table]
	if x == nil || x.last != last {
		return dst, nil, false
	}
	i, found := x.search(from)
	// A segment may lack names that were deleted before it was made, which an older read sees.
	if !found || x.segments[i].since > q.At {
		return dst, nil, false
	}
	g := x.segments[i]
	n.order.MoveToFront(g.element)
	n.reads.Inc()
	// The names are copied, since the segment changes once the lock is released. Their bytes never change.
	at, _ := slices.BinarySearchFunc(g.names, slotName{name: from}, slotName.compare)
	to := at + limit
	// The next read continues at a name, so one that several slots have is not divided.
	for to < len(g.names) && bytes.Equal(g.names[to-1].name, g.names[to].name) {
		to++
	}
	if to < len(g.names) {
		return append(dst, g.names[at:to]...), g.names[to].name, true
	}
	return append(dst, g.names[at:]...), g.to, true
}

// begin registers a walk. The caller must call finish. Walks over one table and range take turns: the one that waits usually finds
// the names that it needs in the segment of the other one.
func (n *nameCache) begin(rs *rangeState, table rhumb.TableID, last rhumb.Slot) *nameIndex {
	for {
		n.mu.Lock()
		x := rs.names[table]
		if x != nil && x.last != last {
			n.dropIndex(rs, x)
			x = nil
		}
		if x == nil {
			x = &nameIndex{table: table, last: last}
			if rs.names == nil {
				rs.names = map[rhumb.TableID]*nameIndex{}
			}
			rs.names[table] = x
			rs.indexes.Add(1)
		}
		n.mu.Unlock()
		x.walking.Lock()
		n.mu.Lock()
		// The walk before may have left the index empty, or the range may have been split: additions would not come here.
		if rs.names[table] == x {
			x.open, x.missed = true, nil
			n.mu.Unlock()
			return x
		}
		n.mu.Unlock()
		x.walking.Unlock()
	}
}

// finish ends a walk, and keeps its segment unless it is nil.
func (n *nameCache) finish(rs *rangeState, x *nameIndex, g *nameSegment) {
	defer x.walking.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if rs.names[x.table] != x {
		return // dropped meanwhile
	}
	if g != nil && len(x.missed) < missedMax {
		for _, m := range x.missed {
			if bytes.Compare(m.name, g.from) >= 0 && g.contains(m.name) {
				g.insert(m)
			}
		}
		n.keep(rs, x, g)
	}
	x.open, x.missed = false, nil
	if len(x.segments) == 0 {
		n.dropIndex(rs, x)
	}
}

// keep adds a segment to an index. Its beginning is in no other segment: there the walk would not have begun. Its end may be.
//
// The end is cut rather than the segment that is there: that one is followed by writes since it was made, and has been read.
func (n *nameCache) keep(rs *rangeState, x *nameIndex, g *nameSegment) {
	i, found := x.search(g.from)
	if found {
		// It is newer: the present one was made for later timestamps only.
		n.remove(x.segments[i])
		i, _ = x.search(g.from)
	}
	if i < len(x.segments) && (g.to == nil || bytes.Compare(g.to, x.segments[i].from) > 0) {
		g.to = x.segments[i].from
		at, _ := slices.BinarySearchFunc(g.names, slotName{name: g.to}, slotName.compare)
		g.names = g.names[:at]
	}
	// The segment counts from here on, with the names that were missed.
	g.rs, g.index = rs, x
	for _, m := range g.names {
		g.bytes += nameOverhead + int64(len(m.name))
	}
	// An empty segment takes memory too.
	g.bytes += nameOverhead + int64(len(g.from))
	x.segments = slices.Insert(x.segments, i, g)
	g.element = n.order.PushFront(g)
	n.bytes += g.bytes
	n.evict()
}

// evict drops the segments that were read longest ago until the rest is within the bound. A new segment is the last one to go, but it goes too if
// it is larger than the bound: its reader has its names already.
//
// A walk that is in progress in the same index is not disturbed: the index stays until the walk ends.
func (n *nameCache) evict() {
	for n.bytes > n.max && n.order.Len() > 0 {
		n.evictions.Inc()
		n.remove(n.order.Back().Value.(*nameSegment))
	}
}

// remove drops a segment, and its index with the last one. While a walk is in progress the index stays: the walk would otherwise miss the
// names that are written until it ends.
func (n *nameCache) remove(g *nameSegment) {
	x := g.index
	if i := slices.Index(x.segments, g); i >= 0 {
		x.segments = slices.Delete(x.segments, i, i+1)
	}
	n.order.Remove(g.element)
	n.bytes -= g.bytes
	// An index without segments would cost its writers for nothing.
	if len(x.segments) == 0 && !x.open {
		n.dropIndex(g.rs, x)
	}
}

// dropIndex forgets all names of a table in a range. A walk that is in progress notices it at its end, and keeps nothing.
func (n *nameCache) dropIndex(rs *rangeState, x *nameIndex) {
	for _, g := range x.segments {
		n.order.Remove(g.element)
		n.bytes -= g.bytes
	}
	x.segments = nil
	if rs.names[x.table] == x {
		delete(rs.names, x.table)
		rs.indexes.Add(-1)
	}
}

// dropRange forgets all names of a range. The caller has changed the state of the range already: a walk that begins now finds the new
// state, or is recognized by its last slot.
func (n *nameCache) dropRange(rs *rangeState) {
	if rs.indexes.Load() == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range rs.names {
		n.dropIndex(rs, x)
	}
}

// addWrites adds the names that a batch wrote to a range. The database has the batch already.
func (n *nameCache) addWrites(g *staged) {
	// A walk that begins after this look sees the batch: it sets the counter before it opens its iterator, and the database has
	// the batch already.
	if g.rs.indexes.Load() == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// Additions count like walks. A table that is filled while it is read would otherwise exceed the bound.
	defer n.evict()
	for _, e := range g.appended {
		for i := range e.Requests {
			for j := range e.Requests[i].Writes {
				w := &e.Requests[i].Writes[j]
				// A deletion makes no name: the index has the name if there is a record to delete.
				if x := g.rs.names[w.Table]; x != nil && !rhumb.IsTombstone(w.Value) {
					n.addName(x, slotName{w.Name, w.Home(g.id).Slot})
				}
			}
		}
	}
}

// addName adds a name to the segment that has its place, and to the walk in progress.
func (n *nameCache) addName(x *nameIndex, name slotName) {
	// The walk gets the name in any case: the segment may be evicted before the walk ends.
	if x.open && len(x.missed) < missedMax {
		x.missed = append(x.missed, slotName{bytes.Clone(name.name), name.slot})
	}
	// A name in a gap is found by the walk that closes the gap.
	i, found := x.search(name.name)
	if !found {
		return
	}
	g := x.segments[i]
	if !g.insert(name) {
		return
	}
	n.bytes += nameOverhead + int64(len(name.name))
	g.bytes += nameOverhead + int64(len(name.name))
	if len(g.names) >= segmentNamesMax {
		n.divide(x, i)
	}
}

// insert adds a name and reports whether the segment did not have it. The caller counts its bytes, because a segment that is not kept yet does
// not count.
//
// Most writes are to records that exist, whose names the segment has: they cost the search and change nothing.
func (g *nameSegment) insert(name slotName) bool {
	at, found := slices.BinarySearchFunc(g.names, name, slotName.compare)
	if !found {
		// Entries are dropped soon after their commit, and must not be kept by a name in them.
		g.names = slices.Insert(g.names, at, slotName{bytes.Clone(name.name), name.slot})
	}
	return !found
}

// divide makes two segments of one, which are evicted and dropped each for itself. Both are as new as the one was, so the right one
// takes its place before the left one in the order of reads.
func (n *nameCache) divide(x *nameIndex, i int) {
	g := x.segments[i]
	half := len(g.names) / 2
	for half < len(g.names) && bytes.Equal(g.names[half-1].name, g.names[half].name) {
		half++
	}
	if half == len(g.names) {
		return // one name in many slots
	}
	right := &nameSegment{rs: g.rs, index: x, from: g.names[half].name, to: g.to, since: g.since, names: slices.Clone(g.names[half:])}
	right.bytes = nameOverhead + int64(len(right.from))
	n.bytes += right.bytes
	for _, m := range right.names {
		right.bytes += nameOverhead + int64(len(m.name))
		g.bytes -= nameOverhead + int64(len(m.name))
	}
	g.to, g.names = right.from, slices.Clone(g.names[:half])
	g.absent = 0
	x.segments = slices.Insert(x.segments, i+1, right)
	right.element = n.order.InsertBefore(right, g.element)
}

// noteAbsent counts a name without a record. A segment with many of them is dropped, and the next walk leaves them out.
func (n *nameCache) noteAbsent(rs *rangeState, table rhumb.TableID, name []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := rs.names[table]
	if x == nil {
		return
	}
	i, found := x.search(name)
	if !found {
		return
	}
	// Names that were written after the timestamp of the read count too. They are few, and dropping a segment costs one walk.
	g := x.segments[i]
	if g.absent++; g.absent > absentSpare+len(g.names) {
		n.remove(g)
	}
}
