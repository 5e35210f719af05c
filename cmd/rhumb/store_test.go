package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/storage"
)

// TestStoreVerify guards that damage is reported with its file, and that an intact store passes.
func TestStoreVerify(t *testing.T) {
	dir := t.TempDir()
	s, err := storage.Open(storage.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := ok(t, "store", "verify", dir, "-o", "json"); !strings.Contains(got, `"faults":[]`) {
		t.Errorf("a whole store: %s", got)
	}
	if got := ok(t, "store", "verify", dir); got != "nothing is damaged\n" {
		t.Errorf("a whole store: %q", got)
	}
	file := filepath.Join(dir, "STORE")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := runIn(t.Context(), "", "store", "verify", dir)
	if code != exit.Failure || !strings.Contains(stdout+stderr, "STORE") {
		t.Errorf("a damaged store: exit %d\n%s%s", code, stdout, stderr)
	}
}
