package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// Image is the node's image in shared memory.
type Image interface {
	// Dir returns the directory of the image, or an error if the node belongs to no cluster yet.
	Dir() (string, error)
	// Publish creates a version with everything that is committed, and returns its number.
	Publish(ctx context.Context) (uint64, error)
}

// Bounds of an answer about the image.
const (
	snapshotLimitDefault = 100
	snapshotLimitMax     = 10_000
	// snapshotAnswerMax bounds the bytes of an answer, which is built in memory before it is sent.
	snapshotAnswerMax = 32 << 20
)

const opSnapshot rhumb.Op = "server.snapshot"

// handleSnapshot registers the handlers that show the image to people who look for a fault. Each
// request attaches to the image as any reader process does, so it shows what readers see, and keeps
// no memory between requests. Nothing can be changed; publish only makes committed data visible.
//
// Whoever administers the cluster may not read its records for that reason, so records need the right to read their
// whole table too: an image has no part of a table for a part of its names.
func handleSnapshot(handle func(pattern string, next http.HandlerFunc), image Image, callers Callers) {
	show := func(f func(v *shownImage, r *http.Request) (contentType string, body []byte, err error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			contentType, body, err := withImage(image, w.Header(), r, f)
			writeAnswer(w, contentType, body, err)
		}
	}
	handle("GET /v1/snapshot/{$}", show((*shownImage).listTables))
	records := func(f func(v *shownImage, r *http.Request) (string, []byte, error)) http.HandlerFunc {
		shown := show(f)
		return func(w http.ResponseWriter, r *http.Request) {
			who, _ := access.FromContext(r.Context())
			if table := r.PathValue("table"); !callers.MayRead(who, table) {
				writeAnswer(w, "", nil, rhumb.Ef(opSnapshot, rhumb.PermissionDenied, "%s may not read all of table %q, or it does not exist; ask a cluster admin for `rhumb grant ROLE --table NAME --rights read`", who, table))
				return
			}
			shown(w, r)
		}
	}
	handle("GET /v1/snapshot/{table}", records((*shownImage).queryTable))
	handle("GET /v1/snapshot/{table}/{key...}", records((*shownImage).getRecord))
	handle("POST /v1/snapshot/publish", func(w http.ResponseWriter, r *http.Request) {
		version, err := image.Publish(r.Context())
		body, _ := json.Marshal(map[string]uint64{"version": version}) // a number always encodes
		writeAnswer(w, "application/json", body, err)
	})
}

// shownImage is the image as read by one request.
type shownImage struct {
	dir    string
	header http.Header // of the answer
	client *reader.Client
	view   reader.View
}

// lacksHeader is the header of an answer that names the regions whose records the image lacks.
// Without it, the nearest record of an image with two regions would pass for the nearest of all.
const lacksHeader = "Rhumb-Lacks-Regions"

// withImage attaches to the image and calls f with one version of it. The version is released when
// f returns.
func withImage(image Image, header http.Header, r *http.Request, f func(*shownImage, *http.Request) (string, []byte, error)) (string, []byte, error) {
	dir, err := image.Dir()
	if err != nil {
		return "", nil, err
	}
	// One version is read at a time.
	c, err := reader.Attach(dir, reader.Options{ViewsMax: 1})
	// Before the first table is published, the directory does not exist.
	if rhumb.KindOf(err) == rhumb.NotFound {
		return "", nil, rhumb.E(opSnapshot, rhumb.NotFound, "this node publishes no table; create one with `rhumb table create NAME --snapshot`")
	}
	if err != nil {
		return "", nil, err
	}
	defer c.Close()
	// A locked version stays readable while the publisher commits newer ones.
	v, err := c.Lock()
	if err != nil {
		return "", nil, err
	}
	defer v.Unlock()
	return f(&shownImage{dir, header, c, v}, r)
}

// writeAnswer writes a body, or an error as JSON.
func writeAnswer(w http.ResponseWriter, contentType string, body []byte, err error) {
	if err != nil {
		kind := rhumb.KindOf(err)
		// Several kinds share the status.
		if a, ok := w.(*answered); ok {
			a.kind = kind
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(statusOf(kind))
		// Text always encodes, and a failed write means that the client has gone.
		body, _ = json.Marshal(map[string]any{"error": map[string]string{"kind": kind.String(), "message": rhumb.Message(err)}})
		_, _ = w.Write(append(body, '\n'))
		return
	}
	// Exactly one newline at the end, for people at a terminal.
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(append(bytes.TrimRight(body, "\n"), '\n')) // the client has gone if this fails
}

// statusOf returns the HTTP status of a kind of error. Errors that a retry may resolve are 503.
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

// snapshotTable is a table in the answer of /v1/snapshot/.
type snapshotTable struct {
	Name          string `json:"name"`
	Keys          string `json:"keys"`
	Spatial       bool   `json:"spatial"`
	Ordered       bool   `json:"ordered"`
	Summed        bool   `json:"summed"`
	LocationField string `json:"location_field,omitempty"`
}

// listTables answers with the version, its age and the tables.
func (s *shownImage) listTables(*http.Request) (string, []byte, error) {
	doc := struct {
		Image      string          `json:"image"`
		Version    uint64          `json:"version"`
		AgeSeconds *float64        `json:"age_seconds"`
		Tables     []snapshotTable `json:"tables"`
	}{Image: s.client.Stats().Image.String(), Version: s.view.Version()}
	// The age is unknown once the image has forgotten the commit of the version; null differs from age
	// 0.
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

// encodeJSON encodes an answer.
func encodeJSON(doc any) (string, []byte, error) {
	body, err := json.Marshal(doc)
	return "application/json", body, rhumb.Wrap(opSnapshot, err)
}

// asGeoJSON reports whether the request asks for GeoJSON.
func asGeoJSON(r *http.Request) (bool, error) {
	switch f := r.URL.Query().Get("format"); f {
	case "", "json":
		return false, nil
	case "geojson":
		return true, nil
	default:
		return false, rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "format=%q is unknown; use json or geojson", f)
	}
}

// getRecord answers with one record.
func (s *shownImage) getRecord(r *http.Request) (string, []byte, error) {
	geo, err := asGeoJSON(r)
	if err != nil {
		return "", nil, err
	}
	t, err := s.view.Table(r.PathValue("table"))
	if err != nil {
		return "", nil, err
	}
	it, err := inspect.Get(t, r.PathValue("key"))
	// The version shows whether the record may be newer than the image.
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

// bounded is a buffer that rejects writes beyond snapshotAnswerMax.
type bounded struct{ bytes.Buffer }

// Write appends p, or returns an error if the answer would become too large.
func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > snapshotAnswerMax {
		return 0, rhumb.Ef(opSnapshot, rhumb.TooLarge, "the answer has more than %d bytes; use a lower limit", snapshotAnswerMax)
	}
	return b.Buffer.Write(p)
}

// writeGeoJSON encodes items as a GeoJSON collection.
func writeGeoJSON(t *reader.Table, items func(yield func(reader.Item, error) bool)) (string, []byte, error) {
	var b bounded
	_, err := t.WriteGeoJSON(&b, items)
	return "application/geo+json", b.Bytes(), err
}

// queryTable answers with the records of a table that intersect a box, are within a radius of a
// point or nearest to it, or have a prefix.
func (s *shownImage) queryTable(r *http.Request) (string, []byte, error) {
	p := r.URL.Query()
	// Unknown parameters are errors: a misspelled one would silently return everything.
	for name := range p {
		switch name {
		case "bbox", "radius", "nearest", "prefix", "limit", "format":
		default:
			return "", nil, rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "parameter %q is unknown; use bbox, radius, nearest, prefix, limit or format", name)
		}
	}
	geo, err := asGeoJSON(r)
	if err != nil {
		return "", nil, err
	}
	limit := snapshotLimitDefault
	if text := p.Get("limit"); text != "" {
		// Bounded, since the answer is built in memory.
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > snapshotLimitMax {
			return "", nil, rhumb.Ef(opSnapshot, rhumb.InvalidArgument, "limit=%q is not a number from 1 to %d", text, snapshotLimitMax)
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
	// A header, because a GeoJSON answer has no field for the regions.
	if len(lacks) > 0 {
		s.header.Set(lacksHeader, strings.Join(lacks, ", "))
	}
	// more is set only after taken has been consumed.
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
	// Counted before encoding, so that an answer that is too large is rejected before it is built.
	size := 0
	for it, err := range taken {
		if err != nil {
			return "", nil, err
		}
		if size += len(it.Value); size > snapshotAnswerMax {
			return "", nil, rhumb.Ef(opSnapshot, rhumb.TooLarge, "the records have more than %d bytes; use a lower limit", snapshotAnswerMax)
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
