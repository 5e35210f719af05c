package inspect

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestVerifyWhole guards that nothing is found in images that are whole: live and stopped, rolled, with commits that were
// given up, and opened again.
func TestVerifyWhole(t *testing.T) {
	for seed := range uint64(2) {
		w := newWorld(t, seed)
		for round := range 30 {
			w.commit(1+w.rng.IntN(400), 50<<(round/5))
			if round%7 == 0 {
				wantClean(t, w.dir)
			}
			if round%10 == 9 {
				check(t, w.p.Close())
				wantClean(t, w.dir)
				w.open()
			}
		}
		if r := wantClean(t, w.dir); r.Records == 0 || r.Tables != 4 || r.Files != 6 {
			t.Errorf("%+v", r)
		}
	}
}

// TestVerifyNothing guards what is said of what is no image.
func TestVerifyNothing(t *testing.T) {
	dir := t.TempDir()
	if _, err := Verify(dir, VerifyOptions{}); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("an empty directory: %v", err)
	}
	check(t, os.WriteFile(filepath.Join(dir, "root"), make([]byte, format.RootSize), 0o600))
	if r, err := Verify(dir, VerifyOptions{}); err != nil || len(r.Faults) != 1 || r.Faults[0].File != "root" {
		t.Errorf("a root of zeros: %+v, %v", r, err)
	}
}

// TestVerifyTruncated guards that a file that is cut short is named.
func TestVerifyTruncated(t *testing.T) {
	w := newWorld(t, 3)
	w.commit(200, 100)
	w.commit(200, 100)
	check(t, w.p.Close())
	files, err := filepath.Glob(filepath.Join(w.dir, "seg.*"))
	check(t, err)
	check(t, os.Truncate(files[0], 9000))
	r, err := Verify(w.dir, VerifyOptions{})
	if err != nil || len(r.Faults) == 0 || r.Faults[0].File != filepath.Base(files[0]) {
		t.Errorf("%+v, %v", r, err)
	}
}
