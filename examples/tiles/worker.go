package main

import (
	"context"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// work serves tiles until standard input ends.
func work(ctx context.Context, cfg config, w io.Writer) error {
	image, err := reader.Attach(cfg.image, reader.Options{})
	if err != nil {
		return err
	}
	defer image.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: tiles(image), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the front end has gone, however it went
		_ = server.Close()
	}()
	fmt.Fprintf(w, "http://%s\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// tiles serves /tiles/Z/X/Y.png, and /tiles/TABLE/Z/X/Y.geojson for programs that draw themselves.
func tiles(image *reader.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tiles/{z}/{x}/{y}", func(w http.ResponseWriter, r *http.Request) {
		t, err := parseTile(r, ".png")
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		serveView(w, image, func(v reader.View) error { return servePNG(w, v, t) })
	})
	mux.HandleFunc("GET /tiles/{table}/{z}/{x}/{y}", func(w http.ResponseWriter, r *http.Request) {
		t, err := parseTile(r, ".geojson")
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		serveView(w, image, func(v reader.View) error { return serveGeoJSON(w, v, r.PathValue("table"), t) })
	})
	return mux
}

func parseTile(r *http.Request, suffix string) (t tile, err error) {
	y, ok := strings.CutSuffix(r.PathValue("y"), suffix)
	z, errZ := strconv.Atoi(r.PathValue("z"))
	x, errX := strconv.Atoi(r.PathValue("x"))
	n, errY := strconv.Atoi(y)
	if err := errors.Join(errZ, errX, errY); err != nil {
		return t, err
	}
	if !ok || z < 0 || z > zoomMax || min(x, n) < 0 || max(x, n) >= 1<<z {
		return t, fmt.Errorf("no such tile: want Z/X/Y%s with Z from 0 to %d", suffix, zoomMax)
	}
	return tile{z: z, x: x, y: n}, nil
}

// serveView answers a whole request from one view: all layers of a tile are of one moment.
func serveView(w http.ResponseWriter, image *reader.Client, answer func(v reader.View) error) {
	v, err := image.Lock()
	if err == nil {
		defer v.Unlock()
		w.Header().Set("Rhumb-Version", strconv.FormatUint(v.Version(), 10))
		w.Header().Set("Cache-Control", "no-store")
		err = answer(v)
	}
	switch {
	case rhumb.KindOf(err) == rhumb.NotFound:
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func servePNG(w http.ResponseWriter, v reader.View, t tile) error {
	c := newCanvas(t)
	for _, l := range layers {
		table, err := v.Table(l.table)
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
	return (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(w, c.img)
}

func serveGeoJSON(w http.ResponseWriter, v reader.View, name string, t tile) error {
	table, err := v.Table(name)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/geo+json")
	_, err = table.WriteGeoJSON(w, table.BBox(t.box(0)))
	return err
}
