package reader

import (
	"iter"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// BBox gives the records of a spatial table whose box touches a box, each once, in no order. A box with Min.Lon > Max.Lon
// crosses the antimeridian. Longitudes 180 and -180 are one meridian: a query that ends at 180 finds a point at -180. It fails
// with kind InvalidArgument when the table keeps no spatial index or the box is none.
func (t *Table) BBox(box rhumb.Box) iter.Seq2[Item, error] {
	return seq(func(fn func(*Item) bool) error { return t.VisitBBox(box, fn) })
}

// VisitBBox is BBox with a visitor, as VisitAll has one.
func (t *Table) VisitBBox(box rhumb.Box, fn func(*Item) bool) error {
	if err := box.Validate(); err != nil {
		return err
	}
	parts, n := rtree.AddMeridian(format.MakeBox(box).Split())
	return t.visitSpatial(parts[:n], nil, fn)
}

// Radius gives the records of a spatial table whose box lies at most so many metres from a point, in part at least, each
// once, in no order; Item.Distance is set. Distances are great-circle distances on a sphere, 0 within the box. It fails as
// BBox does.
func (t *Table) Radius(p rhumb.Point, metres float64) iter.Seq2[Item, error] {
	return seq(func(fn func(*Item) bool) error { return t.VisitRadius(p, metres, fn) })
}

// VisitRadius is Radius with a visitor, as VisitAll has one.
func (t *Table) VisitRadius(p rhumb.Point, metres float64, fn func(*Item) bool) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if !(metres >= 0) {
		return t.refuse("a radius is not negative")
	}
	parts, n := rtree.Circle(p, metres)
	return t.visitSpatial(parts[:n], func(it *Item) bool {
		it.Distance = rtree.Distance(p, it.Box)
		return it.Distance <= metres
	}, fn)
}

// Polygon gives the records of a spatial table whose box touches a polygon, each once, in no order. A ring within another is a
// hole; see rtree.Polygon for what rings may be. It fails as BBox does.
func (t *Table) Polygon(rings ...[]rhumb.Point) iter.Seq2[Item, error] {
	return seq(func(fn func(*Item) bool) error { return t.VisitPolygon(rings, fn) })
}

// VisitPolygon is Polygon with a visitor, as VisitAll has one.
func (t *Table) VisitPolygon(rings [][]rhumb.Point, fn func(*Item) bool) error {
	p, err := rtree.MakePolygon(rings...)
	if err != nil {
		return err
	}
	parts, n := p.Boxes()
	return t.visitSpatial(parts[:n], func(it *Item) bool { return p.Intersects(it.Box) }, fn)
}

// Nearest gives the k records of a spatial table that lie nearest to a point, nearest first, and among equally near ones
// by key; Item.Distance is set. It fails as BBox does.
func (t *Table) Nearest(p rhumb.Point, k int) iter.Seq2[Item, error] {
	return seq(func(fn func(*Item) bool) error { return t.VisitNearest(p, k, fn) })
}
