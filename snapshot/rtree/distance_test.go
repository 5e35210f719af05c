package rtree

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

func at(lat, lon float64) rhumb.Point { return rhumb.Point{Lat: lat, Lon: lon} }

func degreesBox(minLat, minLon, maxLat, maxLon float64) format.Box {
	return format.MakeBox(rhumb.Box{Min: at(minLat, minLon), Max: at(maxLat, maxLon)})
}

const metresPerDegree = geo.EarthRadius * math.Pi / 180

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		name string
		p    rhumb.Point
		box  format.Box
		want float64
	}{
		{"inside", at(47, 8), degreesBox(46, 7, 48, 9), 0},
		{"on the corner", at(46, 7), degreesBox(46, 7, 48, 9), 0},
		{"due north", at(50, 8), degreesBox(46, 7, 48, 9), 2 * metresPerDegree},
		{"due south", at(45, 7), degreesBox(46, 7, 48, 9), metresPerDegree},
		{"east on the equator", at(0, 12), degreesBox(-1, 7, 1, 9), 3 * metresPerDegree},
		{"the nearest point of a meridian is north of the parallel", at(60, 0), degreesBox(50, 90, 90, 100), 30 * metresPerDegree},
		{"a box of no extent", at(10, 20), degreesBox(30, 40, 30, 40), geo.Distance(at(10, 20), at(30, 40))},
		{"over the antimeridian", at(0, 179), degreesBox(-1, -178, 1, -170), 3 * metresPerDegree},
		{"in a crossing box", at(0, -179.5), degreesBox(-1, 179, 1, -179), 0},
		{"west of a crossing box", at(0, 170), degreesBox(-1, 179, 1, -179), 9 * metresPerDegree},
		{"all longitudes", at(10, 77), degreesBox(-5, -180, 5, 180), 5 * metresPerDegree},
		{"over the pole", at(80, 0), degreesBox(70, 180, 85, 180), 15 * metresPerDegree},
		{"from the pole", at(90, 55), degreesBox(10, 100, 20, 101), 70 * metresPerDegree},
		{"the antimeridian has two names", at(0, 180), degreesBox(-1, -180, 1, -170), 0},
	} {
		if got := Distance(tc.p, tc.box); math.Abs(got-tc.want) > 0.001 {
			t.Errorf("%s: %.4f m, want %.4f", tc.name, got, tc.want)
		}
	}
}

// TestDistanceIsLeast guards that no point of a box is nearer than Distance says, and that one is as near.
func TestDistanceIsLeast(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 2000 {
		p, b := randomPoint(r), randomBox(r)
		got, nearest := Distance(p, b), math.Inf(1)
		d := b.Degrees()
		width := wrapDegrees(d.Max.Lon - d.Min.Lon)
		const steps = 60
		for i := range steps + 1 {
			for j := range steps + 1 {
				lon := d.Min.Lon + width*float64(i)/steps
				lat := d.Min.Lat + (d.Max.Lat-d.Min.Lat)*float64(j)/steps
				nearest = min(nearest, geo.Distance(p, at(lat, lon)))
			}
		}
		// A point between two of the grid is at most half a step away from one in either direction.
		gap := (width + d.Max.Lat - d.Min.Lat) / steps * metresPerDegree
		if got > nearest+0.001 || got < nearest-gap {
			t.Fatalf("from %v to %v: %.3f m, the grid's nearest is %.3f m", p, b, got, nearest)
		}
	}
}

// randomPoint prefers the poles and the antimeridian, where things go wrong.
func randomPoint(r *rand.Rand) rhumb.Point {
	p := at(r.Float64()*180-90, r.Float64()*360-180)
	switch r.IntN(6) {
	case 0:
		p.Lat = math.Copysign(90-r.Float64()*r.Float64()*2, p.Lat)
	case 1:
		p.Lon = math.Copysign(180-r.Float64()*r.Float64()*2, p.Lon)
	case 2:
		p = at(math.Round(p.Lat/45)*45, math.Round(p.Lon/90)*90)
	}
	return p
}

// randomBox is of any size and may cross the antimeridian.
func randomBox(r *rand.Rand) format.Box {
	size := math.Pow(10, -5+7*r.Float64())
	a := randomPoint(r)
	b := at(min(a.Lat+r.Float64()*size, 90), a.Lon+min(r.Float64()*size, 359))
	if b.Lon > 180 {
		b.Lon -= 360
	}
	return format.MakeBox(rhumb.Box{Min: a, Max: b})
}

// TestCircle guards that the boxes hold every point of the circle and, for small ones, little else.
func TestCircle(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for i := range 20_000 {
		p := randomPoint(r)
		metres := math.Pow(10, 8*r.Float64()) / 4
		boxes, n := Circle(p, metres)
		checkPlain(t, boxes[:n])
		// A point on the rim or within, by the formula for a destination at a bearing.
		q := destination(p, metres*math.Sqrt(r.Float64()), r.Float64()*360)
		if i%2 == 0 {
			q = destination(p, metres, math.Round(r.Float64()*72)*5)
		}
		if u := format.MakePoint(q); geo.Distance(p, q) <= metres && !touchesAny(boxes[:n], u) {
			t.Fatalf("%v is %.3f m from %v, within %.3f m, and not in %v", q, geo.Distance(p, q), p, metres, boxes[:n])
		}
	}
}

func touchesAny(boxes []format.Box, b format.Box) bool {
	for _, o := range boxes {
		if o.Intersects(b) {
			return true
		}
	}
	return false
}

func checkPlain(t *testing.T, boxes []format.Box) {
	t.Helper()
	for _, b := range boxes {
		if b.Crosses() || b.MinY > b.MaxY || clipToWorld(b) != b {
			t.Fatalf("%v is no plain box of the world", b)
		}
	}
}

// destination returns the point at a distance and bearing from another (E. Williams, Aviation Formulary).
func destination(p rhumb.Point, metres, bearing float64) rhumb.Point {
	d := metres / geo.EarthRadius
	sinB, cosB := math.Sincos(toRadians(bearing))
	sinP, cosP := math.Sincos(toRadians(p.Lat))
	sinQ := min(max(sinP*math.Cos(d)+cosP*math.Sin(d)*cosB, -1), 1)
	dlon := math.Atan2(sinB*math.Sin(d)*cosP, math.Cos(d)-sinP*sinQ)
	lon := math.Remainder(p.Lon+dlon*180/math.Pi, 360)
	return at(math.Asin(sinQ)*180/math.Pi, lon)
}

func TestCircleShapes(t *testing.T) {
	for _, tc := range []struct {
		name   string
		p      rhumb.Point
		metres float64
		boxes  int
		want   string // of the boxes in whole degrees, rounded outwards
	}{
		{"plain", at(0.5, 0.5), 100, 1, "[0,0 1,1]"},
		{"over the antimeridian", at(0.5, 179.99), 10_000, 2, "[0,179 1,180] [0,-180 1,-179]"},
		{"north pole", at(89.9, 10), 50_000, 1, "[89,-180 90,180]"},
		{"south pole", at(-89.9, 10), 50_000, 1, "[-90,-180 -89,180]"},
		{"all", at(10, 10), geo.DistanceMax, 1, "[-90,-180 90,180]"},
		{"all but the far end", at(0, 10), 0.9 * geo.DistanceMax, 1, "[-90,-180 90,180]"},
		{"none", at(10, 10), -1, 0, ""},
		{"not a number", at(10, 10), math.NaN(), 0, ""},
		{"a place on a corner of degrees", at(10, 10), 0, 1, "[9,9 11,11]"},
	} {
		boxes, n := Circle(tc.p, tc.metres)
		got := ""
		for _, b := range boxes[:n] {
			d := b.Degrees()
			got += fmt.Sprintf(" [%g,%g %g,%g]", math.Floor(d.Min.Lat), math.Floor(d.Min.Lon), math.Ceil(d.Max.Lat), math.Ceil(d.Max.Lon))
		}
		if n != tc.boxes || got != " "+tc.want && n > 0 {
			t.Errorf("%s: %d boxes%s, want %s", tc.name, n, got, tc.want)
		}
	}
	boxes, _ := Circle(at(60, 10), 1000)
	if d := boxes[0].Degrees(); d.Max.Lat-d.Min.Lat > 2001/metresPerDegree || d.Max.Lon-d.Min.Lon > 2*2001/metresPerDegree {
		t.Errorf("the box around 1 km at 60 degrees north is %v", d)
	}
}
