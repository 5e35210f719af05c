package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestManual guards that each command has a page that a reader of manuals takes without a warning,
// and that the same program writes the same pages.
func TestManual(t *testing.T) {
	dir, again := t.TempDir(), t.TempDir()
	var doc manDoc
	okJSON(t, &doc, "man", "--dir", dir)
	ok(t, "man", "--dir", again)
	want := 0
	eachCommand(newApp(streams{}).rootCommand(), func(c *cobra.Command) {
		want++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		page, err := os.ReadFile(filepath.Join(dir, name))
		same, err2 := os.ReadFile(filepath.Join(again, name))
		if err := errors.Join(err, err2); err != nil {
			t.Error(err)
			return
		}
		text := string(page)
		if text != string(same) {
			t.Errorf("%s differs between two runs", name)
		}
		for _, part := range []string{".TH \"", ".SH NAME\n", ".SH SYNOPSIS\n", ".SH OPTIONS\n.TP\n"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s lacks %q", name, part)
			}
		}
	})
	if doc.Pages != want {
		t.Errorf("%d pages for %d commands", doc.Pages, want)
	}
	lint, err := exec.LookPath("mandoc")
	if err != nil {
		t.Skip("needs mandoc: install the Debian package mandoc")
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	must(err)
	if out, err := exec.Command(lint, append([]string{"-T", "lint", "-W", "warning"}, pages...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("mandoc: %v\n%.2000s", err, out)
	}
}
