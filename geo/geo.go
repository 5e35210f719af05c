// Package geo measures the earth: distances, bearings and great circles between points, and which of several places is
// nearest. It is pure.
//
// The earth is taken as a sphere. Against the WGS 84 ellipsoid that is wrong by at most 0.56 % of a distance, which is far
// below what separates regions or what a network path adds.
package geo

import (
	"math"

	"github.com/rhumbdb/rhumb"
)

// EarthRadius is the mean radius of the earth in metres: R1 = (2a + b) / 3 of the GRS 80 ellipsoid (H. Moritz, Geodetic
// Reference System 1980, Journal of Geodesy 74, 2000).
const EarthRadius = 6_371_008.8

// DistanceMax is the greatest distance between two points in metres: half the circumference.
const DistanceMax = math.Pi * EarthRadius

// antipodal is how close to half a turn, in radians, an angle counts as half a turn: every great circle through a point
// also passes its antipode, so that there the way has to be chosen and not computed. It is about 6 cm on the ground.
const antipodal = 1e-8

// Distance gives the great-circle distance between two valid points in metres (R. W. Sinnott, Virtues of the Haversine,
// Sky and Telescope 68, 1984). It is symmetric, and right at the poles and across the antimeridian.
func Distance(a, b rhumb.Point) float64 { return EarthRadius * angle(a, b) }

// Metres is Distance rounded to whole metres, for everything that must come out alike on every machine: processors differ
// in the last bits of a float64, which rounding hides. Order places by Metres and break ties by id.
func Metres(a, b rhumb.Point) int64 { return int64(math.Round(Distance(a, b))) }

// angle gives the angle between two points as seen from the centre of the earth, 0 to Pi.
func angle(a, b rhumb.Point) float64 {
	sinLat := math.Sin(radians(b.Lat-a.Lat) / 2)
	sinLon := math.Sin(radians(b.Lon-a.Lon) / 2)
	// The conversions forbid the compiler to fuse multiplication and addition, which it does on some processors only.
	cosines := math.Cos(radians(a.Lat)) * math.Cos(radians(b.Lat))
	h := float64(sinLat*sinLat) + float64(float64(cosines*sinLon)*sinLon)
	h = min(h, 1)
	return 2 * math.Atan2(math.Sqrt(h), math.Sqrt(1-h))
}

// Bearing gives the direction in which the great circle from a to b sets out, in degrees clockwise from north, 0 to below
// 360. It is 0 when the points coincide.
func Bearing(a, b rhumb.Point) float64 {
	sinA, cosA := math.Sincos(radians(a.Lat))
	sinB, cosB := math.Sincos(radians(b.Lat))
	sinLon, cosLon := math.Sincos(radians(b.Lon - a.Lon))
	deg := degrees(math.Atan2(sinLon*cosB, cosA*sinB-sinA*cosB*cosLon))
	if deg < 0 {
		deg += 360
	}
	if deg >= 360 { // a tiny negative angle rounds up to a full turn
		return 0
	}
	return deg
}

// Interpolate gives the point at fraction f of the great circle from a to b: a itself for f <= 0, b itself for f >= 1.
// Between antipodes, where every way is equally short, the way leads over the north pole.
func Interpolate(a, b rhumb.Point, f float64) rhumb.Point {
	d := angle(a, b)
	switch {
	case f <= 0 || d == 0:
		return a
	case f >= 1:
		return b
	case math.Pi-d < antipodal:
		return overPole(a, f)
	}
	// Along a and the direction in which the way sets out, which stays exact near antipodes, where the usual weights
	// sin((1-f)d)/sin(d) and sin(fd)/sin(d) are off by metres.
	va, vb := toVector(a), toVector(b)
	ahead := vb.plus(va.scaled(-va.dot(vb)))
	sin, cos := math.Sincos(f * d)
	return va.scaled(cos).plus(ahead.scaled(sin / math.Sqrt(ahead.dot(ahead)))).point()
}

// overPole gives the point at fraction f of the half circle from a over the north pole to its antipode.
func overPole(a rhumb.Point, f float64) rhumb.Point {
	lat := a.Lat + 180*f
	if lat <= 90 {
		return rhumb.Point{Lat: lat, Lon: a.Lon}
	}
	lon := a.Lon + 180
	if lon > 180 {
		lon -= 360
	}
	return rhumb.Point{Lat: 180 - lat, Lon: lon}
}

// Nearest gives the position of the point nearest to p, the first one among equals (by whole metres), or -1 when there
// is none.
func Nearest(p rhumb.Point, points []rhumb.Point) int {
	best, bestMetres := -1, int64(0)
	for i, q := range points {
		if m := Metres(p, q); best < 0 || m < bestMetres {
			best, bestMetres = i, m
		}
	}
	return best
}

// NearestRegion gives the region nearest to p, the one with the lowest id among equals (by whole metres), and false when
// there is none.
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

// vector is a point in space, the centre of the earth at the origin: x towards (0, 0), y towards (0, 90), z northward.
type vector struct{ x, y, z float64 }

func toVector(p rhumb.Point) vector {
	sinLat, cosLat := math.Sincos(radians(p.Lat))
	sinLon, cosLon := math.Sincos(radians(p.Lon))
	return vector{cosLat * cosLon, cosLat * sinLon, sinLat}
}

func (v vector) scaled(f float64) vector { return vector{v.x * f, v.y * f, v.z * f} }

func (v vector) plus(o vector) vector { return vector{v.x + o.x, v.y + o.y, v.z + o.z} }

func (v vector) dot(o vector) float64 { return v.x*o.x + v.y*o.y + v.z*o.z }

// point gives the place on the earth that lies in the direction of v, whatever its length.
func (v vector) point() rhumb.Point {
	return rhumb.Point{
		Lat: degrees(math.Atan2(v.z, math.Hypot(v.x, v.y))),
		Lon: degrees(math.Atan2(v.y, v.x)),
	}
}

func radians(deg float64) float64 { return deg * (math.Pi / 180) }

func degrees(rad float64) float64 { return rad * (180 / math.Pi) }
