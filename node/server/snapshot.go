package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// Image is the node's image in shared memory.
type Image interface {
	// Dir gives its directory; an error when the node belongs to no cluster yet.
	Dir() (string, error)
	// Publish makes a version of all that is committed, and gives its number.
	Publish(ctx context.Context) (uint64, error)
}

// Bounds of an answer about the image.
const (
	snapshotLimitDefault = 100
	snapshotLimitMax     = 10_000
	// snapshotAnswerMax bounds the bytes of an answer.
	snapshotAnswerMax = 32 << 20
)

const opSnapshot rhumb.Op = "server.snapshot"

// handleSnapshot shows the image to people who look for a fault: it reads what other processes read, attached anew for
// every request, so that nothing is kept in memory between them. Nothing can be changed; publish only makes visible what
// is committed.
func handleSnapshot(mux *http.ServeMux, image Image) {
	show := func(f func(v *shownImage, r *http.Request) (contentType string, body []byte, err error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			contentType, body, err := withImage(image, w.Header(), r, f)
			answer(w, contentType, body, err)
		}
	}
	mux.HandleFunc("GET /v1/snapshot/{$}", show((*shownImage).tables))
	mux.HandleFunc("GET /v1/snapshot/{table}", show((*shownImage).query))
	mux.HandleFunc("GET /v1/snapshot/{table}/{key...}", show((*shownImage).get))
	mux.HandleFunc("POST /v1/snapshot/publish", func(w http.ResponseWriter, r *http.Request) {
		version, err := image.Publish(r.Context())
		body, _ := json.Marshal(map[string]uint64{"version": version}) // a number always encodes
		answer(w, "application/json", body, err)
	})
}

// shownImage is the image as one request reads it.
type shownImage struct {
	dir    string
	header http.Header // of the answer
	client *reader.Client
	view   reader.View
}

// lacksHeader is the header of an answer that names the regions whose records the image lacks.
const lacksHeader = "Rhumb-Lacks-Regions"

func withImage(image Image, header http.Header, r *http.Request, f func(*shownImage, *http.Request) (string, []byte, error)) (string, []byte, error) {
	dir, err := image.Dir()
	if err != nil {
		return "", nil, err
	}
	c, err := reader.Attach(dir, reader.Options{ViewsMax: 1})
	if rhumb.KindOf(err) == rhumb.NotFound {
		return "", nil, rhumb.E(opSnapshot, rhumb.NotFound, "this node publishes no table; make one with rhumb table create NAME --snapshot")
	}
	if err != nil {
		return "", nil, err
	}
	defer c.Close()
	v, err := c.Lock()
	if err != nil {
		return "", nil, err
	}
	defer v.Unlock()
	return f(&shownImage{dir, header, c, v}, r)
}

// answer writes what was found, or why nothing was.
func answer(w http.ResponseWriter, contentType string, body []byte, err error) {
	if err != nil {
		kind := rhumb.KindOf(err)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(statusOf(kind))
		body, _ = json.Marshal(map[string]any{"error": map[string]string{"kind": kind.String(), "message": rhumb.Message(err)}}) // text always encodes
		_, _ = w.Write(append(body, '\n'))                                                                                       // the asker has gone if this fails
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(append(bytes.TrimRight(body, "\n"), '\n')) // as above
}

// statusOf gives the status of HTTP for a kind of error.
func statusOf(kind rhumb.Kind) int {
	switch kind {
	case rhumb.InvalidArgument:
		return http.StatusBadRequest
	case rhumb.NotFound:
		return http.StatusNotFound
	case rhumb.TooLarge:
		return http.StatusRequestEntityTooLarge
	case rhumb.PermissionDenied:
		return http.StatusForbidden
	case rhumb.Unavailable, rhumb.Overloaded, rhumb.Expired, rhumb.DeadlineExceeded:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// snapshotTable is a table as /v1/snapshot/ tells it.
type snapshotTable struct {
	Name          string `json:"name"`
	Keys          string `json:"keys"`
	Spatial       bool   `json:"spatial"`
	Ordered       bool   `json:"ordered"`
	Summed        bool   `json:"summed"`
	LocationField string `json:"location_field,omitempty"`
}

// tables answers with the version and the tables.
func (s *shownImage) tables(*http.Request) (string, []byte, error) {
	doc := struct {
		Image      string          `json:"image"`
		Version    uint64          `json:"version"`
		AgeSeconds *float64        `json:"age_seconds"`
		Tables     []snapshotTable `json:"tables"`
	}{Image: s.client.Stats().Image.String(), Version: s.view.Version()}
	if age, err := s.view.Staleness(); err == nil {
		seconds := age.Seconds()
		doc.AgeSeconds = &seconds
	}
	for _, t := range s.client.Tables() {
		keys := "names"
		if t.KeyKind == format.KeyUint64 {
			keys = "numbers"
		}
		doc.Tables = append(doc.Tables, snapshotTable{t.Name, keys, t.Spatial(), t.Ordered(), t.Summed(), t.LocationField})
	}
	return encodeJSON(doc)
}

func encodeJSON(doc any) (string, []byte, error) {
	body, err := json.Marshal(doc)
	return "application/json", body, rhumb.Wrap(opSnapshot, err)
}

// asGeoJSON reads the format that is asked for.
func asGeoJSON(r *http.Request) (bool, error) {
	switch f := r.URL.Query().Get("format"); f {
	case "", "json":
		return false, nil
	case "geojson":
		return true, nil
	default:
		return false, rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "format=%q: want json or geojson", f)
	}
}

// get answers with one record.
func (s *shownImage) get(r *http.Request) (string, []byte, error) {
	geo, err := asGeoJSON(r)
	if err != nil {
		return "", nil, err
	}
	t, err := s.view.Table(r.PathValue("table"))
	if err != nil {
		return "", nil, err
	}
	it, err := inspect.Get(t, r.PathValue("key"))
	if rhumb.KindOf(err) == rhumb.NotFound {
		return "", nil, rhumb.Ef(opSnapshot, rhumb.NotFound, "table %s has no record %q in version %d of this node's image", r.PathValue("table"), r.PathValue("key"), s.view.Version())
	}
	if err != nil {
		return "", nil, err
	}
	if geo {
		return writeGeoJSON(&t, func(yield func(reader.Item, error) bool) { yield(it, nil) })
	}
	doc, err := inspect.Describe(t.Info(), &it, false)
	if err != nil {
		return "", nil, err
	}
	return encodeJSON(doc)
}

// bounded is a buffer that refuses to grow beyond snapshotAnswerMax.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > snapshotAnswerMax {
		return 0, rhumb.Ef(opSnapshot, rhumb.TooLarge, "the answer has more than %d bytes; give a lower limit", snapshotAnswerMax)
	}
	return b.Buffer.Write(p)
}

func writeGeoJSON(t *reader.Table, items func(yield func(reader.Item, error) bool)) (string, []byte, error) {
	var b bounded
	_, err := t.WriteGeoJSON(&b, items)
	return "application/geo+json", b.Bytes(), err
}

// query answers with the records of a table that touch a box, lie around or nearest to a point, or have a prefix.
func (s *shownImage) query(r *http.Request) (string, []byte, error) {
	p := r.URL.Query()
	for name := range p {
		switch name {
		case "bbox", "radius", "nearest", "prefix", "limit", "format":
		default:
			return "", nil, rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "%q is none of bbox, radius, nearest, prefix, limit and format", name)
		}
	}
	geo, err := asGeoJSON(r)
	if err != nil {
		return "", nil, err
	}
	limit := snapshotLimitDefault
	if text := p.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > snapshotLimitMax {
			return "", nil, rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "limit=%q: want 1 to %d", text, snapshotLimitMax)
		}
	}
	t, err := s.view.Table(r.PathValue("table"))
	if err != nil {
		return "", nil, err
	}
	q := inspect.Query{BBox: p.Get("bbox"), Radius: p.Get("radius"), Nearest: p.Get("nearest"), Prefix: p.Get("prefix")}
	items, err := q.Run(t)
	if err != nil {
		return "", nil, err
	}
	lacks, _, err := inspect.Lacks(s.dir, t.Info().Name)
	if err != nil {
		return "", nil, err
	}
	if len(lacks) > 0 {
		s.header.Set(lacksHeader, strings.Join(lacks, ", "))
	}
	taken, more := inspect.Take(items, limit)
	if geo {
		return writeGeoJSON(&t, taken)
	}
	doc := struct {
		Version uint64           `json:"version"`
		Records []inspect.Record `json:"records"`
		More    bool             `json:"more"` // records beyond the limit
		// Lacks names the regions whose records the image does not have.
		Lacks []string `json:"lacks_regions,omitempty"`
	}{Version: s.view.Version(), Records: []inspect.Record{}, Lacks: lacks}
	size := 0
	for it, err := range taken {
		if err != nil {
			return "", nil, err
		}
		if size += len(it.Value); size > snapshotAnswerMax {
			return "", nil, rhumb.Ef(opSnapshot, rhumb.TooLarge, "the records have more than %d bytes; give a lower limit", snapshotAnswerMax)
		}
		rec, err := inspect.Describe(t.Info(), &it, q.Measured())
		if err != nil {
			return "", nil, err
		}
		doc.Records = append(doc.Records, rec)
	}
	doc.More = *more
	return encodeJSON(doc)
}
