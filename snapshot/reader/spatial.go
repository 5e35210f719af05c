package reader

import (
	"iter"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// BBox returns the records of a spatial table whose box touches a box, each once, in no order. A
// box with Min.Lon > Max.Lon crosses the antimeridian. Longitudes 180 and -180 are one meridian: a
// query that ends at 180 finds a point at -180. It fails with kind InvalidArgument if the table has
// no spatial index or the box is invalid.
func (t *Table) BBox(box rhumb.Box) iter.Seq2[Item, error] {
	return sequenceOf(func(fn func(*Item) bool) error { return t.VisitBBox(box, fn) })
}

// VisitBBox is BBox with a visitor; see VisitAll.
func (t *Table) VisitBBox(box rhumb.Box, fn func(*Item) bool) error {
	if err := box.Validate(); err != nil {
		return err
	}
	parts, n := rtree.AddMeridian(format.MakeBox(box).Split())
	return t.visitSpatial(parts[:n], nil, fn)
}

// Radius returns the records of a spatial table whose box is at least partly within metres of a
// point, each once, in no order. It sets Item.Distance. Distances are great-circle distances on a
// sphere, and 0 within the box. It fails as BBox does.
func (t *Table) Radius(p rhumb.Point, metres float64) iter.Seq2[Item, error] {
	return sequenceOf(func(fn func(*Item) bool) error { return t.VisitRadius(p, metres, fn) })
}

// VisitRadius is Radius with a visitor; see VisitAll.
func (t *Table) VisitRadius(p rhumb.Point, metres float64, fn func(*Item) bool) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if !(metres >= 0) {
		return t.refuse("the radius is negative or not a number")
	}
	// The boxes around the circle are only a filter. The distance decides.
	parts, n := rtree.Circle(p, metres)
	return t.visitSpatial(parts[:n], func(it *Item) bool {
		// The item is shared with the visitor, which therefore sees the distance.
		it.Distance = rtree.Distance(p, it.Box)
		return it.Distance <= metres
	}, fn)
}

// Polygon returns the records of a spatial table whose box touches a polygon, each once, in no
// order. A ring within another is a hole; see rtree.Polygon for what rings may be. It fails as BBox
// does.
func (t *Table) Polygon(rings ...[]rhumb.Point) iter.Seq2[Item, error] {
	return sequenceOf(func(fn func(*Item) bool) error { return t.VisitPolygon(rings, fn) })
}

// VisitPolygon is Polygon with a visitor; see VisitAll.
func (t *Table) VisitPolygon(rings [][]rhumb.Point, fn func(*Item) bool) error {
	p, err := rtree.MakePolygon(rings...)
	if err != nil {
		return err
	}
	parts, n := p.Boxes()
	return t.visitSpatial(parts[:n], func(it *Item) bool { return p.Intersects(it.Box) }, fn)
}

// Nearest returns the k records of a spatial table that are nearest to a point, nearest first, and
// equally near ones by key. It sets Item.Distance. It fails as BBox does.
func (t *Table) Nearest(p rhumb.Point, k int) iter.Seq2[Item, error] {
	return sequenceOf(func(fn func(*Item) bool) error { return t.VisitNearest(p, k, fn) })
}
