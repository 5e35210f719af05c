package reader

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// A query by place has two sources. The R-trees hold the boxes of the bases. They never change, so
// a leaf may be out of date. The spatial delta holds the boxes that were added or moved since, in
// chains by cell. A key that did not move is found by its leaf, and its newest version is looked up
// only if the record is marked as changed. A key that moved is found by its delta entries. So a
// query over a table without writes reads only trees and records, and a query after many writes
// reads a few chains more.

// walks keeps the memory of queries, which is large.
var walks = sync.Pool{New: func() any { return new(walk) }}

// boxesMax is the greatest number of plain boxes of a query; see rtree.AddMeridian.
const boxesMax = 4

// hit is a visible record that a query found.
type hit struct {
	g   *segment
	r   record
	ref uint32
	box format.Box
}

// walk finds the records that touch one of the plain boxes of a query, each once, without
// remembering earlier hits.
//
// A record is found by the R-trees while its box is that of its base record, and by the spatial
// delta afterwards: FlagMoved decides, and the publisher guarantees that exactly one of the two
// leads to a key. A record with two parts, or one that touches several boxes of the query, is
// reported for the first pair that touches; see rtree.FirstMatch.
type walk struct {
	t     *Table
	boxes []format.Box
	// found, if set, is called with each hit. Otherwise visit is called with each item that accept
	// accepts; a nil accept accepts all.
	found         func(h hit) error
	visit, accept func(*Item) bool

	item   Item
	cursor rtree.Cursor
	room   [boxesMax]format.Box
}

// newWalk begins a walk. releaseWalk must end it.
func (t *Table) newWalk(boxes []format.Box) *walk {
	w := walks.Get().(*walk)
	// The boxes are copied into the walk, so that the caller's array need not be heap-allocated.
	w.t, w.boxes = t, append(w.room[:0], boxes...)
	return w
}

// releaseWalk returns the memory. It drops all references first, so that the pool keeps no image
// mapped.
func (w *walk) releaseWalk() {
	w.t, w.found, w.visit, w.accept, w.item = nil, nil, nil, nil, Item{}
	// The cursor refers to trees in mapped memory.
	w.cursor.Start(nil, nil)
	walks.Put(w)
}

// visitSpatial visits the records that touch the boxes and that accept accepts. A nil accept
// accepts all.
func (t *Table) visitSpatial(boxes []format.Box, accept, visit func(*Item) bool) error {
	w := t.newWalk(boxes)
	defer w.releaseWalk()
	w.accept, w.visit = accept, visit
	return ignoreStop(w.runQuery())
}

// giveHit passes a record to the consumer of the walk.
func (w *walk) giveHit(h hit) error {
	if w.found != nil {
		return w.found(h)
	}
	if err := w.t.fillItem(&w.item, h.g, h.r, h.ref); err != nil {
		return err
	}
	if w.accept != nil && !w.accept(&w.item) {
		return nil
	}
	return w.t.handItem(&w.item, w.visit)
}

// runQuery finds each record that touches the boxes.
func (w *walk) runQuery() error {
	t := w.t
	if err := t.view.check(); err != nil {
		return err
	}
	if !t.t.Spatial() {
		return t.refuse("it keeps no spatial index; `rhumb table create NAME --snapshot=spatial` creates a table with one")
	}
	if err := w.walkTrees(); err != nil {
		return err
	}
	for _, g := range t.t.segments {
		if n := g.deltaCount(); n > 0 {
			if err := w.walkDelta(g, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// walkTrees walks the R-trees of all shards together.
func (w *walk) walkTrees() error {
	table := w.t.t
	w.cursor.Start(table.trees, w.boxes)
	// Hits are returned in batches, which may span several trees.
	for b, ok := w.cursor.Next(); ok; b, ok = w.cursor.Next() {
		for i, ref := range b.Refs {
			if err := w.visitLeaf(table.segments[b.Trees[i]], b.Part, b.Leaves[i], ref); err != nil {
				return err
			}
		}
	}
	return nil
}

// visitLeaf handles a hit of the trees: the leaf of a base record. If the record has a newer
// version, or the view is a closed one, the version that the view shows counts, unless the delta
// finds it.
func (w *walk) visitLeaf(g *segment, part int, leaf, ref uint32) error {
	v := &w.t.view
	r, ok := g.recordAt(ref)
	if !ok {
		return g.corruptAt("a reference of the tree points past the heap", g.treeOffset(leaf))
	}
	// A closed view hides versions by timestamp, which the mark of changed records does not
	// reflect.
	if v.closed != 0 || g.isChanged(ref) {
		var err error
		if r, ref, ok, err = w.t.shownOf(g, r, ref); err != nil || !ok {
			return err
		}
		if r.flags()&format.FlagMoved != 0 { // the delta finds it
			return nil
		}
	}
	box, ok := r.box()
	if !ok || v.hasNoValue(r) {
		return nil
	}
	if box.Crosses() || part > 0 { // otherwise there is only one pair
		plain, _ := g.tree.Leaf(leaf)
		if !rtree.FirstMatch(w.boxes, part, box, plain) {
			return nil
		}
	}
	return w.giveHit(hit{g, r, ref, box})
}

// deltaEntry is an entry of the spatial delta.
type deltaEntry struct {
	box            format.Box
	ref, next, ver uint32
	_              uint32
}

const _ = uint(format.DeltaEntrySize - unsafe.Sizeof(deltaEntry{}))

// walkDelta walks the n entries of a spatial delta: those of the cells that the boxes touch, or all
// entries if there are fewer of them than cells.
func (w *walk) walkDelta(g *segment, n int) error {
	// Fewer than two chains mean no delta, or damage: chain 0 holds the large boxes, and the others
	// need at least one.
	if len(g.cells) < 2 {
		return nil
	}
	var cells uint64
	for i := range w.boxes {
		cells += cellsOf(&w.boxes[i]).countCells()
	}
	// A query over a continent covers more cells than a delta has entries. Then it is less work to
	// read every entry than every cell.
	if cells >= uint64(n) {
		for i := range w.boxes {
			for e := range g.delta[:n] {
				if err := w.visitEntry(g, i, &g.delta[e]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for i := range w.boxes {
		// Chain 0 holds the boxes larger than a cell, which may touch any query.
		if err := w.walkChain(g, i, 0, nil); err != nil {
			return err
		}
		if err := w.walkCells(g, i); err != nil {
			return err
		}
	}
	return nil
}

// walkCells walks the chains of the cells in which a box that touches the query can have its lowest
// corner.
func (w *walk) walkCells(g *segment, part int) error {
	r := cellsOf(&w.boxes[part])
	for y := r.minY; y <= r.maxY; y++ {
		for x := r.minX; x <= r.maxX; x++ {
			c := cell{x, y}
			head := format.DeltaCell(c.lonUnits(), c.latUnits(), uint32(len(g.cells)))
			if err := w.walkChain(g, part, head, &c); err != nil {
				return err
			}
		}
	}
	return nil
}

// walkChain walks the chain of a head. Several cells may share a head: entries of other cells than
// in are skipped.
func (w *walk) walkChain(g *segment, part int, head uint32, in *cell) error {
	if int(head) >= len(g.cells) {
		return nil
	}
	next := atomic.LoadUint32(&g.cells[head])
	// A chain cannot be longer than the delta. The bound turns a circle, which only damage can
	// make, into an error.
	for range len(g.delta) + 1 {
		if next == 0 {
			return nil
		}
		if uint64(next) > uint64(len(g.delta)) {
			return g.corruptAt("the spatial delta leads past its end", g.deltaOffset(next-1))
		}
		e := &g.delta[next-1]
		// Without this check an entry in a shared chain would be reported once for each cell of the
		// chain.
		if in == nil || *in == cellOf(e.box.MinX, e.box.MinY) {
			if err := w.visitEntry(g, part, e); err != nil {
				return err
			}
		}
		next = e.next
	}
	return g.corruptAt("the spatial delta runs in a circle", g.deltaOffset(0))
}

// visitEntry handles an entry of the delta. The entry counts only if the view shows the very record
// of the entry: older entries of the same key belong to older versions.
func (w *walk) visitEntry(g *segment, part int, e *deltaEntry) error {
	v := &w.t.view
	// The version and the box in the entry decide most cases without reading the record.
	if e.ver > v.limitOf(g) || !e.box.Intersects(w.boxes[part]) {
		return nil
	}
	r, ok := g.recordAt(e.ref)
	if !ok {
		return g.corruptAt("a reference of the spatial delta points past the heap", g.refOffset(e.ref))
	}
	box, ok := r.box()
	if !ok || r.flags()&format.FlagMoved == 0 || !isPart(box, e.box) {
		return nil // from an unfinished commit
	}
	shown, ref, ok, err := w.t.shownOf(g, r, e.ref)
	if err != nil || !ok || ref != e.ref || v.hasNoValue(shown) || !rtree.FirstMatch(w.boxes, part, box, e.box) {
		return err
	}
	return w.giveHit(hit{g, r, ref, box})
}

// isPart reports whether a plain box is one of the parts of a record's box.
func isPart(record, plain format.Box) bool {
	parts, n := record.Split()
	return parts[0] == plain || n == 2 && parts[1] == plain
}

// cell is a cell of the spatial delta.
type cell struct{ x, y int64 }

// cellOf returns the cell of a point.
func cellOf(x, y int32) cell {
	return cell{(int64(x) + format.LonUnitsMax) >> format.DeltaCellShift, (int64(y) + format.LatUnitsMax) >> format.DeltaCellShift}
}

// lonUnits and latUnits return the lowest corner of the cell.
func (c cell) lonUnits() int32 { return int32(c.x<<format.DeltaCellShift - format.LonUnitsMax) }
func (c cell) latUnits() int32 { return int32(c.y<<format.DeltaCellShift - format.LatUnitsMax) }

// cellRange is a rectangle of cells.
type cellRange struct{ minX, minY, maxX, maxY int64 }

// cellsOf returns the cells that may contain the lowest corner of a box that touches b and is at
// most as large as a cell.
func cellsOf(b *format.Box) cellRange {
	low, high := cellOf(b.MinX, b.MinY), cellOf(b.MaxX, b.MaxY)
	return cellRange{max(low.x-1, 0), max(low.y-1, 0), high.x, high.y}
}

// countCells returns the number of cells.
func (r cellRange) countCells() uint64 {
	if r.maxX < r.minX || r.maxY < r.minY {
		return 0
	}
	return uint64(r.maxX-r.minX+1) * uint64(r.maxY-r.minY+1)
}

// VisitNearest is Nearest with a visitor; see VisitAll.
func (t *Table) VisitNearest(p rhumb.Point, k int, fn func(*Item) bool) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := t.view.check(); err != nil {
		return err
	}
	if k < 1 {
		return t.refuse("k is less than 1")
	}
	var failed error
	near := rtree.Nearest(p, k, geo.DistanceMax, t.startRadius(p, k), t.compareHits,
		func(boxes []format.Box, visit func(hit, format.Box)) {
			// rtree.Nearest has no errors, so a failed search is recorded here and later ones
			// return nothing.
			if failed == nil {
				w := t.newWalk(boxes)
				// Hits are collected without decoding: only the k nearest become items.
				w.found = func(h hit) error { visit(h, h.box); return nil }
				failed = w.runQuery()
				w.releaseWalk()
			}
		})
	if failed != nil {
		return failed
	}
	for _, n := range near {
		var it Item
		if err := t.fillItem(&it, n.Item.g, n.Item.r, n.Item.ref); err != nil {
			return err
		}
		// fillItem resets the item, so the distance is set after it.
		it.Distance = n.Metres
		if err := t.handItem(&it, fn); err != nil {
			return ignoreStop(err)
		}
	}
	return nil
}

// startShards is how many shards are asked for a first radius. Keys are spread evenly over the
// shards, so a few are as good an estimate as all.
const startShards = 4

// startRadius returns a radius that likely holds k records: the smallest of the estimates of the
// trees of a few shards, and of the radius that would hold 2k records if all were spread evenly. A
// radius that is too small costs one search that finds little; one that is too large may find
// everything.
func (t *Table) startRadius(p rhumb.Point, k int) float64 {
	shards := len(t.t.segments)
	// Each shard holds its share of the k records, since keys are spread by their hashes.
	each := (k + shards - 1) / shards
	start := geo.DistanceMax
	for _, g := range t.t.segments[:min(shards, startShards)] {
		// An empty shard has no density to estimate from.
		bounds, ok := g.tree.Bounds()
		if !ok {
			continue
		}
		b := bounds.Degrees()
		area := geo.EarthRadius * geo.EarthRadius * (b.Max.Lon - b.Min.Lon) * (math.Pi / 180) *
			(math.Sin(b.Max.Lat*math.Pi/180) - math.Sin(b.Min.Lat*math.Pi/180))
		// The radius of a circle that holds twice the records needed, at the mean density of the
		// tree.
		even := math.Sqrt(2 * float64(each) / float64(g.tree.Items()) * area / math.Pi)
		start = min(start, even, g.tree.StartRadius(p, each))
	}
	return start
}

// compareHits orders equally near records by key.
func (t *Table) compareHits(a, b hit) int {
	if t.t.KeyKind == format.KeyUint64 {
		return cmp.Compare(a.r.word(), b.r.word())
	}
	an, as, _ := a.g.name(a.r, a.ref)
	bn, bs, _ := b.g.name(b.r, b.ref)
	return orderKey{name: an, shardKey: as}.compareKey(orderKey{name: bn, shardKey: bs})
}
