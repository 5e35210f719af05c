package main

import (
	"context"
	"errors"
	"fmt"
	"image/png"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// runWorker serves tiles until standard input ends.
func runWorker(ctx context.Context, cfg config, w io.Writer) error {
	image, err := reader.Attach(cfg.image, reader.Options{})
	if err != nil {
		return err
	}
	defer image.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: tileHandler(image), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		// Standard input ends when the front end exits, however that happens.
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	fmt.Fprintf(w, "http://%s\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// tileHandler serves tiles of all layers, or of one table, in the format of the suffix.
func tileHandler(image *reader.Client) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, forms map[string]form) {
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
			suffix := path.Ext(r.PathValue("y"))
			// The suffix is part of the last path element, which patterns of ServeMux cannot split.
			answer, ok := forms[suffix]
			t, err := parseTile(r, suffix)
			switch {
			case !ok:
				http.Error(w, fmt.Sprintf("unknown suffix %q; want one of %q", suffix, slices.Sorted(maps.Keys(forms))), http.StatusNotFound)
			case err != nil:
				http.Error(w, err.Error(), http.StatusNotFound)
			default:
				serveView(w, image, func(v reader.View) error { return answer(w, v, r.PathValue("table"), t) })
			}
		})
	}
	handle("/tiles/{z}/{x}/{y}", map[string]form{".png": servePNG, ".mvt": serveMVT, ".pbf": serveMVT})
	handle("/tiles/{table}/{z}/{x}/{y}", map[string]form{".geojson": serveGeoJSON, ".mvt": serveMVT, ".pbf": serveMVT})
	return mux
}

// form writes a tile of a table, or of all layers if the table is empty.
type form func(w http.ResponseWriter, v reader.View, table string, t tile) error

// parseTile returns the tile of a request.
func parseTile(r *http.Request, suffix string) (t tile, err error) {
	y := strings.TrimSuffix(r.PathValue("y"), suffix)
	z, errZ := strconv.Atoi(r.PathValue("z"))
	x, errX := strconv.Atoi(r.PathValue("x"))
	n, errY := strconv.Atoi(y)
	if errors.Join(errZ, errX, errY) != nil || z < 0 || z > zoomMax || min(x, n) < 0 || max(x, n) >= 1<<z {
		return t, fmt.Errorf("unknown tile; want Z/X/Y%s with Z from 0 to %d", suffix, zoomMax)
	}
	return tile{z: z, x: x, y: n}, nil
}

// serveView answers a request from one view, so that all layers of a tile show the same moment.
func serveView(w http.ResponseWriter, image *reader.Client, answer func(v reader.View) error) {
	v, err := image.Lock()
	if err == nil {
		defer v.Unlock()
		// The version lets a test compare tiles; caching would hide new versions.
		w.Header().Set("Rhumb-Version", strconv.FormatUint(v.Version(), 10))
		w.Header().Set("Cache-Control", "no-store")
		err = answer(v)
	}
	switch {
	case rhumb.KindOf(err) == rhumb.NotFound:
		http.Error(w, rhumb.Message(err), http.StatusNotFound)
	case err != nil:
		http.Error(w, rhumb.Message(err), http.StatusInternalServerError)
	}
}

// servePNG draws a tile of all layers.
func servePNG(w http.ResponseWriter, v reader.View, _ string, t tile) error {
	c := newCanvas(t)
	for _, l := range layers {
		if t.z < l.from {
			continue
		}
		table, err := v.Table(l.table)
		// A table that no node publishes is left out.
		if rhumb.KindOf(err) == rhumb.NotFound {
			continue
		}
		if err == nil {
			err = l.draw(c, &table)
		}
		if err != nil {
			return fmt.Errorf("table %s: %w", l.table, err)
		}
	}
	w.Header().Set("Content-Type", "image/png")
	// A tile is drawn per request and never cached, so speed matters more than size.
	return (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(w, c.img)
}

// serveGeoJSON writes a tile of one table as GeoJSON.
func serveGeoJSON(w http.ResponseWriter, v reader.View, name string, t tile) error {
	table, err := v.Table(name)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/geo+json")
	_, err = table.WriteGeoJSON(w, table.BBox(t.boxWithMargin(0)))
	return err
}
