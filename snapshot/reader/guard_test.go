package reader_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// TestGuard cuts the files under a locked view: every way of reading ends in an error that names one, also in assembly, and
// the client goes on with what is left.
func TestGuard(t *testing.T) {
	d := newDamaged(t)
	c, err := reader.Attach(d.dir, reader.Options{})
	check(t, err)
	v, err := c.Lock()
	check(t, err)
	numbers, err := v.Table(fmt.Sprint(format.KeyUint64))
	check(t, err)
	keep := errors.New("mine")
	if err := c.Guard(func() error { return keep }); !errors.Is(err, keep) {
		t.Errorf("an error of its own becomes %v", err)
	}
	value, err := numbers.GetUint64(50)
	check(t, err)
	for file := range d.files {
		if file != d.root() {
			check(t, d.files[file].Truncate(0))
		}
	}
	all := func(*reader.Item) bool { return true }
	for name, read := range map[string]func() error{
		"get": func() error { _, err := numbers.GetUint64(50); return err },
		"multiget": func() error {
			_, err := numbers.MultiGetUint64(make([]uint64, 40), make([]reader.Item, 40))
			return err
		},
		"values": func() error {
			_, err := numbers.MultiGetUint64Values(make([]uint64, 40), make([][]byte, 40))
			return err
		},
		"scan": func() error { return numbers.VisitScan(nil, all) },
		"bbox": func() error {
			return numbers.VisitBBox(rhumb.Box{Min: rhumb.Point{Lat: -90, Lon: -180}, Max: rhumb.Point{Lat: 90, Lon: 180}}, all)
		},
		"nearest":  func() error { return numbers.VisitNearest(rhumb.Point{}, 3, all) },
		"value":    func() error { return fmt.Errorf("%x", value.Value) },
		"position": func() error { _, err := v.Position(rhumb.RangeID{Region: 1}); return err },
	} {
		err := c.Guard(read)
		if rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), filepath.Join(d.dir, "seg.")) || !strings.Contains(err.Error(), " at offset ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	v.Unlock()
	check(t, c.Close())
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the fault of a value that is not mapped any more is taken for damage")
			}
		}()
		_ = c.Guard(read(value.Value))
	}()
}

// read returns what touches a value.
func read(p []byte) func() error {
	return func() error { return fmt.Errorf("%x", p) }
}

// BenchmarkGuard is what Guard costs by itself.
func BenchmarkGuard(b *testing.B) {
	c := benchImage(b)
	for b.Loop() {
		if err := c.Guard(func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
