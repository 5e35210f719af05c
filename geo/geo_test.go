package geo

import (
	"math"
	"testing"

	"github.com/rhumbdb/rhumb"
	"pgregory.net/rapid"
)

func at(lat, lon float64) rhumb.Point { return rhumb.Point{Lat: lat, Lon: lon} }

// ellipsoid is how far the sphere may differ from distances on the WGS 84 ellipsoid.
const ellipsoid = 0.0056

func TestDistance(t *testing.T) {
	degree := math.Pi / 180 * EarthRadius
	for _, tc := range []struct {
		name   string
		a, b   rhumb.Point
		metres float64
		within float64
		source string
	}{
		{"same place", at(47.4, 8.5), at(47.4, 8.5), 0, 0, "definition"},
		{"pole to equator", at(90, 0), at(0, 77), 90 * degree, 1e-3, "a quarter of the circumference"},
		{"pole to pole", at(90, 0), at(-90, 0), DistanceMax, 1e-3, "half the circumference"},
		{"antipodes", at(30, 40), at(-30, -140), DistanceMax, 1e-1, "half the circumference"},
		{"the pole has every longitude", at(90, 12), at(90, -170), 0, 1e-6, "definition"},
		{"one degree over the antimeridian", at(0, 179.5), at(0, -179.5), degree, 1e-3, "arc length"},
		{"the antimeridian has two names", at(12, 180), at(12, -180), 0, 1e-6, "definition"},
		{"one degree at 60 north", at(60, 10), at(60, 11), 55_597.0, 5, "half a degree of the equator, less for the great circle"},
		{"Nashville to Los Angeles", at(36.12, -86.67), at(33.94, -118.40), 2_886_440, 20, "Rosetta Code, Haversine formula, radius 6371.0 km"},
		{
			"Flinders Peak to Buninyong", at(-37.95103342, 144.42486789), at(-37.65282114, 143.92649553), 54_972.271, 54_972 * ellipsoid,
			"ICSM, Geocentric Datum of Australia Technical Manual, the test line of Vincenty's formulae",
		},
		{
			"Singapore to Newark", at(1.3592, 103.9894), at(40.6925, -74.1687), 15_344_000, 15_344_000 * ellipsoid,
			"the great circle that airlines publish for SIN-EWR",
		},
	} {
		for _, d := range []float64{Distance(tc.a, tc.b), Distance(tc.b, tc.a)} {
			if math.Abs(d-tc.metres) > tc.within {
				t.Errorf("%s: %.3f m, want %.3f within %.3f (%s)", tc.name, d, tc.metres, tc.within, tc.source)
			}
		}
	}
}

// The second formula, by vectors, is accurate where the haversine is not, and has nothing in common with it.
func TestDistanceAgainstVectors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawPoint(t, "a"), drawPoint(t, "b")
		u, v := toVector(a), toVector(b)
		cross := vector{u.y*v.z - u.z*v.y, u.z*v.x - u.x*v.z, u.x*v.y - u.y*v.x}
		sin := math.Hypot(math.Hypot(cross.x, cross.y), cross.z)
		want := EarthRadius * math.Atan2(sin, u.x*v.x+u.y*v.y+u.z*v.z)
		got := Distance(a, b)
		if math.Abs(got-want) > 0.2 {
			t.Fatalf("%v to %v: %.4f m, vectors say %.4f", a, b, got, want)
		}
		if got != Distance(b, a) || Metres(a, b) != Metres(b, a) || got < 0 || got > DistanceMax+1e-6 {
			t.Fatalf("%v to %v: %v there, %v back", a, b, got, Distance(b, a))
		}
	})
}

func TestMetresRounds(t *testing.T) {
	degree := math.Pi / 180 * EarthRadius
	for _, tc := range []struct {
		metres float64
		want   int64
	}{{0, 0}, {0.4, 0}, {0.6, 1}, {1234.4, 1234}} {
		if got := Metres(at(0, 0), at(0, tc.metres/degree)); got != tc.want {
			t.Errorf("%v m: got %d, want %d", tc.metres, got, tc.want)
		}
	}
}

func TestBearing(t *testing.T) {
	for _, tc := range []struct {
		name string
		a, b rhumb.Point
		want float64
	}{
		{"north", at(10, 20), at(30, 20), 0},
		{"south", at(30, 20), at(10, 20), 180},
		{"east on the equator", at(0, 20), at(0, 30), 90},
		{"west on the equator", at(0, 30), at(0, 20), 270},
		{"east over the antimeridian", at(0, 179), at(0, -179), 90},
		{"west over the antimeridian", at(0, -179), at(0, 179), 270},
		{"same place", at(5, 5), at(5, 5), 0},
		{"from anywhere to the north pole", at(-33, 151), at(90, 7), 0},
		// E. Williams, Aviation Formulary V1.47: LAX to JFK sets out at 66 degrees (1.150035 radians).
		{"Los Angeles to New York", at(33+57.0/60, -(118 + 24.0/60)), at(40+38.0/60, -(73 + 47.0/60)), 65.8922},
	} {
		got := Bearing(tc.a, tc.b)
		if d := math.Abs(got - tc.want); math.Min(d, 360-d) > 1e-3 {
			t.Errorf("%s: %v degrees, want %v", tc.name, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		if b := Bearing(drawPoint(t, "a"), drawPoint(t, "b")); !(b >= 0 && b < 360) {
			t.Fatalf("bearing %v is outside 0 to 360", b)
		}
	})
}

func TestInterpolate(t *testing.T) {
	for _, tc := range []struct {
		name string
		a, b rhumb.Point
		f    float64
		want rhumb.Point
	}{
		{"start", at(1, 2), at(3, 4), 0, at(1, 2)},
		{"before the start", at(1, 2), at(3, 4), -1, at(1, 2)},
		{"end", at(1, 2), at(3, 4), 1, at(3, 4)},
		{"after the end", at(1, 2), at(3, 4), 2, at(3, 4)},
		{"middle of the equator", at(0, 10), at(0, 30), 0.5, at(0, 20)},
		{"over the antimeridian", at(0, 170), at(0, -170), 0.75, at(0, -175)},
		{"over the north pole", at(80, 0), at(80, 180), 0.5, at(90, 0)},
		{"between antipodes over the north pole", at(0, 10), at(0, -170), 0.25, at(45, 10)},
		{"between antipodes beyond the pole", at(0, 10), at(0, -170), 0.75, at(45, -170)},
		{"between the poles", at(-90, 0), at(90, 0), 0.5, at(0, 0)},
		// E. Williams, Aviation Formulary V1.47: 40 % of the way from LAX to JFK lies at 38 40.167 N, 101 37.570 W.
		{
			"Los Angeles to New York", at(33+57.0/60, -(118 + 24.0/60)), at(40+38.0/60, -(73 + 47.0/60)), 0.4,
			at(38+40.167/60, -(101 + 37.570/60)),
		},
	} {
		got := Interpolate(tc.a, tc.b, tc.f)
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if d := Distance(got, tc.want); d > 100 {
			t.Errorf("%s: %v, want %v, %.1f m away", tc.name, got, tc.want, d)
		}
	}
}

// Near antipodes too: the weights of both ends are ill-conditioned there.
func TestInterpolateNearAntipodes(t *testing.T) {
	a, b := at(0.0009765625, 0.0009765625), at(0, 180)
	if first, want := Distance(a, Interpolate(a, b, 0.75)), 0.75*Distance(a, b); math.Abs(first-want) > 0.1 {
		t.Fatalf("three quarters of the way are %.3f m, want %.3f", first, want)
	}
}

// A point of the great circle divides it: no detour, and the parts have the lengths asked for.
func TestInterpolateDivides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawPoint(t, "a"), drawPoint(t, "b")
		f := rapid.Float64Range(0, 1).Draw(t, "f")
		p := Interpolate(a, b, f)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		d := Distance(a, b)
		first, second := Distance(a, p), Distance(p, b)
		if math.Abs(first-f*d) > 1 || math.Abs(second-(1-f)*d) > 1 {
			t.Fatalf("%v to %v at %v is %v: parts %.2f and %.2f of %.2f m", a, b, f, p, first, second, d)
		}
	})
}

func TestNearest(t *testing.T) {
	places := []rhumb.Point{at(1.29, 103.85), at(50.11, 8.68), at(39.04, -77.49)}
	for _, tc := range []struct {
		name string
		p    rhumb.Point
		want int
	}{
		{"Zurich", at(47.4, 8.5), 1},
		{"Sydney", at(-33.9, 151.2), 0},
		{"Honolulu", at(21.3, -157.9), 2},
		{"exactly there", at(1.29, 103.85), 0},
	} {
		if got := Nearest(tc.p, places); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	if got := Nearest(at(0, 0), nil); got != -1 {
		t.Errorf("of none: %d, want -1", got)
	}
	if got := Nearest(at(0, 0), []rhumb.Point{at(0, 1), at(0, -1), at(1, 0)}); got != 0 {
		t.Errorf("of equals: %d, want the first", got)
	}
}

func TestNearestRegion(t *testing.T) {
	regions := []rhumb.Region{{ID: 3, Location: at(0, 1)}, {ID: 2, Location: at(0, -1)}, {ID: 9, Location: at(50, 0)}}
	if got, ok := NearestRegion(at(0, 0), regions); !ok || got.ID != 2 {
		t.Errorf("of equals: region %v, want the lowest id, 2", got.ID)
	}
	if got, _ := NearestRegion(at(51, 1), regions); got.ID != 9 {
		t.Errorf("region %v, want 9", got.ID)
	}
	if _, ok := NearestRegion(at(0, 0), nil); ok {
		t.Error("found a region among none")
	}
}

func drawPoint(t *rapid.T, name string) rhumb.Point {
	edge := rapid.SampledFrom([]rhumb.Point{at(90, 0), at(-90, 180), at(0, 180), at(0, -180), at(0, 0), at(45, 179.9999)})
	any := rapid.Custom(func(t *rapid.T) rhumb.Point {
		return at(rapid.Float64Range(-90, 90).Draw(t, "lat"), rapid.Float64Range(-180, 180).Draw(t, "lon"))
	})
	return rapid.OneOf(any, any, any, edge).Draw(t, name)
}

func BenchmarkDistance(b *testing.B) {
	x, y := at(1.29, 103.85), at(39.04, -77.49)
	for b.Loop() {
		Distance(x, y)
	}
}
