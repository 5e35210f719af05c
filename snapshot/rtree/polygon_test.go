package rtree

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

func mustPolygon(t *testing.T, points ...rhumb.Point) Polygon {
	t.Helper()
	return mustPolygons(t, points)
}

func mustPolygons(t *testing.T, rings ...[]rhumb.Point) Polygon {
	t.Helper()
	p, err := MakePolygon(rings...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// square returns a ring.
func square(south, west, north, east float64) []rhumb.Point {
	return []rhumb.Point{at(south, west), at(south, east), at(north, east), at(north, west)}
}

func TestPolygonContains(t *testing.T) {
	shapes := map[string]Polygon{
		"frame":      mustPolygons(t, square(0, 0, 10, 10), square(2, 2, 8, 8)),
		"target":     mustPolygons(t, square(0, 0, 10, 10), square(2, 2, 8, 8), square(4, 4, 6, 6)),
		"islands":    mustPolygons(t, square(0, 179, 1, -179), square(0, -178, 1, -177), square(0, 176, 1, 177)),
		"overlap":    mustPolygons(t, square(0, 0, 5, 5), square(3, 3, 8, 8)),
		"fiji frame": mustPolygons(t, square(-20, 170, -10, -170), square(-18, 175, -12, 178), square(-18, -178, -12, -175)),
		"world":      mustPolygons(t, square(-90, -180, 90, 180), square(10, 170, 20, 180), square(-20, -180, -10, -170)),
		"triangle":   mustPolygon(t, at(0, 0), at(0, 10), at(10, 0)),
		"closed":     mustPolygon(t, at(0, 0), at(0, 10), at(10, 0), at(0, 0)),
		"horseshoe": mustPolygon(t, at(0, 0), at(0, 10), at(10, 10), at(10, 8), at(2, 8), at(2, 2),
			at(10, 2), at(10, 0)),
		"fiji":    mustPolygon(t, at(-20, 177), at(-20, -178), at(-15, -178), at(-15, 177)),
		"fiji2":   mustPolygon(t, at(-15, -178), at(-20, -178), at(-20, 177), at(-15, 177)),
		"cap":     mustPolygon(t, at(60, -180), at(60, 180), at(90, 180), at(90, -180)),
		"bow tie": mustPolygon(t, at(0, 0), at(10, 10), at(0, 10), at(10, 0)),
		"line":    mustPolygon(t, at(0, 0), at(0, 10), at(0, 5)),
	}
	for _, tc := range []struct {
		shape string
		p     rhumb.Point
		want  bool
	}{
		{"triangle", at(1, 1), true},
		{"closed", at(1, 1), true},
		{"triangle", at(6, 6), false},
		{"triangle", at(5, 5), true}, // on the edge
		{"triangle", at(0, 0), true}, // a corner
		{"triangle", at(10, 0), true},
		{"triangle", at(10, 1), false},
		{"triangle", at(0, -0.0000001), false},
		{"horseshoe", at(5, 5), false},
		{"horseshoe", at(5, 9), true},
		{"horseshoe", at(1, 5), true},
		{"horseshoe", at(10, 5), false},
		{"fiji", at(-17, 179), true},
		{"fiji", at(-17, -179), true},
		{"fiji", at(-17, 180), true},
		{"fiji", at(-17, -180), true},
		{"fiji", at(-17, 0), false},
		{"fiji2", at(-17, 179), true},
		{"fiji2", at(-17, -177), false},
		{"cap", at(75, 0), true},
		{"cap", at(75, -180), true},
		{"cap", at(59, 0), false},
		{"cap", at(60, 123), true},
		{"bow tie", at(5, 9), true},
		{"bow tie", at(9, 5), false},
		{"bow tie", at(5, 5), true},
		{"line", at(0, 7), true},
		{"line", at(0, 11), false},
		{"frame", at(1, 1), true},
		{"frame", at(5, 5), false},
		{"frame", at(5, 2), true}, // on the hole's edge
		{"frame", at(2.0000001, 2.0000001), false},
		{"target", at(5, 5), true},
		{"target", at(3, 3), false},
		{"islands", at(0.5, 180), true},
		{"islands", at(0.5, -178.5), false},
		{"islands", at(0.5, -177.5), true},
		{"islands", at(0.5, 176.5), true},
		{"islands", at(0.5, 178), false},
		{"overlap", at(4, 4), false},
		{"overlap", at(2, 2), true},
		{"overlap", at(7, 7), true},
		{"fiji frame", at(-15, 179), true},
		{"fiji frame", at(-15, 176), false},
		{"fiji frame", at(-15, -176), false},
		{"fiji frame", at(-15, -172), true},
		{"world", at(0, 0), true},
		{"world", at(15, 175), false},
		{"world", at(-15, -175), false},
		{"world", at(15, -175), true},
	} {
		shape := shapes[tc.shape]
		if got := shape.Contains(tc.p); got != tc.want {
			t.Errorf("%s contains %v: %v", tc.shape, tc.p, got)
		}
		if got := shape.Intersects(format.MakePoint(tc.p)); got != tc.want {
			t.Errorf("%s intersects the box at %v: %v", tc.shape, tc.p, got)
		}
	}
}

func TestPolygonIntersects(t *testing.T) {
	horseshoe := mustPolygon(t, at(0, 0), at(0, 10), at(10, 10), at(10, 8), at(2, 8), at(2, 2), at(10, 2), at(10, 0))
	fiji := mustPolygon(t, at(-20, 177), at(-20, -178), at(-15, -178), at(-15, 177))
	frame := mustPolygons(t, square(0, 0, 10, 10), square(2, 2, 8, 8))
	for _, tc := range []struct {
		name string
		p    Polygon
		box  format.Box
		want bool
	}{
		{"box within", horseshoe, degreesBox(0.5, 4, 1, 5), true},
		{"box around", horseshoe, degreesBox(-5, -5, 20, 20), true},
		{"in the opening", horseshoe, degreesBox(3, 3, 9, 7), false},
		{"across the opening", horseshoe, degreesBox(5, 1, 6, 9), true},
		{"corner touches", horseshoe, degreesBox(10, 10, 11, 11), true},
		{"edge touches", horseshoe, degreesBox(2, 3, 9, 7), true},
		{"beside", horseshoe, degreesBox(3, 11, 9, 17), false},
		{"crossing box, crossing polygon", fiji, degreesBox(-17, 179.5, -16, -179.5), true},
		{"west part", fiji, degreesBox(-17, 170, -16, 178), true},
		{"east part", fiji, degreesBox(-17, -178.5, -16, -170), true},
		{"crossing box far south", fiji, degreesBox(-30, 179.5, -29, -179.5), false},
		{"all longitudes", fiji, degreesBox(-17, -180, -16, 180), true},
		{"in the hole", frame, degreesBox(3, 3, 7, 7), false},
		{"as large as the hole", frame, degreesBox(2, 2, 8, 8), true},
		{"over the hole's edge", frame, degreesBox(3, 3, 7, 8.5), true},
		{"around the hole", frame, degreesBox(1, 1, 9, 9), true},
		{"the middle of the world", fiji, degreesBox(-17, -177, -16, 176), false},
	} {
		if got := tc.p.Intersects(tc.box); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// TestPolygonRandom guards Contains by winding angles, Intersects by points of the box, and Boxes, for one to three star-shaped
// rings anywhere, many of them over the antimeridian.
func TestPolygonRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 20))
	for range 300 {
		middle := at(r.Float64()*80-40, math.Copysign(180-r.Float64()*40, r.Float64()-0.5))
		var rings, flat [][]rhumb.Point
		for i := range 1 + r.IntN(3) {
			about := at(middle.Lat/float64(1+i), middle.Lon+float64(i)*20*r.Float64())
			star := randomStar(r, about, 40/float64(1+i))
			flat = append(flat, star)
			rings = append(rings, turned(star))
		}
		p := mustPolygons(t, rings...)
		boxes, k := p.Boxes()
		checkPlain(t, boxes[:k])
		for range 200 {
			q := at(middle.Lat+r.Float64()*100-50, middle.Lon+r.Float64()*100-50)
			if math.Abs(q.Lat) > 90 {
				continue
			}
			there := at(q.Lat, math.Remainder(q.Lon, 360))
			want := false
			for _, ring := range flat {
				want = want != (math.Abs(winding(ring, q)) > math.Pi)
			}
			if got := p.Contains(there); got != want {
				t.Fatalf("rings %v contain %v: %v", rings, there, got)
			}
			box := format.MakePoint(there)
			if want && !touchesAny(boxes[:k], box) {
				t.Fatalf("rings %v contain %v, their boxes %v do not", rings, there, boxes[:k])
			}
			checkIntersects(t, r, &p, there)
		}
	}
}

// randomStar returns a star-shaped ring, whose longitudes go on beyond 180 degrees.
func randomStar(r *rand.Rand, middle rhumb.Point, size float64) (ring []rhumb.Point) {
	n := 3 + r.IntN(20)
	for i := range n {
		sin, cos := math.Sincos(2 * math.Pi * (float64(i) + 0.9*r.Float64()) / float64(n))
		length := 1 + size*r.Float64()
		ring = append(ring, at(middle.Lat+length*sin, middle.Lon+length*cos))
	}
	return ring
}

// turned brings the longitudes of a ring into ±180 degrees.
func turned(ring []rhumb.Point) (out []rhumb.Point) {
	for _, q := range ring {
		out = append(out, at(q.Lat, math.Remainder(q.Lon, 360)))
	}
	return out
}

// checkIntersects compares Intersects for a box about a point with Contains at points of the box.
func checkIntersects(t *testing.T, r *rand.Rand, p *Polygon, q rhumb.Point) {
	t.Helper()
	half := math.Pow(10, -6+7*r.Float64())
	box := degreesBox(max(q.Lat-half, -90), math.Remainder(q.Lon-half, 360), min(q.Lat+half, 90), math.Remainder(q.Lon+half, 360))
	any, all := false, true
	for range 20 {
		s := at(min(max(q.Lat+half*(2*r.Float64()-1), -90), 90), math.Remainder(q.Lon+half*(2*r.Float64()-1), 360))
		in := p.Contains(s)
		any, all = any || in, all && in
	}
	if got := p.Intersects(box); any && !got || all && !got {
		t.Fatalf("polygon %v holds points of %v and does not intersect it", p.rings, box)
	}
	boxes, k := p.Boxes()
	parts, n := box.Split()
	found := false
	for _, part := range parts[:n] {
		found = found || touchesAny(boxes[:k], part)
	}
	if p.Intersects(box) && !found {
		t.Fatalf("polygon %v intersects %v, its boxes %v do not", p.rings, box, boxes[:k])
	}
}

// winding returns the angle by which a ring turns about a point.
func winding(ring []rhumb.Point, q rhumb.Point) (sum float64) {
	for i, a := range ring {
		b := ring[(i+1)%len(ring)]
		ax, ay, bx, by := a.Lon-q.Lon, a.Lat-q.Lat, b.Lon-q.Lon, b.Lat-q.Lat
		sum += math.Atan2(ax*by-ay*bx, ax*bx+ay*by)
	}
	return sum
}

// TestPolygonIntersectsGrid guards Intersects where things touch: rings and boxes have their corners on a small grid. It
// compares with Contains at closely spaced points of the box's rim.
func TestPolygonIntersectsGrid(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	const size, fine = 8, 420 // an edge with a slope of whole numbers up to 7 meets the lines of the grid at whole units
	unit := func(v int) float64 { return float64(v) * fine / format.UnitsPerDegree }
	for range 500 {
		var rings [][]rhumb.Point
		for range 1 + r.IntN(3) {
			var ring []rhumb.Point
			for range 3 + r.IntN(3) {
				ring = append(ring, at(unit(r.IntN(size)), unit(r.IntN(size))))
			}
			if ring[0] != ring[len(ring)-1] {
				rings = append(rings, ring)
			}
		}
		if len(rings) == 0 {
			continue
		}
		p := mustPolygons(t, rings...)
		x, y := r.IntN(size), r.IntN(size)
		w, h := r.IntN(size-x), r.IntN(size-y)
		box := format.Box{MinX: int32(x * fine), MinY: int32(y * fine), MaxX: int32((x + w) * fine), MaxY: int32((y + h) * fine)}
		// They meet if and only if a corner of the ring is in the box or a point of the box's rim is in the ring, where an edge
		// meets it or at a corner.
		want := false
		for _, ring := range rings {
			for _, q := range ring {
				want = want || box.Intersects(format.MakePoint(q))
			}
		}
		for i := range fine*max(w, h) + 1 {
			for _, c := range []corner{
				{int64(box.MinX) + int64(min(i, w*fine)), int64(box.MinY)},
				{int64(box.MinX) + int64(min(i, w*fine)), int64(box.MaxY)},
				{int64(box.MinX), int64(box.MinY) + int64(min(i, h*fine))},
				{int64(box.MaxX), int64(box.MinY) + int64(min(i, h*fine))},
			} {
				want = want || p.holdsPoint(c)
			}
		}
		if got := p.Intersects(box); got != want {
			t.Fatalf("rings %v and box %v: %v", p.rings, box, got)
		}
	}
}

func TestMakePolygonRefuses(t *testing.T) {
	good := square(0, 0, 1, 1)
	many := make([]rhumb.Point, CornersMax-len(good)+1)
	many[0].Lat = 1 // not closed
	for _, tc := range []struct {
		name  string
		rings [][]rhumb.Point
		want  string
	}{
		{"no ring", nil, "without a ring"},
		{"nothing", [][]rhumb.Point{nil}, "0 corners"},
		{"two corners", [][]rhumb.Point{{at(0, 0), at(1, 1), at(0, 0)}}, "2 corners"},
		{"no hole", [][]rhumb.Point{good, {}}, "0 corners"},
		{"no point", [][]rhumb.Point{{at(0, 0), at(91, 1), at(0, 5)}}, "latitude 91"},
		{"no number", [][]rhumb.Point{{at(0, 0), at(1, math.NaN()), at(0, 5)}}, "longitude NaN"},
		{"round the pole", [][]rhumb.Point{{at(60, 0), at(60, 120), at(60, -120)}}, "round a pole"},
		{"hole round the pole", [][]rhumb.Point{good, {at(60, 0), at(60, 120), at(60, -120)}}, "round a pole"},
		{"too wide", [][]rhumb.Point{{at(0, 0), at(0, 170), at(0, -20), at(0, 150), at(5, 150), at(5, -20), at(5, 170), at(5, 0)}}, "wider than 360"},
		{"hole beyond the world", [][]rhumb.Point{square(-90, -180, 90, 180), square(0, 179, 1, -179)}, "wider than 360"},
		{"too many", [][]rhumb.Point{good, many}, "corners"},
	} {
		if _, err := MakePolygon(tc.rings...); rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want InvalidArgument with %q", tc.name, err, tc.want)
		}
	}
}
