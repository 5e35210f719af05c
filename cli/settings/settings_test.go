package settings

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spf13/pflag"
)

// loadFrom loads the settings of a configuration file with some text.
func loadFrom(t *testing.T, text string) *Settings {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rhumb.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Settings{File: path}
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLists guards that a list means the same in the file and in the environment. `rhumb config
// show` once divided the memory of a node with RHUMB_DIR=a,b as if it had one directory.
func TestLists(t *testing.T) {
	if got := loadFrom(t, "dir: [a, b]\n").List("dir"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("from the file: %q", got)
	}
	if got := loadFrom(t, "").List("dir"); len(got) != 0 {
		t.Errorf("from nowhere: %q", got)
	}
	t.Setenv("RHUMB_DIR", "a,b")
	if got := loadFrom(t, "dir: c\n").List("dir"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("from the environment: %q", got)
	}
}

// TestApply guards that settings do not replace what the command line sets, and that a flag which a
// setting sets counts as set.
func TestApply(t *testing.T) {
	s := loadFrom(t, "dir: [a, b]\ntimeout: 3s\n")
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	dirs := flags.StringSlice("dir", nil, "")
	timeout := flags.Duration("timeout", 0, "")
	if err := flags.Parse([]string{"--timeout", "1s"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(flags); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(*dirs, []string{"a", "b"}) || timeout.String() != "1s" || !flags.Lookup("dir").Changed {
		t.Errorf("dirs %q, timeout %v", *dirs, timeout)
	}
}
