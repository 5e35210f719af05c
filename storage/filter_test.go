package storage

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/rhumbdb/rhumb"
)

// TestAbsentNamesReadNoBlock guards that lookups of names that do not exist end at the filters of the
// last level, which has most of the records: those of creations, and the search for older versions
// of names that are new.
func TestAbsentNamesReadNoBlock(t *testing.T) {
	const names = 500
	s, err := Open(Config{Dir: "filters", FS: vfs.NewMem(), DiskFree: func(string) (uint64, uint64, error) { return 1, 1, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	l := newNameLog(t, s)
	numbered := func(format string) (all []string) {
		for n := range names {
			all = append(all, fmt.Sprintf(format, n))
		}
		return all
	}
	l.write(t, []byte{0x11}, numbered("there-%d")...)
	if err := s.Compact(l.id); err != nil {
		t.Fatal(err)
	}
	levels := s.db.Metrics().Levels
	if n := levels[len(levels)-1].TablesCount; n == 0 {
		t.Fatal("the last level has no table")
	}
	for _, tt := range []struct {
		name string
		do   func(name string) error
	}{
		{"Exists", func(name string) error {
			found, err := s.Exists(l.id, []rhumb.Key{l.key(name)}, l.hlc)
			if err == nil && found[0] {
				err = errors.New(name + " exists")
			}
			return err
		}},
		{"LookupForWrite", func(name string) error {
			found, err := s.LookupForWrite(l.key(name), Newest, true)
			if err == nil && !found.Version.IsZero() {
				err = errors.New(name + " has a version")
			}
			return err
		}},
	} {
		before := s.db.Metrics().Filter.Hits
		for n := range names {
			if err := tt.do(fmt.Sprintf("absent-%d", n)); err != nil {
				t.Fatal(err)
			}
		}
		// One probe in a hundred is a false positive.
		if hits := s.db.Metrics().Filter.Hits - before; hits < names*9/10 {
			t.Errorf("%s: the filters ended %d of %d lookups", tt.name, hits, names)
		}
	}

	l.write(t, []byte{0x11}, numbered("new-%d")...)
	l.write(t, []byte{0x11}, "last") // the record at the trim position stays
	b := s.NewBatch()
	b.Trim(l.id, l.pos.Seq)
	if err := errors.Join(b.Apply(), b.Sync()); err != nil {
		t.Fatal(err)
	}
	before := s.db.Metrics().Filter.Hits
	done, err := s.Collect(l.id, CollectLimits{Before: Newest})
	if err != nil || done.Entries != 2 || done.Versions != 0 {
		t.Fatal(done, err)
	}
	if hits := s.db.Metrics().Filter.Hits - before; hits < names*9/10 {
		t.Errorf("Collect: the filters ended %d of %d searches", hits, names)
	}
}
