package main

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/paulmach/orb"
	"github.com/paulmach/orb/encoding/mvt"
	"github.com/paulmach/orb/maptile"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// decodeTile requests a vector tile and returns its layers in degrees.
func decodeTile(t *testing.T, h http.Handler, url string, at tile) map[string]*mvt.Layer {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/vnd.mapbox-vector-tile" {
		t.Fatalf("%s: status %d, type %q: %s", url, w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	read, err := mvt.Unmarshal(w.Body.Bytes())
	check(t, err)
	read.ProjectToWGS84(maptile.New(uint32(at.x), uint32(at.y), maptile.Zoom(at.z)))
	out := map[string]*mvt.Layer{}
	for _, l := range read {
		if l.Version != mvtVersion || l.Extent != mvt.DefaultExtent || out[l.Name] != nil {
			t.Errorf("%s: layer %q of version %d, %d units wide, or twice", url, l.Name, l.Version, l.Extent)
		}
		out[l.Name] = l
	}
	return out
}

// TestVectorTile checks that a vector tile contains exactly the flights and roads within the tile
// or its margin, at their positions.
func TestVectorTile(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	at := tile{14, 8578, 5733}
	nearby := func() rhumb.Point {
		return at.pointAt(rng.Float64()*3*tileSize-tileSize, rng.Float64()*3*tileSize-tileSize)
	}
	m := newWorld(t)
	points, lines := map[string]rhumb.Point{}, map[string][2]rhumb.Point{}
	for i := range 300 {
		name, p := fmt.Sprint("f", i), nearby()
		points[name] = p
		m.putFlight(name, p)
		name = fmt.Sprint("r", i)
		q := nearby()
		lines[name] = [2]rhumb.Point{p, q}
		m.putRoad(name, p, q)
	}
	client, err := reader.Attach(m.publish(), reader.Options{})
	check(t, err)
	defer client.Close()
	h := tileHandler(client)
	layers := decodeTile(t, h, "/tiles/14/8578/5733.mvt", at)
	if len(layers) != 2 {
		t.Fatalf("%d layers, want those of two tables", len(layers))
	}
	want := map[string]rhumb.Point{}
	for name, p := range points {
		if x, y := at.pixelOf(p); min(x, y) >= -margin && max(x, y) <= tileSize+margin {
			want[name] = p
		}
	}
	unit := 1.1 * 360 / math.Exp2(14) / mvt.DefaultExtent // of the tile's grid, in degrees of longitude, and fewer of latitude
	near := func(g orb.Point, p rhumb.Point) bool {
		return math.Abs(g.Lon()-p.Lon) < unit && math.Abs(g.Lat()-p.Lat) < unit
	}
	for _, f := range layers["flights"].Features {
		name := f.Properties.MustString("name")
		g, ok := f.Geometry.(orb.Point)
		p, there := want[name]
		if !ok || !there || !near(g, p) || f.Properties.MustFloat64("heading") != 90 || f.Properties["location"] != nil {
			t.Errorf("flight %s is %v with %v; it is at %v, in the tile: %v", name, f.Geometry, f.Properties, points[name], there)
		}
		delete(want, name)
	}
	for name, p := range want {
		t.Errorf("the tile lacks flight %s at %v", name, p)
	}
	verifyRoads(t, at, layers["roads"], lines)
	for _, url := range []string{"/tiles/14/8578/5733.pbf", "/tiles/flights/14/8578/5733.mvt", "/tiles/flights/14/8578/5733.pbf"} {
		if again := decodeTile(t, h, url, at); len(again["flights"].Features) != len(layers["flights"].Features) {
			t.Errorf("%s has other flights", url)
		}
	}
	if far := decodeTile(t, h, "/tiles/3/4/2.mvt", tile{3, 4, 2}); far["roads"] != nil || len(far["flights"].Features) != len(points) {
		t.Errorf("a tile of Europe has layers %v", maps.Keys(far))
	}
}

// verifyRoads checks that a road is in a tile if any point along it is, and only on its line.
func verifyRoads(t *testing.T, at tile, layer *mvt.Layer, lines map[string][2]rhumb.Point) {
	t.Helper()
	found := map[string]bool{}
	for _, f := range layer.Features {
		name := f.Properties.MustString("name")
		found[name] = true
		g, ok := f.Geometry.(orb.LineString)
		if !ok || f.Properties.MustString("highway") != "primary" {
			t.Fatalf("road %s is %v with %v", name, f.Geometry, f.Properties)
		}
		ax, ay := at.pixelOf(lines[name][0])
		bx, by := at.pixelOf(lines[name][1])
		for _, p := range g {
			x, y := at.pixelOf(rhumb.Point{Lat: p.Lat(), Lon: p.Lon()})
			off := ((bx-ax)*(y-ay) - (x-ax)*(by-ay)) / float32(math.Hypot(float64(bx-ax), float64(by-ay)))
			if math.Abs(float64(off)) > 0.3 || min(x, y) < -margin-0.3 || max(x, y) > tileSize+margin+0.3 {
				t.Errorf("road %s goes through pixel %v,%v: %v pixels beside itself", name, x, y, off)
			}
		}
	}
	for name, ends := range lines {
		ax, ay := at.pixelOf(ends[0])
		bx, by := at.pixelOf(ends[1])
		in := false
		for i := range 1001 {
			x, y := ax+(bx-ax)*float32(i)/1000, ay+(by-ay)*float32(i)/1000
			in = in || min(x, y) > 0.3-margin && max(x, y) < tileSize+margin-0.3 // less may be left out
		}
		if in && !found[name] {
			t.Errorf("the tile lacks road %s from %v to %v", name, ends[0], ends[1])
		}
	}
}
