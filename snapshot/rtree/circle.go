package rtree

import (
	"math"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// circleMargin is by how much the boxes around a circle are larger than the circle on each side, in
// degrees. It is far more than the errors of the computation and far less than anything stored.
const circleMargin = 1e-6

// Circle returns the one or two plain boxes that cover all places within metres of a point. The
// point must be valid. A box that touches them is in the circle only if Distance confirms it.
// Negative metres return no box.
//
// Seen from the centre of the earth, an angle d at latitude p reaches from p-d to p+d, and as far
// as asin(sin(d)/cos(p)) to either side (J. P. Snyder, Map Projections, 1987). A circle that
// reaches a pole reaches all longitudes there.
func Circle(p rhumb.Point, metres float64) (boxes [2]format.Box, n int) {
	angle := metres / geo.EarthRadius * (180 / math.Pi)
	switch {
	// The negation also rejects NaN.
	case !(metres >= 0):
		return boxes, 0
	// The circle covers the whole sphere.
	case angle >= 180:
		return [2]format.Box{world}, 1
	}
	south, north := p.Lat-angle-circleMargin, p.Lat+angle+circleMargin
	b := rhumb.Box{Min: rhumb.Point{Lat: max(south, -90), Lon: -180}, Max: rhumb.Point{Lat: min(north, 90), Lon: 180}}
	// All meridians meet at the pole, so the circle reaches every longitude.
	if south <= -90 || north >= 90 {
		return [2]format.Box{format.MakeBox(b)}, 1
	}
	// The circle holds no pole, so that d < 90 - |p| and the quotient is below 1.
	side := math.Asin(min(math.Sin(toRadians(angle))/math.Cos(toRadians(p.Lat)), 1))*(180/math.Pi) + circleMargin
	if side >= 180 {
		return [2]format.Box{format.MakeBox(b)}, 1
	}
	b.Min.Lon, b.Max.Lon = p.Lon-side, p.Lon+side
	// A west edge greater than the east edge marks a box across the antimeridian, which Split
	// divides.
	if b.Min.Lon < -180 {
		b.Min.Lon += 360
	}
	if b.Max.Lon > 180 {
		b.Max.Lon -= 360
	}
	return format.MakeBox(b).Split()
}

// world is the box of all places.
var world = format.Box{MinX: -format.LonUnitsMax, MinY: -format.LatUnitsMax, MaxX: format.LonUnitsMax, MaxY: format.LatUnitsMax}
