// Package notebook_test runs the Python example over an image that Go publishes.
package notebook_test

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const needed = "import rhumb_snapshot, matplotlib"

// python returns an interpreter with the packages of the example: the one named by RHUMB_PYTHON, or
// python3. It creates a new virtual environment only if RHUMB_PYTHON is "venv", because pip
// downloads about 100 MB for it.
func python(ctx context.Context, t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("RHUMB_PYTHON"), "python3"} {
		if name != "" && name != "venv" && exec.CommandContext(ctx, name, "-c", needed).Run() == nil {
			return name
		}
	}
	if os.Getenv("RHUMB_PYTHON") != "venv" {
		t.Skip("no Python with rhumb_snapshot and matplotlib; RHUMB_PYTHON=venv makes an environment with them")
	}
	dir := t.TempDir()
	venv := filepath.Join(dir, "bin", "python")
	source, err := filepath.Abs("../../snapshot/reader/python")
	check(t, err)
	// Build a copy, because the build writes into the source directory.
	build := filepath.Join(dir, "reader")
	check(t, os.CopyFS(filepath.Join(build, "python"), os.DirFS(source)))
	check(t, os.RemoveAll(filepath.Join(build, "python/build"))) // of an earlier one, with other sources perhaps
	check(t, os.CopyFS(filepath.Join(build, "c"), os.DirFS(filepath.Join(source, "../c"))))
	for _, args := range [][]string{
		{"python3", "-m", "venv", dir},
		{venv, "-m", "pip", "install", "--quiet", "numpy", "matplotlib"},
		{venv, "-m", "pip", "install", "--quiet", filepath.Join(build, "python")},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no Python with rhumb_snapshot and matplotlib: %v: %v: %.300s", args, err, out)
		}
	}
	return venv
}

func TestFlights(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	interpreter := python(ctx, t)
	dir := t.TempDir()
	pub, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	defer func() { check(t, pub.Close()) }()
	table, err := pub.Table(snapshot.TableSpec{ID: 1, Name: "flights", KeyKind: format.KeyName, Spatial: true, Shards: 2, LocationField: "location"})
	check(t, err)
	const flights = 200
	c := pub.Begin()
	for i := range flights {
		p := rhumb.Point{Lat: float64(i%100) - 50, Lon: float64(i*7%300) - 150}
		rec, err := rhumb.NewRecord(
			rhumb.Field{Name: "alt_ft", Value: rhumb.Float64Field(float64(i * 200))}, rhumb.Field{Name: "heading", Value: rhumb.Float64Field(90)},
			rhumb.Field{Name: "location", Value: rhumb.PointField(p)},
		)
		check(t, err)
		check(t, c.Put(table, snapshot.Record{
			Key: format.Key{Name: fmt.Appendf(nil, "SWR%d", i)}, Value: rhumb.EncodeRecord(nil, rec), Box: format.MakePoint(p), HasBox: true,
		}))
	}
	_, err = c.Publish(snapshot.CommitInfo{})
	check(t, err)
	picture := filepath.Join(t.TempDir(), "flights.png")
	cmd := exec.CommandContext(ctx, interpreter, "flights.py", dir, picture)
	cmd.Env = append(os.Environ(), "MPLBACKEND=Agg", "MPLCONFIGDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !bytes.Contains(out, fmt.Appendf(nil, "%d flights", flights)) || !bytes.Contains(out, []byte("median 19900 ft")) {
		t.Errorf("it printed %s", out)
	}
	text, err := os.ReadFile(picture)
	check(t, err)
	img, err := png.Decode(bytes.NewReader(text))
	check(t, err)
	if size := img.Bounds().Size(); size.X < 500 || size.Y < 200 {
		t.Errorf("a picture of %v", size)
	}
}
