package roads

import (
	"math"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

func TestSameSeedSameRoads(t *testing.T) {
	a, b, other := New(1), New(1), New(2)
	same := 0
	for i := range 10_000 {
		s := a.Next()
		if s != b.Next() {
			t.Fatalf("segment %d differs", i)
		}
		if s == other.Next() {
			same++
		}
	}
	if same > 0 {
		t.Errorf("two seeds share %d segments", same)
	}
}

func point(x, y int32) rhumb.Point {
	return rhumb.Point{Lat: float64(y) / format.UnitsPerDegree, Lon: float64(x) / format.UnitsPerDegree}
}

// TestModel checks the properties of the data on which the benchmarks rely: lengths, connected
// ends, and clusters.
func TestModel(t *testing.T) {
	g := New(1)
	const n = 300_000
	var metres float64
	var joined int
	var last Segment
	crowd := map[[2]int32]int{}
	for range n {
		s := g.Next()
		if b := s.Box(); b.Crosses() || b.MinY > b.MaxY {
			t.Fatalf("segment %v has box %v", s, b)
		}
		d := geo.Distance(point(s.FromX, s.FromY), point(s.ToX, s.ToY))
		if d > 2000 {
			t.Fatalf("segment %v is %.0f m long", s, d)
		}
		metres += d
		if s.FromX == last.ToX && s.FromY == last.ToY {
			joined++
		}
		last = s
		crowd[[2]int32{s.FromX / 1_000_000, s.FromY / 1_000_000}]++
	}
	most := 0
	for _, c := range crowd {
		most = max(most, c)
	}
	mean := metres / n
	t.Logf("mean length %.0f m, %.1f %% continue the one before, %d cells of 0.1 degrees, at most %d in one",
		mean, 100*float64(joined)/n, len(crowd), most)
	if mean < 130 || mean > 230 {
		t.Errorf("mean length %.0f m", mean)
	}
	if joined < n*9/10 {
		t.Errorf("only %d of %d segments continue the one before", joined, n)
	}
	if len(crowd) < 5000 || most < 50*n/len(crowd) {
		t.Errorf("%d cells, at most %d in one: no clusters", len(crowd), most)
	}
}

func TestTiles(t *testing.T) {
	boxes := New(1).Boxes(20_000)
	tiles, again := NewTiles(3, boxes), NewTiles(3, boxes)
	hits := 0
	for range 200 {
		d, a := tiles.Data(2), tiles.Area(2)
		if d != again.Data(2) || a != again.Area(2) {
			t.Fatal("equal seeds give other tiles")
		}
		for _, b := range []format.Box{d, a} {
			w, e := point(b.MinX, b.MinY/2+b.MaxY/2), point(b.MaxX, b.MinY/2+b.MaxY/2)
			if side := geo.Distance(w, e); math.Abs(side-2000) > 5 {
				t.Errorf("tile %v is %.0f m wide, want 2000", b, side)
			}
		}
		for _, b := range boxes {
			if b.Intersects(d) {
				hits++
				break
			}
		}
	}
	if hits != 200 {
		t.Errorf("%d of 200 tiles about a box hold one", hits)
	}
}

func BenchmarkNext(b *testing.B) {
	g := New(1)
	for b.Loop() {
		g.Next()
	}
}
