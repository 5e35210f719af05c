package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tableBytes returns the size of the table files in a directory.
func tableBytes(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".sst") {
			// A table may be deleted while the directory is read.
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDroppedRangeFreesSpace guards that the files of a dropped range disappear, and not only its keys, while another range
// of the store stays readable.
func TestDroppedRangeFreesSpace(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	gone, kept := newFeed(t, s, 1), newFeed(t, s, 2)
	for _, f := range []*feed{gone, gone, gone, gone, kept} {
		for range 10 {
			b := s.NewBatch()
			b.Append(f.id, f.next(100, 1_000), Commit{})
			if err := b.Apply(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	before := tableBytes(t, dir)
	b := s.NewBatch()
	b.DropRange(gone.id)
	if err := b.Apply(); err != nil {
		t.Fatal(err)
	}
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := s.Reclaim(t.Context(), gone.id, gone.id.Slot); err != nil {
		t.Fatal(err)
	}
	// Obsolete files are deleted in the background.
	after := before
	for end := time.Now().Add(10 * time.Second); after > before/3 && time.Now().Before(end); after = tableBytes(t, dir) {
		time.Sleep(10 * time.Millisecond) // polls the directory
	}
	t.Logf("tables have %d bytes, and had %d", after, before)
	if before < 100<<10 || after > before/3 {
		t.Errorf("tables have %d bytes after the drop, and had %d", after, before)
	}
	count := 0
	for _, err := range s.Scan(kept.id, 1, nil, nil, Newest, 0) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count == 0 {
		t.Error("the other range is empty")
	}
}
