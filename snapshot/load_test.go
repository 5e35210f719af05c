package snapshot_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A load keeps its records in recycled files until it knows where they belong, and goes on elsewhere when there are more of
// them than the files hold. It leaves the files to the shards it builds, gives them back when it fails, and one that is
// killed meanwhile leaves nothing that looks like a segment.
func TestLoadStaging(t *testing.T) {
	t.Parallel()
	const few, many = 40_000, 130_000
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir, Recycle: 16})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 4, Spatial: true})
	check(t, err)
	staged := 0 // recycled files with records of the load under way
	load := func(n uint64, round int, end error) error {
		value := fmt.Appendf(make([]byte, 0, 100), "round %d", round)[:100]
		_, err := p.Load(table, func(yield func(snapshot.Record, error) bool) {
			for i := range n {
				box := format.Box{MinX: int32(i), MinY: int32(round), MaxX: int32(i), MaxY: int32(round)}
				if !yield(snapshot.Record{Key: format.Key{Number: i}, Box: box, HasBox: true, Value: value}, nil) {
					return
				}
			}
			staged = stagedFiles(t, dir, value)
			if end != nil {
				yield(snapshot.Record{}, end)
			}
		}, snapshot.CommitInfo{})
		return err
	}
	verify := func(n int, round int) {
		t.Helper()
		img := mustImage(t, dir)
		got := img.tables["t"].all(view{version: img.committed})
		for key, r := range got {
			if !bytes.HasPrefix([]byte(r.value), fmt.Appendf(nil, "round %d", round)) || r.box[1] != int32(round) {
				t.Fatalf("key %x: value %q and box %v in round %d", key, r.value, r.box, round)
			}
		}
		if len(got) != n {
			t.Fatalf("%d records, want %d", len(got), n)
		}
	}
	for round := range 4 {
		check(t, load(few, round, nil))
		verify(few, round)
	}
	before := p.Stats().Bytes
	check(t, load(few, 4, nil))
	if after := p.Stats().Bytes; after != before || staged != 3 {
		t.Errorf("%d recycled files took records, want all but one; %d bytes, before %d", staged, after, before)
	}
	verify(few, 4)
	if err := load(few, 5, os.ErrClosed); err == nil {
		t.Error("the load went well")
	}
	if after := p.Stats().Bytes; after != before {
		t.Errorf("%d bytes after a load that failed, before %d", after, before)
	}
	verify(few, 4)
	check(t, load(many, 6, nil))
	verify(many, 6)
	check(t, load(few, 7, nil))
	verify(few, 7)
}

// stagedFiles counts the recycled files in which a value stands, and checks that none has a magic.
func stagedFiles(t *testing.T, dir string, value []byte) (n int) {
	paths, err := filepath.Glob(filepath.Join(dir, "recycled.*"))
	check(t, err)
	for _, path := range paths {
		mem, err := os.ReadFile(path)
		check(t, err)
		if u64(mem, 0) != 0 {
			t.Errorf("%s has a magic", path)
		}
		if bytes.Contains(mem, value) {
			n++
		}
	}
	return n
}
