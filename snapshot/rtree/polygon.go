package rtree

import (
	"cmp"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// CornersMax is the greatest number of corners of all rings of a polygon.
const CornersMax = 1 << 16

// fullTurn is 360 degrees in units.
const fullTurn = 2 * format.LonUnitsMax

// Polygon is the area within rings of points, including their edges. The even-odd rule defines the
// inside: a ring within another ring is a hole, and a ring next to it is a second part. The rule
// also applies if edges of one or several rings cross. The direction of a ring is irrelevant.
//
// Edges are straight in longitude and latitude, as RFC 7946 (GeoJSON) has it, and not great
// circles. Corners are rounded to units (1e-7 degrees), and all tests are exact in whole numbers,
// so that every machine and every language library returns the same result.
//
// An edge that spans more than 180 degrees of longitude takes the shorter way, across the
// antimeridian. An edge of exactly 360 degrees, as in a polar cap, is used unchanged.
type Polygon struct {
	// Each ring is closed: its last corner is its first. Where a ring crosses the antimeridian,
	// longitudes continue beyond ±180 degrees, so that every edge is straight; they stay within
	// ±540.
	rings [][]corner
	// The bounds of all rings, at most a full turn wide.
	min, max corner
	// middle is twice the longitude in the middle of the first ring.
	middle int64
}

// corner is a point in units.
type corner struct{ x, y int64 }

// MakePolygon returns the polygon of rings of at least 3 corners, with at most CornersMax corners
// in all. The first corner of a ring may be repeated at its end. It returns InvalidArgument for
// invalid points, for a wrong number of rings or corners, for a ring that goes around a pole, and
// for rings that together are wider than 360 degrees: cut such an area along a meridian first, as
// in RFC 7946, section 3.1.9.
func MakePolygon(rings ...[]rhumb.Point) (Polygon, error) {
	const op rhumb.Op = "rtree.MakePolygon"
	var p Polygon
	if len(rings) == 0 {
		return p, rhumb.E(op, rhumb.InvalidArgument, "a polygon without a ring")
	}
	left := CornersMax
	for _, points := range rings {
		// GeoJSON repeats the first corner at the end of a ring.
		if n := len(points); n > 1 && points[0] == points[n-1] {
			points = points[:n-1]
		}
		if len(points) < 3 || len(points) > left {
			return p, rhumb.Ef(op, rhumb.InvalidArgument, "a ring of %d corners, want 3 at least, and all rings together %d at most", len(points), CornersMax)
		}
		left -= len(points)
		if err := p.addRing(points); err != nil {
			return p, rhumb.Wrap(op, err)
		}
	}
	if p.max.x-p.min.x > fullTurn {
		return p, rhumb.E(op, rhumb.InvalidArgument, "the polygon is wider than 360 degrees of longitude; cut it along a meridian")
	}
	return p, nil
}

// addRing adds a ring.
func (p *Polygon) addRing(points []rhumb.Point) error {
	const op rhumb.Op = "rtree.ring"
	ring := make([]corner, 0, len(points)+1)
	for _, q := range points {
		// After this check the rounded coordinates are within the limits that sideOf relies on.
		if err := q.Validate(); err != nil {
			return err
		}
		u := format.MakePoint(q)
		ring = append(ring, corner{int64(u.MinX), int64(u.MinY)})
	}
	// With the first corner repeated, every edge is a pair of neighbours.
	ring = append(ring, ring[0])
	first := len(p.rings) == 0
	if first {
		// The bounds begin with the first corner; a box of zeros would include the point 0, 0.
		p.min, p.max = ring[0], ring[0]
	} else {
		ring[0].x += p.turnToward(ring[0].x)
	}
	unwrapRing(ring)
	// A ring that goes around a pole does not return to its first longitude but ends a full turn
	// away.
	if ring[0] != ring[len(ring)-1] {
		return rhumb.E(op, rhumb.InvalidArgument, "a ring goes round a pole; cut it along a meridian, up to the pole and back")
	}
	for _, c := range ring {
		p.min = corner{min(p.min.x, c.x), min(p.min.y, c.y)}
		p.max = corner{max(p.max.x, c.x), max(p.max.y, c.y)}
	}
	if first {
		p.middle = p.min.x + p.max.x
	}
	p.rings = append(p.rings, ring)
	return nil
}

// turnToward returns the shift of a further ring's first corner: a full turn or nothing, so that
// the corner is within half a turn of the middle of the first ring. So all rings are on the same
// side of the antimeridian, or continue across it in the same way.
func (p *Polygon) turnToward(x int64) int64 {
	switch twice := 2*x - p.middle; {
	case twice > fullTurn:
		return -fullTurn
	case twice < -fullTurn:
		return fullTurn
	}
	return 0
}

// unwrapRing replaces jumps of longitude at the antimeridian by longitudes beyond ±180 degrees,
// beginning at the first corner.
func unwrapRing(ring []corner) {
	before := ring[len(ring)-1].x // the original longitude of the first corner
	for i := 1; i < len(ring); i++ {
		step := ring[i].x - before
		before = ring[i].x
		switch {
		// The step is measured between the original longitudes, so that one crossing does not
		// affect the next step.
		case step > fullTurn/2 && step != fullTurn:
			step -= fullTurn
		case step < -fullTurn/2 && step != -fullTurn:
			step += fullTurn
		}
		ring[i].x = ring[i-1].x + step
	}
}

// Boxes returns the one or two plain boxes that hold every box that the polygon intersects, at
// least in part.
func (p *Polygon) Boxes() (boxes [2]format.Box, n int) {
	// One extra unit on either side also finds items on the antimeridian that are stored with the
	// other sign.
	b := format.Box{MinX: -format.LonUnitsMax, MinY: int32(p.min.y), MaxX: format.LonUnitsMax, MaxY: int32(p.max.y)}
	// A wider polygon touches all longitudes.
	if p.max.x-p.min.x+2 < fullTurn {
		b.MinX, b.MaxX = wrapLongitude(p.min.x-1), wrapLongitude(p.max.x+1)
	}
	return b.Split()
}

// wrapLongitude brings a longitude into ±180 degrees.
func wrapLongitude(x int64) int32 {
	for x > format.LonUnitsMax {
		x -= fullTurn
	}
	for x < -format.LonUnitsMax {
		x += fullTurn
	}
	return int32(x)
}

// Contains reports whether a point, rounded to units, is in the polygon or on its edge.
func (p *Polygon) Contains(q rhumb.Point) bool {
	u := format.MakePoint(q)
	// Longitudes of the polygon may continue beyond ±180 degrees, so the point is tried one turn to
	// either side.
	for x := int64(u.MinX) - fullTurn; x <= int64(u.MinX)+fullTurn; x += fullTurn {
		if p.holdsPoint(corner{x, int64(u.MinY)}) {
			return true
		}
	}
	return false
}

// Intersects reports whether a box and the polygon have a point in common; the box may cross the
// antimeridian.
func (p *Polygon) Intersects(b format.Box) bool {
	parts, n := b.Split()
	for _, b := range parts[:n] {
		for shift := int64(-fullTurn); shift <= fullTurn; shift += fullTurn {
			// Clipping the box to the bounds does not change the result and keeps products within
			// 64 bits.
			lo := corner{max(int64(b.MinX)+shift, p.min.x), max(int64(b.MinY), p.min.y)}
			hi := corner{min(int64(b.MaxX)+shift, p.max.x), min(int64(b.MaxY), p.max.y)}
			if lo.x <= hi.x && lo.y <= hi.y && p.touchesBox(lo, hi) {
				return true
			}
		}
	}
	return false
}

// touchesBox reports whether a box within the bounds has a point in common with the polygon. Either
// an edge touches the box, or the whole box is on one side of the rings, and one corner decides.
func (p *Polygon) touchesBox(lo, hi corner) bool {
	for _, ring := range p.rings {
		for i := 1; i < len(ring); i++ {
			if edgeTouches(ring[i-1], ring[i], lo, hi) {
				return true
			}
		}
	}
	return p.holdsPoint(lo)
}

// edgeTouches reports whether an edge and a box have a point in common. This holds if their bounds
// intersect and the corners of the box are not all strictly on one side of the line.
func edgeTouches(a, b, lo, hi corner) bool {
	if max(a.x, b.x) < lo.x || min(a.x, b.x) > hi.x || max(a.y, b.y) < lo.y || min(a.y, b.y) > hi.y {
		return false
	}
	s := sideOf(a, b, lo)
	return s == 0 || sideOf(a, b, hi) != s || sideOf(a, b, corner{lo.x, hi.y}) != s || sideOf(a, b, corner{hi.x, lo.y}) != s
}

// sideOf returns the side of the line from a to b on which a point within the bounds is: 1 is left,
// 0 is on the line. The factors are at most 360 and 180 degrees in units, so the products stay
// below 2^63.
func sideOf(a, b, p corner) int { return cmp.Compare((b.x-a.x)*(p.y-a.y), (p.x-a.x)*(b.y-a.y)) }

// holdsPoint reports whether a point is in the polygon or on an edge. From inside, a ray to the
// east crosses an odd number of edges. An edge includes its lower end but not its upper end, so
// that a ray through a corner counts the corner once.
func (p *Polygon) holdsPoint(q corner) bool {
	if q.x < p.min.x || q.x > p.max.x || q.y < p.min.y || q.y > p.max.y {
		return false
	}
	in := false
	for _, ring := range p.rings {
		for i := 1; i < len(ring); i++ {
			a, b := ring[i-1], ring[i]
			if edgeTouches(a, b, q, q) {
				return true
			}
			// The edge crosses the latitude of the point, and does so to the east of it.
			if a.y > q.y != (b.y > q.y) && sideOf(a, b, q) > 0 == (b.y > a.y) {
				in = !in
			}
		}
	}
	return in
}
