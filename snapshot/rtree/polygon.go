package rtree

import (
	"cmp"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// CornersMax is the greatest number of corners of a polygon.
const CornersMax = 1 << 16

// fullTurn is 360 degrees in units.
const fullTurn = 2 * format.LonUnitsMax

// Polygon is the area within a ring of points, its edge included. Edges are straight in longitude and latitude, as RFC
// 7946 (GeoJSON) has it, not great circles. Corners are rounded to units (1e-7 degrees), and all tests are exact in whole
// numbers: every machine and every language gives the same answer.
//
// An edge that spans more than 180 degrees of longitude is taken the shorter way, over the antimeridian; one of exactly
// 360 degrees, as the edge of a polar cap has, is taken as it stands. Where edges of the ring cross each other, the
// even-odd rule tells inside from outside.
type Polygon struct {
	// ring is closed: the last corner is the first. Longitudes go on beyond ±180 degrees where the ring does, so that every
	// edge is straight; they stay within ±540.
	ring []corner
	// The bounds of ring, at most a full turn wide.
	min, max corner
}

// corner is a point in units.
type corner struct{ x, y int64 }

// MakePolygon makes a polygon of 3 to CornersMax corners; the first may be repeated at the end. It returns
// InvalidArgument for points that are none, for another number of corners, and for a ring that goes round a pole or is
// wider than 360 degrees: such an area has to be cut along a meridian first, as in RFC 7946, section 3.1.9.
func MakePolygon(points []rhumb.Point) (Polygon, error) {
	const op rhumb.Op = "rtree.MakePolygon"
	if n := len(points); n > 1 && points[0] == points[n-1] {
		points = points[:n-1]
	}
	if len(points) < 3 || len(points) > CornersMax {
		return Polygon{}, rhumb.Ef(op, rhumb.InvalidArgument, "a ring of %d corners, want 3 to %d", len(points), CornersMax)
	}
	ring := make([]corner, 0, len(points)+1)
	for _, q := range points {
		if err := q.Validate(); err != nil {
			return Polygon{}, rhumb.Wrap(op, err)
		}
		u := format.MakePoint(q)
		ring = append(ring, corner{int64(u.MinX), int64(u.MinY)})
	}
	ring = append(ring, ring[0])
	unwrap(ring)
	p := Polygon{ring: ring, min: ring[0], max: ring[0]}
	for _, c := range ring {
		p.min = corner{min(p.min.x, c.x), min(p.min.y, c.y)}
		p.max = corner{max(p.max.x, c.x), max(p.max.y, c.y)}
	}
	switch {
	case ring[0] != ring[len(ring)-1]:
		return Polygon{}, rhumb.E(op, rhumb.InvalidArgument, "the ring goes round a pole; cut it along a meridian, up to the pole and back")
	case p.max.x-p.min.x > fullTurn:
		return Polygon{}, rhumb.E(op, rhumb.InvalidArgument, "the ring is wider than 360 degrees of longitude; cut it along a meridian")
	}
	return p, nil
}

// unwrap lets longitudes go on where an edge crosses the antimeridian.
func unwrap(ring []corner) {
	before := ring[0].x
	for i := 1; i < len(ring); i++ {
		step := ring[i].x - before
		before = ring[i].x
		switch {
		case step > fullTurn/2 && step != fullTurn:
			step -= fullTurn
		case step < -fullTurn/2 && step != -fullTurn:
			step += fullTurn
		}
		ring[i].x = ring[i-1].x + step
	}
}

// Boxes gives the one or two plain boxes that hold every box that the polygon intersects, in part at least.
func (p *Polygon) Boxes() (boxes [2]format.Box, n int) {
	// A unit more on either side finds what lies on the antimeridian under its other name.
	b := format.Box{MinX: -format.LonUnitsMax, MinY: int32(p.min.y), MaxX: format.LonUnitsMax, MaxY: int32(p.max.y)}
	if p.max.x-p.min.x+2 < fullTurn {
		b.MinX, b.MaxX = wrap(p.min.x-1), wrap(p.max.x+1)
	}
	return b.Split()
}

// wrap brings a longitude into ±180 degrees.
func wrap(x int64) int32 {
	for x > format.LonUnitsMax {
		x -= fullTurn
	}
	for x < -format.LonUnitsMax {
		x += fullTurn
	}
	return int32(x)
}

// Contains reports whether a point, rounded to units, lies in the polygon or on its edge.
func (p *Polygon) Contains(q rhumb.Point) bool {
	u := format.MakePoint(q)
	for x := int64(u.MinX) - fullTurn; x <= int64(u.MinX)+fullTurn; x += fullTurn {
		if p.holds(corner{x, int64(u.MinY)}) {
			return true
		}
	}
	return false
}

// Intersects reports whether a box and the polygon have a point in common; the box may cross the antimeridian.
func (p *Polygon) Intersects(b format.Box) bool {
	parts, n := b.Split()
	for _, b := range parts[:n] {
		for shift := int64(-fullTurn); shift <= fullTurn; shift += fullTurn {
			// The box is cut off at the bounds, which changes nothing and keeps products within 64 bits.
			lo := corner{max(int64(b.MinX)+shift, p.min.x), max(int64(b.MinY), p.min.y)}
			hi := corner{min(int64(b.MaxX)+shift, p.max.x), min(int64(b.MaxY), p.max.y)}
			if lo.x <= hi.x && lo.y <= hi.y && p.touches(lo, hi) {
				return true
			}
		}
	}
	return false
}

// touches reports whether a box within the bounds has a point in common with the polygon: an edge touches it, or else all
// of the box lies on one side of the ring, as its corner does.
func (p *Polygon) touches(lo, hi corner) bool {
	for i := 1; i < len(p.ring); i++ {
		if edgeTouches(p.ring[i-1], p.ring[i], lo, hi) {
			return true
		}
	}
	return p.holds(lo)
}

// edgeTouches reports whether an edge has a point in common with a box: their bounds do, and the box's corners do not
// all lie strictly on one side of the line.
func edgeTouches(a, b, lo, hi corner) bool {
	if max(a.x, b.x) < lo.x || min(a.x, b.x) > hi.x || max(a.y, b.y) < lo.y || min(a.y, b.y) > hi.y {
		return false
	}
	s := side(a, b, lo)
	return s == 0 || side(a, b, hi) != s || side(a, b, corner{lo.x, hi.y}) != s || side(a, b, corner{hi.x, lo.y}) != s
}

// side tells on which side of the line from a to b a point within the bounds lies: 1 is left, 0 on it. The factors are at
// most 360 and 180 degrees, so that the products stay below 2^63.
func side(a, b, p corner) int { return cmp.Compare((b.x-a.x)*(p.y-a.y), (p.x-a.x)*(b.y-a.y)) }

// holds reports whether a point lies in the ring or on it: it is on an edge, or a ray to the east crosses an odd number of
// edges. An edge is crossed at its lower end and not at its upper.
func (p *Polygon) holds(q corner) bool {
	if q.x < p.min.x || q.x > p.max.x || q.y < p.min.y || q.y > p.max.y {
		return false
	}
	in := false
	for i := 1; i < len(p.ring); i++ {
		a, b := p.ring[i-1], p.ring[i]
		if edgeTouches(a, b, q, q) {
			return true
		}
		if a.y > q.y != (b.y > q.y) && side(a, b, q) > 0 == (b.y > a.y) {
			in = !in
		}
	}
	return in
}
