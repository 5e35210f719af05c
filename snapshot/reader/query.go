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

// walks are kept, since each is large.
var walks = sync.Pool{New: func() any { return new(walk) }}

// boxesMax is the greatest number of plain boxes of a query: see rtree.AddMeridian.
const boxesMax = 4

// hit is a visible record that a query found.
type hit struct {
	g   *segment
	r   record
	ref uint32
	box format.Box
}

// walk finds the records that touch one of the plain boxes of a query. Each is found once, without memory of those found
// before: by the trees as long as its box is that of its base record, by the spatial delta afterwards, and of all pairs of
// a box of the query and a part of the record's box that touch, by the first.
type walk struct {
	t     *Table
	boxes []format.Box
	found func(h hit) error // or nil, and then
	// visit is called with the items that accept takes; a nil accept takes all.
	visit, accept func(*Item) bool

	item   Item
	cursor rtree.Cursor
	room   [boxesMax]format.Box
}

// newWalk begins a walk, which release ends.
func (t *Table) newWalk(boxes []format.Box) *walk {
	w := walks.Get().(*walk)
	w.t, w.boxes = t, append(w.room[:0], boxes...)
	return w
}

// release gives the memory back, which then holds on to nothing.
func (w *walk) release() {
	w.t, w.found, w.visit, w.accept, w.item = nil, nil, nil, nil, Item{}
	w.cursor.Start(nil, nil)
	walks.Put(w)
}

// visitSpatial visits the records that touch the boxes and that accept takes, which nil does with all.
func (t *Table) visitSpatial(boxes []format.Box, accept, visit func(*Item) bool) error {
	w := t.newWalk(boxes)
	defer w.release()
	w.accept, w.visit = accept, visit
	return stopped(w.run())
}

// give hands a record on.
func (w *walk) give(h hit) error {
	if w.found != nil {
		return w.found(h)
	}
	if err := w.t.fill(&w.item, h.g, h.r, h.ref); err != nil {
		return err
	}
	if w.accept != nil && !w.accept(&w.item) {
		return nil
	}
	return w.t.hand(&w.item, w.visit)
}

// run finds each record that touches the boxes.
func (w *walk) run() error {
	t := w.t
	if err := t.view.check(); err != nil {
		return err
	}
	if !t.t.Spatial() {
		return t.refuse("it keeps no spatial index; `rhumb table create NAME --snapshot=spatial` makes a table that does")
	}
	if err := w.trees(); err != nil {
		return err
	}
	for _, g := range t.t.segments {
		if n := g.deltaCount(); n > 0 {
			if err := w.delta(g, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// trees walks the R-trees of all bases together.
func (w *walk) trees() error {
	table := w.t.t
	w.cursor.Start(table.trees, w.boxes)
	for b, ok := w.cursor.Next(); ok; b, ok = w.cursor.Next() {
		for i, ref := range b.Refs {
			if err := w.leaf(table.segments[b.Trees[i]], b.Part, b.Leaves[i], ref); err != nil {
				return err
			}
		}
	}
	return nil
}

// leaf looks at a hit of the trees.
func (w *walk) leaf(g *segment, part int, leaf, ref uint32) error {
	v := &w.t.view
	r, ok := g.record(ref)
	if !ok {
		return g.corrupt("a reference of the tree points past the heap", g.treeOffset(leaf))
	}
	if v.closed != 0 || g.isChanged(ref) {
		var err error
		if r, ref, ok, err = w.t.shownOf(g, r, ref); err != nil || !ok {
			return err
		}
		if r.flags()&format.FlagMoved != 0 { // the delta has it
			return nil
		}
	}
	box, ok := r.box()
	if !ok || v.gone(r) {
		return nil
	}
	if box.Crosses() || part > 0 { // otherwise this is the only pair
		plain, _ := g.tree.Leaf(leaf)
		if !rtree.FirstMatch(w.boxes, part, box, plain) {
			return nil
		}
	}
	return w.give(hit{g, r, ref, box})
}

// deltaEntry is an entry of the spatial delta.
type deltaEntry struct {
	box            format.Box
	ref, next, ver uint32
	_              uint32
}

const _ = uint(format.DeltaEntrySize - unsafe.Sizeof(deltaEntry{}))

// delta walks the n entries of a spatial delta: those of the cells that the boxes touch, or all when there are fewer.
func (w *walk) delta(g *segment, n int) error {
	if len(g.cells) < 2 {
		return nil
	}
	var cells uint64
	for i := range w.boxes {
		cells += cellsOf(&w.boxes[i]).count()
	}
	if cells >= uint64(n) {
		for i := range w.boxes {
			for e := range g.delta[:n] {
				if err := w.entry(g, i, &g.delta[e]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for i := range w.boxes {
		if err := w.chain(g, i, 0, nil); err != nil {
			return err
		}
		if err := w.cells(g, i); err != nil {
			return err
		}
	}
	return nil
}

// cells walks the chains of the cells in which a box that touches the query can have its lowest corner.
func (w *walk) cells(g *segment, part int) error {
	r := cellsOf(&w.boxes[part])
	for y := r.minY; y <= r.maxY; y++ {
		for x := r.minX; x <= r.maxX; x++ {
			c := cell{x, y}
			head := format.DeltaCell(c.lonUnits(), c.latUnits(), uint32(len(g.cells)))
			if err := w.chain(g, part, head, &c); err != nil {
				return err
			}
		}
	}
	return nil
}

// chain walks the chain of a head. Several cells may share one: entries of other cells than the one given are passed over.
func (w *walk) chain(g *segment, part int, head uint32, in *cell) error {
	if int(head) >= len(g.cells) {
		return nil
	}
	next := atomic.LoadUint32(&g.cells[head])
	for range len(g.delta) + 1 {
		if next == 0 {
			return nil
		}
		if uint64(next) > uint64(len(g.delta)) {
			return g.corrupt("the spatial delta leads past its end", g.deltaOffset(next-1))
		}
		e := &g.delta[next-1]
		if in == nil || *in == cellOf(e.box.MinX, e.box.MinY) {
			if err := w.entry(g, part, e); err != nil {
				return err
			}
		}
		next = e.next
	}
	return g.corrupt("the spatial delta runs in a circle", g.deltaOffset(0))
}

// entry looks at an entry of the delta: it counts when the view shows the very record that it was made for.
func (w *walk) entry(g *segment, part int, e *deltaEntry) error {
	v := &w.t.view
	if e.ver > v.limit(g) || !e.box.Intersects(w.boxes[part]) {
		return nil
	}
	r, ok := g.record(e.ref)
	if !ok {
		return g.corrupt("a reference of the spatial delta points past the heap", g.refOffset(e.ref))
	}
	box, ok := r.box()
	if !ok || r.flags()&format.FlagMoved == 0 || !isPart(box, e.box) {
		return nil // of a commit that was never finished
	}
	shown, ref, ok, err := w.t.shownOf(g, r, e.ref)
	if err != nil || !ok || ref != e.ref || v.gone(shown) || !rtree.FirstMatch(w.boxes, part, box, e.box) {
		return err
	}
	return w.give(hit{g, r, ref, box})
}

// isPart reports whether a plain box is one of the parts of a record's box.
func isPart(record, plain format.Box) bool {
	parts, n := record.Split()
	return parts[0] == plain || n == 2 && parts[1] == plain
}

// cell is a cell of the spatial delta.
type cell struct{ x, y int64 }

func cellOf(x, y int32) cell {
	return cell{(int64(x) + format.LonUnitsMax) >> format.DeltaCellShift, (int64(y) + format.LatUnitsMax) >> format.DeltaCellShift}
}

// lonUnits and latUnits give the lowest corner of the cell.
func (c cell) lonUnits() int32 { return int32(c.x<<format.DeltaCellShift - format.LonUnitsMax) }
func (c cell) latUnits() int32 { return int32(c.y<<format.DeltaCellShift - format.LatUnitsMax) }

// cellRange is a rectangle of cells.
type cellRange struct{ minX, minY, maxX, maxY int64 }

// cellsOf gives the cells in which a box that is no larger than a cell and touches b can have its lowest corner.
func cellsOf(b *format.Box) cellRange {
	low, high := cellOf(b.MinX, b.MinY), cellOf(b.MaxX, b.MaxY)
	return cellRange{max(low.x-1, 0), max(low.y-1, 0), high.x, high.y}
}

func (r cellRange) count() uint64 {
	if r.maxX < r.minX || r.maxY < r.minY {
		return 0
	}
	return uint64(r.maxX-r.minX+1) * uint64(r.maxY-r.minY+1)
}

// VisitNearest is Nearest with a visitor, as VisitAll has one.
func (t *Table) VisitNearest(p rhumb.Point, k int, fn func(*Item) bool) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if err := t.view.check(); err != nil {
		return err
	}
	if k < 1 {
		return t.refuse("at least one record has to be asked for")
	}
	var failed error
	near := rtree.Nearest(p, k, geo.DistanceMax, t.startRadius(p, k), t.compareHits,
		func(boxes []format.Box, visit func(hit, format.Box)) {
			if failed == nil {
				w := t.newWalk(boxes)
				w.found = func(h hit) error { visit(h, h.box); return nil }
				failed = w.run()
				w.release()
			}
		})
	if failed != nil {
		return failed
	}
	for _, n := range near {
		var it Item
		if err := t.fill(&it, n.Item.g, n.Item.r, n.Item.ref); err != nil {
			return err
		}
		it.Distance = n.Metres
		if err := t.hand(&it, fn); err != nil {
			return stopped(err)
		}
	}
	return nil
}

// startShards is how many shards are asked for a first radius. Keys are spread evenly, so that a few tell as much as all.
const startShards = 4

// startRadius gives a radius that likely holds k records: the least of what the trees of a few shards say, and of what holds
// twice k if all records were spread evenly. One that is too small costs a search of little; one that is too large may
// find everything.
func (t *Table) startRadius(p rhumb.Point, k int) float64 {
	shards := len(t.t.segments)
	each := (k + shards - 1) / shards
	start := geo.DistanceMax
	for _, g := range t.t.segments[:min(shards, startShards)] {
		bounds, ok := g.tree.Bounds()
		if !ok {
			continue
		}
		b := bounds.Degrees()
		area := geo.EarthRadius * geo.EarthRadius * (b.Max.Lon - b.Min.Lon) * (math.Pi / 180) *
			(math.Sin(b.Max.Lat*math.Pi/180) - math.Sin(b.Min.Lat*math.Pi/180))
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
	return orderKey{name: an, shardKey: as}.compare(orderKey{name: bn, shardKey: bs})
}
