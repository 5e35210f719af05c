package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// noImage is a node that belongs to no cluster.
type noImage struct{}

func (noImage) Dir() (string, error) {
	return "", rhumb.E("test", rhumb.Unavailable, "the node belongs to no cluster")
}

func (noImage) Publish(context.Context) (uint64, error) {
	return 0, rhumb.E("test", rhumb.Unavailable, "as above")
}

// imageAt is a published image.
type imageAt struct{ dir string }

func (i imageAt) Dir() (string, error)                    { return i.dir, nil }
func (i imageAt) Publish(context.Context) (uint64, error) { return 7, nil }
func (i imageAt) handler() http.Handler {
	return AdminHandler(&fakeHealth{}, prometheus.NewRegistry(), i, anyone{})
}

func publishedImage(t *testing.T) imageAt {
	t.Helper()
	parent, err := os.MkdirTemp("/dev/shm", "rhumb-test-")
	if err != nil {
		parent = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	p, err := snapshot.Open(snapshot.Config{Dir: filepath.Join(parent, "image")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	cars, err := p.Table(snapshot.TableSpec{ID: 1, Name: "cars", KeyKind: format.KeyName, Spatial: true, Ordered: true, LocationField: "location"})
	if err != nil {
		t.Fatal(err)
	}
	c := p.Begin()
	for i, name := range []string{"a/1", "a/2", "b/1"} {
		at := rhumb.Point{Lat: 47, Lon: 8 + float64(i)}
		r, err := rhumb.NewRecord(rhumb.Field{Name: "location", Value: rhumb.PointField(at)}, rhumb.Field{Name: "n", Value: rhumb.Int64Field(int64(i))})
		if err == nil {
			err = c.Put(cars, snapshot.Record{Key: format.Key{Name: []byte(name)}, Box: format.MakePoint(at), HasBox: true, Value: rhumb.EncodeRecord(nil, r)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Publish(snapshot.CommitInfo{}); err != nil {
		t.Fatal(err)
	}
	return imageAt{filepath.Join(parent, "image")}
}

// TestSnapshotHTTP guards the HTTP interface of the image: answers, error kinds with their status
// codes, content types.
func TestSnapshotHTTP(t *testing.T) {
	s := httptest.NewServer(publishedImage(t).handler())
	defer s.Close()
	for _, tc := range []struct {
		path string
		code int
		says string
	}{
		{"/v1/snapshot/", 200, `"name":"cars"`},
		{"/v1/snapshot/cars/a/1", 200, `"key":"a/1"`},
		{"/v1/snapshot/cars/a/1?format=geojson", 200, `"coordinates":[8,47]`},
		{"/v1/snapshot/cars?bbox=7.5,46,8.5,48", 200, `"key":"a/1"`},
		{"/v1/snapshot/cars?radius=47,8,1000", 200, `"distance_m":0`},
		{"/v1/snapshot/cars?nearest=47,10.1,1&format=geojson", 200, `"id":"b/1"`},
		{"/v1/snapshot/cars?prefix=a/", 200, `"more":false`},
		{"/v1/snapshot/cars?limit=1", 200, `"more":true`},
		{"/v1/snapshot/_positions", 200, `"records":[]`},
		{"/v1/snapshot/cars/nobody", 404, `"kind":"not_found"`},
		{"/v1/snapshot/none", 404, `"kind":"not_found"`},
		{"/v1/snapshot/cars?bbox=1,2,3", 400, `"kind":"invalid_argument"`},
		{"/v1/snapshot/cars?bbox=1,2,3,x", 400, `"kind":"invalid_argument"`},
		{"/v1/snapshot/cars?bbox=1,95,3,99", 400, `"kind":"invalid_argument"`},
		{"/v1/snapshot/cars?nearest=1,2,0.5", 400, `"kind":"invalid_argument"`},
		{"/v1/snapshot/cars?bbox=1,2,3,4&prefix=a", 400, `"kind":"invalid_argument"`},
		{"/v1/snapshot/cars?limit=0", 400, `"kind":"invalid_argument"`},
		{"/v1/snapshot/cars?format=xml", 400, `"kind":"invalid_argument"`},
		{"/v1/snapshot/cars?where=x", 400, `"kind":"invalid_argument"`},
	} {
		resp, err := http.Get(s.URL + tc.path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.code || !strings.Contains(string(body), tc.says) || !json.Valid(body) {
			t.Errorf("%s: %d %.300s, want %d with %s", tc.path, resp.StatusCode, body, tc.code, tc.says)
		}
		want := "application/json"
		if strings.Contains(tc.path, "format=geojson") {
			want = "application/geo+json"
		}
		if got := resp.Header.Get("Content-Type"); got != want {
			t.Errorf("%s: content type %q", tc.path, got)
		}
	}
	resp, err := http.Post(s.URL+"/v1/snapshot/publish", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 200 || string(body) != "{\"version\":7}\n" {
		t.Errorf("publish: %d %s", resp.StatusCode, body)
	}
	for _, image := range []Image{noImage{}, imageAt{t.TempDir()}} {
		w := httptest.NewRecorder()
		AdminHandler(&fakeHealth{}, prometheus.NewRegistry(), image, anyone{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/snapshot/", nil))
		if w.Code != 404 && w.Code != 503 || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("without an image: %d %s", w.Code, w.Body)
		}
	}
}

// TestSnapshotHTTPNamesWhatItLacks guards that an answer about places names the regions whose
// records the image lacks: the nearest record may be there.
func TestSnapshotHTTPNamesWhatItLacks(t *testing.T) {
	image := publishedImage(t)
	b, err := format.EncodeRegions(format.Regions{Tables: map[string]format.TableRegions{"cars": {Whole: []string{"here"}, Lacks: []string{"virginia", "singapore"}}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(image.dir, format.RegionsName), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"nearest=39.9,-75.2,1", "radius=39.9,-75.2,1000", "bbox=-76,39,-75,40", "nearest=39.9,-75.2,1&format=geojson"} {
		w := httptest.NewRecorder()
		image.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/snapshot/cars?"+path, nil))
		inBody := strings.Contains(w.Body.String(), `"lacks_regions":["virginia","singapore"]`) || strings.Contains(path, "geojson")
		if w.Code != 200 || !inBody || w.Header().Get(lacksHeader) != "virginia, singapore" {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
	}
}
