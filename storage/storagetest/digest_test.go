package storagetest_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// digest returns the digest of a range as of a position of its model.
func digest(t *testing.T, s *storage.Store, l *storagetest.Log, seq rhumb.Seq) *storage.Digest {
	t.Helper()
	d, err := s.Digest(context.Background(), l.ID, l.At(seq), nil)
	if err != nil {
		t.Fatalf("digest as of %d: %v", seq, err)
	}
	return d
}

// TestDigestOfReplicas: two stores that applied the same log have equal digests although one is flushed, compacted
// and collected at other moments, has undone entries and holds more of the log. At another position, or with
// one byte changed, the digests differ.
func TestDigestOfReplicas(t *testing.T) {
	a, b := storagetest.NewWorld(t, 1).Start(), storagetest.NewWorld(t, 2).Start()
	la, lb := a.Create(storagetest.R), b.Create(storagetest.R)
	for i := range 50 {
		p := storagetest.Put(fmt.Sprintf("key%02d", i%13), fmt.Sprint("value", i))
		if i%7 == 6 {
			p = storagetest.Del(fmt.Sprintf("key%02d", i%13))
		}
		a.Append(la, p)
		if i == 30 {
			// Entries that are undone leave nothing behind.
			undone := lb.Clone()
			b.Append(undone, storagetest.Put("undone", "x"))
			b.Batch(func(batch *storage.Batch) { batch.Undo(lb.ID, rhumb.Seq(len(lb.Entries))) })
			if err := b.Store.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		b.Append(lb, p)
	}
	const at = 45
	want := digest(t, a.Store, la, at)
	if got := digest(t, b.Store, lb, at); got.String() != want.String() || want.Records() == 0 {
		t.Fatalf("digests of equal replicas: %+v and %+v", got, want)
	}
	// Collection at one of them.
	lb.Commit, lb.Trim = 50, at-1
	b.Batch(func(batch *storage.Batch) {
		batch.SetCommit(lb.ID, lb.CommitPos())
		batch.Trim(lb.ID, lb.Trim)
	})
	b.Collect(lb, storage.CollectLimits{Before: storage.Newest})
	if got := digest(t, b.Store, lb, at); got.String() != want.String() {
		t.Errorf("after a collection: %+v, want %+v", got, want)
	}
	b.Restart()
	if got := digest(t, b.Store, lb, at); got.String() != want.String() {
		t.Errorf("after a restart: %+v, want %+v", got, want)
	}
	if got := digest(t, a.Store, la, at-1); got.String() == want.String() {
		t.Error("the digest does not depend on the timestamp")
	}
	// Below what is collected nothing can be said.
	if _, err := a.Store.Digest(context.Background(), rhumb.RangeID{Region: 7, Slot: 7}, 1, nil); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("a range that is not here: %v", err)
	}
}

// TestPlantedDifference: a value that is changed with right checksums passes rhumb's own check of the files,
// and changes the digest.
func TestPlantedDifference(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	open := func() *storage.Store {
		s, err := storage.Open(storage.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	l := &storagetest.Log{ID: storagetest.R}
	s := open()
	b := s.NewBatch()
	b.CreateRange(storage.RangeState{Range: l.ID})
	for i := range 5 {
		b.Append(l.ID, l.Add(1, 1, storagetest.Put(fmt.Sprint("key", i), "value")), l.CommitPos())
	}
	for _, step := range []func() error{b.Apply, b.Sync} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	want := digest(t, s, l, 5).String()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	changed := 0
	n, err := storagetest.Plant(dir, func(_, value []byte) []byte {
		if changed++; changed != 3 {
			return nil
		}
		value[len(value)-1] ^= 1
		return value
	})
	if err != nil || n != 1 {
		t.Fatalf("planted %d: %v", n, err)
	}
	s = open()
	defer func() { _ = s.Close() }()
	if d := s.Damage(); len(d) > 0 {
		t.Errorf("checksums show the difference: %v", d)
	}
	if got := digest(t, s, l, 5).String(); got == want {
		t.Error("the digest does not show the difference")
	}
}
