// Package geo computes distances, bearings and great circles between points, and the nearest of
// several points. It is pure.
//
// It treats the earth as a sphere. Compared to the WGS 84 ellipsoid the error is at most 0.56 % of
// a distance, which is far less than the distance between regions or the detours of a network path.
package geo

import (
	"math"

	"github.com/rhumbdb/rhumb"
)

// EarthRadius is the mean radius of the earth in metres: R1 = (2a + b) / 3 of the GRS 80 ellipsoid (H. Moritz, Geodetic
// Reference System 1980, Journal of Geodesy 74, 2000).
const EarthRadius = 6_371_008.8

// DistanceMax is the largest distance between two points in metres: half the circumference.
const DistanceMax = math.Pi * EarthRadius

// antipodal is the tolerance, in radians, within which an angle counts as half a turn. Every great
// circle through a point also passes through its antipode, so the path between antipodes cannot be
// computed and must be chosen. The tolerance is about 6 cm on the ground.
const antipodal = 1e-8

// Distance returns the great-circle distance between two valid points in metres (R. W. Sinnott,
// Virtues of the Haversine, Sky and Telescope 68, 1984). It is symmetric, and accurate at the poles
// and across the antimeridian.
func Distance(a, b rhumb.Point) float64 { return EarthRadius * angleBetween(a, b) }

// Metres returns Distance rounded to whole metres. Use it wherever all machines must agree:
// processors differ in the last bits of a float64, and rounding hides the difference. Sort by
// Metres and break ties by id.
func Metres(a, b rhumb.Point) int64 { return int64(math.Round(Distance(a, b))) }

// angleBetween returns the angle between two points as seen from the centre of the earth, 0 to Pi.
func angleBetween(a, b rhumb.Point) float64 {
	sinLat := math.Sin(toRadians(b.Lat-a.Lat) / 2)
	sinLon := math.Sin(toRadians(b.Lon-a.Lon) / 2)
	// The conversions keep the compiler from fusing multiplication and addition, which it does on
	// some processors only.
	cosines := math.Cos(toRadians(a.Lat)) * math.Cos(toRadians(b.Lat))
	h := float64(sinLat*sinLat) + float64(float64(cosines*sinLon)*sinLon)
	// Rounding can push h above 1 for antipodes, and the square root below would be NaN.
	h = min(h, 1)
	return 2 * math.Atan2(math.Sqrt(h), math.Sqrt(1-h))
}

// Bearing returns the initial direction of the great circle from a to b, in degrees clockwise from
// north, at least 0 and below 360. It returns 0 if the points are equal.
func Bearing(a, b rhumb.Point) float64 {
	sinA, cosA := math.Sincos(toRadians(a.Lat))
	sinB, cosB := math.Sincos(toRadians(b.Lat))
	sinLon, cosLon := math.Sincos(toRadians(b.Lon - a.Lon))
	deg := toDegrees(math.Atan2(sinLon*cosB, cosA*sinB-sinA*cosB*cosLon))
	if deg < 0 {
		deg += 360
	}
	if deg >= 360 { // a tiny negative angle rounds up to a full turn
		return 0
	}
	return deg
}

// Interpolate returns the point at fraction f of the great circle from a to b: a for f <= 0 and b
// for f >= 1. Between antipodes, where all paths have the same length, it follows the one over the
// north pole.
func Interpolate(a, b rhumb.Point, f float64) rhumb.Point {
	d := angleBetween(a, b)
	switch {
	case f <= 0 || d == 0:
		return a
	case f >= 1:
		return b
	case math.Pi-d < antipodal:
		return overPole(a, f)
	}
	// Move from a in the direction of b. This stays exact near antipodes, while the usual weights
	// sin((1-f)d)/sin(d) and sin(fd)/sin(d) are off by metres there.
	va, vb := toVector(a), toVector(b)
	ahead := vb.plus(va.scaleBy(-va.dotProduct(vb)))
	sin, cos := math.Sincos(f * d)
	return va.scaleBy(cos).plus(ahead.scaleBy(sin / math.Sqrt(ahead.dotProduct(ahead)))).toPoint()
}

// overPole returns the point at fraction f of the half circle from a over the north pole to the
// antipode of a.
func overPole(a rhumb.Point, f float64) rhumb.Point {
	lat := a.Lat + 180*f
	if lat <= 90 {
		return rhumb.Point{Lat: lat, Lon: a.Lon}
	}
	// Beyond the pole the path descends on the opposite meridian.
	lon := a.Lon + 180
	if lon > 180 {
		lon -= 360
	}
	return rhumb.Point{Lat: 180 - lat, Lon: lon}
}

// Nearest returns the index of the point nearest to p, or -1 if points is empty. Distances are
// compared in whole metres, and the first of several equal ones wins.
func Nearest(p rhumb.Point, points []rhumb.Point) int {
	best, bestMetres := -1, int64(0)
	for i, q := range points {
		if m := Metres(p, q); best < 0 || m < bestMetres {
			best, bestMetres = i, m
		}
	}
	return best
}

// NearestRegion returns the region nearest to p. It returns false if regions is empty. Distances
// are compared in whole metres, and the lowest id of several equal ones wins.
func NearestRegion(p rhumb.Point, regions []rhumb.Region) (nearest rhumb.Region, ok bool) {
	var metres int64
	for _, r := range regions {
		m := Metres(p, r.Location)
		if !ok || m < metres || m == metres && r.ID < nearest.ID {
			nearest, metres, ok = r, m, true
		}
	}
	return nearest, ok
}

// vector is a point in space with the origin at the centre of the earth: x towards (0, 0), y
// towards (0, 90), z north.
type vector struct{ x, y, z float64 }

// toVector returns the unit vector that points to p.
func toVector(p rhumb.Point) vector {
	sinLat, cosLat := math.Sincos(toRadians(p.Lat))
	sinLon, cosLon := math.Sincos(toRadians(p.Lon))
	return vector{cosLat * cosLon, cosLat * sinLon, sinLat}
}

func (v vector) scaleBy(f float64) vector { return vector{v.x * f, v.y * f, v.z * f} }

func (v vector) plus(o vector) vector { return vector{v.x + o.x, v.y + o.y, v.z + o.z} }

func (v vector) dotProduct(o vector) float64 { return v.x*o.x + v.y*o.y + v.z*o.z }

// toPoint returns the position on the earth in the direction of v, whose length does not matter.
func (v vector) toPoint() rhumb.Point {
	return rhumb.Point{
		Lat: toDegrees(math.Atan2(v.z, math.Hypot(v.x, v.y))),
		Lon: toDegrees(math.Atan2(v.y, v.x)),
	}
}

func toRadians(deg float64) float64 { return deg * (math.Pi / 180) }

func toDegrees(rad float64) float64 { return rad * (180 / math.Pi) }
