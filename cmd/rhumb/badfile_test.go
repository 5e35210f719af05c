package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadErrors guards the words of the file with the error of the disk.
func TestReadErrors(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "\n": 0, "read-errors=0": 0, "read-errors=0.25\n": 0.25, "read-errors=1": 1} {
		if got, err := parseReadErrors(text); err != nil || got != want {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"1", "read-errors", "read-errors=", "read-errors=2", "read-errors=-0.1", "read-errors=NaN", "write-errors=1"} {
		if got, err := parseReadErrors(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

// TestFaultFile guards that a file with a fault is taken once for each change, that a missing file is no fault, and that a file which is wrong at the
// start keeps the node from starting, with the name of its flag.
func TestFaultFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "fault")
	var taken []string
	f := &faultFile{name: name, take: func(text string) error { taken = append(taken, text); return nil }}
	look := func(want ...string) {
		t.Helper()
		if err := f.look(); err != nil || strings.Join(taken, ",") != strings.Join(want, ",") {
			t.Errorf("taken: %q, %v, want %q", taken, err, want)
		}
	}
	look()
	for _, text := range []string{"a", "b"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		look([]string{"a", "b"}[:strings.Index("ab", text)+1]...)
		look([]string{"a", "b"}[:strings.Index("ab", text)+1]...)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	look("a", "b", "")

	if err := os.WriteFile(name, []byte("read-errors=all"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := openBadDisk(t.Context(), name, slog.New(slog.NewTextHandler(&log, nil))); err == nil || !strings.Contains(err.Error(), "--disk-error-file") {
		t.Errorf("a wrong file at the start returns %v", err)
	}
}
