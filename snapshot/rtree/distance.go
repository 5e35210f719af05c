package rtree

import (
	"math"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Distance returns the great-circle distance in metres from a point to the nearest point of a box,
// on the sphere of package geo. It returns 0 if the box contains the point. The box is bounded by
// meridians and parallels, and may cross the antimeridian.
//
// If the point is within the longitudes of the box, the nearest point is due north or south,
// because two points are never nearer than their difference of latitude. Otherwise the nearest
// point is on the closer of the two meridians, dlon degrees away: at every latitude, a smaller
// difference of longitude means a smaller distance. On this meridian the cosine of the distance
// from a point at latitude p is sin(p)*sin(y) + cos(p)*cos(dlon)*cos(y), a sine curve in the
// latitude y with its top at atan2(sin(p), cos(p)*cos(dlon)): so the nearest point is there, or at
// one of the corners if that latitude is outside the box. The distance itself is by haversine; the
// error is that of a float64, below a millimetre.
func Distance(p rhumb.Point, b format.Box) float64 {
	d := b.Degrees()
	dlon, lon := lonOutside(p.Lon, d)
	if dlon == 0 {
		lat := min(max(p.Lat, d.Min.Lat), d.Max.Lat)
		return geo.EarthRadius * toRadians(math.Abs(p.Lat-lat))
	}
	at := func(lat float64) float64 { return geo.Distance(p, rhumb.Point{Lat: lat, Lon: lon}) }
	nearest := at(d.Min.Lat)
	// Without height, both corners are the same point.
	if d.Min.Lat == d.Max.Lat {
		return nearest
	}
	nearest = min(nearest, at(d.Max.Lat))
	sinP, cosP := math.Sincos(toRadians(p.Lat))
	if top := math.Atan2(sinP, cosP*math.Cos(toRadians(dlon))) * (180 / math.Pi); top > d.Min.Lat && top < d.Max.Lat {
		nearest = min(nearest, at(top))
	}
	return nearest
}

// lonOutside returns by how many degrees, 0 to 180, a longitude is outside of a box, and the nearer
// of the box's two longitudes.
func lonOutside(lon float64, b rhumb.Box) (degrees, nearer float64) {
	// A width of 360 degrees wraps to 0 and needs its own test.
	width := wrapDegrees(b.Max.Lon - b.Min.Lon)
	if b.Max.Lon-b.Min.Lon == 360 || wrapDegrees(lon-b.Min.Lon) <= width {
		return 0, lon
	}
	west, east := wrapDegrees(b.Min.Lon-lon), wrapDegrees(lon-b.Max.Lon)
	if west < east {
		return west, b.Min.Lon
	}
	return east, b.Max.Lon
}

// wrapDegrees brings a difference of longitudes into the range from 0 to below 360.
func wrapDegrees(degrees float64) float64 {
	if degrees < 0 {
		degrees += 360
	}
	if degrees >= 360 {
		degrees -= 360
	}
	return degrees
}

// toRadians converts degrees.
func toRadians(degrees float64) float64 { return degrees * (math.Pi / 180) }
