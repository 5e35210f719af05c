package main

import (
	"bytes"
	"context"
	"encoding/json"
	"image/png"
	"io"
	"math"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestMain also runs the test binary as the worker that the front end starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-worker" {
		main()
		return
	}
	os.Exit(m.Run())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var somewhere = rhumb.Point{Lat: 47.4, Lon: 8.5}

// world builds an image of flights and roads.
type world struct {
	t              *testing.T
	dir            string
	flights, roads *snapshot.Table
	c              *snapshot.Commit
}

func newWorld(t *testing.T) *world {
	t.Helper()
	m := &world{t: t, dir: t.TempDir()}
	pub, err := snapshot.Open(snapshot.Config{Dir: m.dir})
	check(t, err)
	t.Cleanup(func() { check(t, pub.Close()) })
	for i, table := range []**snapshot.Table{&m.flights, &m.roads} {
		name := []string{"flights", "roads"}[i]
		*table, err = pub.Table(snapshot.TableSpec{ID: rhumb.TableID(1 + i), Name: name, KeyKind: format.KeyName, Spatial: true, Shards: 1, LocationField: "location"})
		check(t, err)
	}
	m.c = pub.Begin()
	return m
}

func (m *world) put(tb *snapshot.Table, name string, box format.Box, fields ...rhumb.Field) {
	m.t.Helper()
	rec, err := rhumb.NewRecord(fields...)
	check(m.t, err)
	check(m.t, m.c.Put(tb, snapshot.Record{
		Key: format.Key{Name: []byte(name)}, Value: rhumb.EncodeRecord(nil, rec), Box: box, HasBox: true,
	}))
}

func (m *world) putFlight(name string, at rhumb.Point) {
	m.put(m.flights, name, format.MakePoint(at), number("heading", 90), rhumb.Field{Name: "location", Value: rhumb.PointField(at)})
}

func (m *world) putRoad(name string, a, b rhumb.Point) {
	box := rhumb.Box{
		Min: rhumb.Point{Lat: min(a.Lat, b.Lat), Lon: min(a.Lon, b.Lon)},
		Max: rhumb.Point{Lat: max(a.Lat, b.Lat), Lon: max(a.Lon, b.Lon)},
	}
	m.put(m.roads, name, format.MakeBox(box),
		number("lat1", a.Lat), number("lon1", a.Lon), number("lat2", b.Lat), number("lon2", b.Lon),
		rhumb.Field{Name: "highway", Value: rhumb.StringField("primary")})
}

func number(name string, x float64) rhumb.Field {
	return rhumb.Field{Name: name, Value: rhumb.Float64Field(x)}
}

// publish publishes the records and returns the directory of the image.
func (m *world) publish() string {
	m.t.Helper()
	_, err := m.c.Publish(snapshot.CommitInfo{})
	check(m.t, err)
	return m.dir
}

// publish creates an image with one flight and one road.
func publish(t *testing.T) string {
	t.Helper()
	m := newWorld(t)
	m.putFlight("SWR8", somewhere)
	m.putRoad("1/1", somewhere, rhumb.Point{Lat: 47.401, Lon: 8.501})
	return m.publish()
}

// TestMercator checks that pixelOf inverts pointAt, and that known tiles have their known bounds.
func TestMercator(t *testing.T) {
	for _, c := range []struct {
		tile tile
		p    rhumb.Point
	}{
		{tile{0, 0, 0}, rhumb.Point{}}, {tile{10, 536, 358}, somewhere}, {tile{16, 34119, 23896}, rhumb.Point{Lat: 43.7384, Lon: 7.4246}},
	} {
		x, y := c.tile.pixelOf(c.p)
		if x < 0 || y < 0 || x > tileSize || y > tileSize {
			t.Errorf("%v lies at %v, %v of tile %v", c.p, x, y, c.tile)
		}
		q := c.tile.pointAt(float64(x), float64(y))
		if math.Abs(q.Lat-c.p.Lat) > 1e-4 || math.Abs(q.Lon-c.p.Lon) > 1e-4 {
			t.Errorf("%v comes back as %v", c.p, q)
		}
	}
	if b := (tile{1, 0, 0}).boxWithMargin(0); math.Abs(b.Max.Lat-85.0511) > 1e-3 || b.Min.Lat != 0 || b.Min.Lon != -180 || b.Max.Lon != 0 {
		t.Errorf("the north-western quarter is %v", b)
	}
}

// output collects the output of the program and finds lines that match a pattern.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) await(t *testing.T, form string) []string {
	t.Helper()
	re := regexp.MustCompile(form)
	limit := time.After(time.Minute)
	for tick := time.NewTicker(time.Millisecond); ; {
		o.mu.Lock()
		found := re.FindStringSubmatch(o.text.String())
		o.mu.Unlock()
		if found != nil {
			return found
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("it printed %q, and nothing like %s", o.text.String(), form)
		}
	}
}

func get(t *testing.T, url string, status int) []byte {
	t.Helper()
	answer, err := http.Get(url)
	check(t, err)
	body, err := io.ReadAll(answer.Body)
	check(t, err)
	check(t, answer.Body.Close())
	if answer.StatusCode != status {
		t.Fatalf("%s: status %d, want %d: %s", url, answer.StatusCode, status, body)
	}
	return body
}

// TestServe runs the whole program: a page, tiles from two processes, and their memory.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	image := publish(t)
	var out output
	ended := make(chan error, 1)
	go func() {
		ended <- serveMap(ctx, config{image: image, addr: "127.0.0.1:0", workers: 2, every: 50 * time.Millisecond}, &out)
	}()
	root := out.await(t, `at (http://[0-9.:]+/)`)[1]
	if page := string(get(t, root, 200)); !strings.Contains(page, "tiles/") || strings.Contains(page, "https://") {
		t.Error("the page shows no tiles, or needs the network")
	}
	for range 6 {
		img, err := png.Decode(bytes.NewReader(get(t, root+"tiles/10/536/358.png", 200)))
		check(t, err)
		x, y := (tile{10, 536, 358}).pixelOf(somewhere)
		if got := img.At(int(x), int(y)); got != aircraft {
			t.Errorf("where the flight is, the tile is %v", got)
		}
		if got := img.At(3, 3); got != ground {
			t.Errorf("where nothing is, the tile is %v", got)
		}
	}
	img, err := png.Decode(bytes.NewReader(get(t, root+"tiles/18/137261/91773.png", 200)))
	check(t, err)
	seen := map[any]bool{}
	for i := range tileSize * tileSize {
		seen[img.At(i%tileSize, i/tileSize)] = true
	}
	if !seen[avenue] {
		t.Error("the tile shows no road")
	}
	if text := get(t, root+"tiles/flights/10/536/358.geojson", 200); !json.Valid(text) || !bytes.Contains(text, []byte("SWR8")) {
		t.Errorf("GeoJSON %s", text)
	}
	for _, bad := range []string{"tiles/2/4/0.png", "tiles/1/0/0.gif", "tiles/21/0/0.png", "tiles/none/1/0/0.geojson", "tiles/none/1/0/0.mvt", "tiles/flights/1/0/0.png", "tiles/1/0/0.geojson", "tiles/1/0/0"} {
		get(t, root+bad, 404)
	}
	for _, worker := range []string{"0", "1"} {
		out.await(t, `worker `+worker+`: +[1-9][0-9]* tiles, +[0-9.]+ MiB of its own, +[0-9.]+ MiB of the image`)
	}
	cancel()
	check(t, <-ended)
}
