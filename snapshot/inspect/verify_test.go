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

// TestVerifyFlips damages every byte of a stopped image in turn, one bit of each. What Verify does not find must be a byte
// that readers do not look at, or one of the few words that may hold any value.
func TestVerifyFlips(t *testing.T) {
	w := newWorld(t, 7)
	for range 12 {
		w.commit(25, 40)
	}
	check(t, w.p.Close())
	want := wantClean(t, w.dir)
	before := contents(t, w.dir, want.Version)
	files, err := filepath.Glob(filepath.Join(w.dir, "*"))
	check(t, err)
	found, missed := 0, 0
	for _, path := range files {
		name := filepath.Base(path)
		if name == "lock" {
			continue
		}
		content, err := os.ReadFile(path)
		check(t, err)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		check(t, err)
		for _, at := range interesting(name, content, w.rng.IntN) {
			bit := byte(1) << w.rng.IntN(8)
			_, err := f.WriteAt([]byte{content[at] ^ bit}, int64(at))
			check(t, err)
			r, err := Verify(w.dir, VerifyOptions{Deep: true})
			if k := rhumb.KindOf(err); err != nil && k != rhumb.Incompatible && k != rhumb.Unavailable {
				t.Fatalf("%s, byte %d: %v", name, at, err)
			}
			if err != nil || len(r.Faults) > 0 {
				found++
			} else if missed++; !harmless(t, w.dir, name, at, content, before, want.Version) {
				t.Errorf("%s, byte %d, bit %#x: Verify finds nothing, and readers do", name, at, bit)
			}
			_, err = f.WriteAt(content[at:at+1], int64(at))
			check(t, err)
		}
		check(t, f.Close())
	}
	wantClean(t, w.dir)
	t.Logf("%d flips found, %d harmless", found, missed)
	if found < 200 {
		t.Errorf("only %d flips found", found)
	}
}

// interesting lists the bytes to damage: all near which something stands, and some of the others.
func interesting(name string, content []byte, random func(int) int) (out []int) {
	step := 100
	if name == format.RootName {
		step = 25
	}
	for at := random(step); at < len(content); at += 1 + random(2*step) {
		low := at &^ 63
		if !empty(content[low:min(low+64, len(content))]) || random(2000) == 0 {
			out = append(out, at)
		}
	}
	return out
}

// harmless reports whether an image shows what it showed before, or the byte is one of a word that may hold any value.
func harmless(t *testing.T, dir, name string, at int, content []byte, before map[string]string, version uint64) bool {
	if name == format.RootName {
		for _, word := range []int{format.RootTableSeq, format.RootLife, format.RootHeartbeat, format.RootPID, format.RootGeneration} {
			if at >= word && at < word+8 {
				return true
			}
		}
	}
	after := contents(t, dir, version)
	if len(after) != len(before) {
		return false
	}
	for k, v := range before {
		if after[k] != v {
			return false
		}
	}
	return true
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
