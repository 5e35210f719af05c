package wan

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestRecord: a recording has what both ends of a connection between two regions say, and nothing of a connection
// within a region.
func TestRecord(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// Answers with what it hears, and a mark.
			b := make([]byte, 4)
			_, _ = io.ReadFull(c, b)
			_, _ = c.Write(append(b, "back"...))
			_ = c.Close()
		}
	}()
	dir := t.TempDir()
	n := New(&File{RoundTrips: map[string]map[string]float64{"a": {"b": 0}}, Addresses: map[string]string{l.Addr().String(): "b"}, Record: dir})
	for _, from := range []string{"a", "b"} {
		c, err := n.Dialer(from)(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("from")); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || string(got) != "fromback" {
			t.Fatalf("%q, %v", got, err)
		}
		_ = c.Close()
	}
	var all []byte
	for _, name := range []string{"a--b", "b--a"} {
		files, _ := filepath.Glob(filepath.Join(dir, name+".*"))
		if len(files) != 1 {
			t.Fatalf("%d files of %s", len(files), name)
		}
		b, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	if !bytes.Equal(all, []byte("fromfromback")) {
		t.Errorf("recorded %q", all)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("%d files: connections within a region are recorded, too", len(files))
	}
}
