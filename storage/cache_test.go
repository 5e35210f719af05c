package storage

import (
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestCacheBesideMemtables guards that blocks are cached although the memtables are larger than the
// block cache. Pebble takes the memory of memtables out of the cache, and would read every block
// from disk.
func TestCacheBesideMemtables(t *testing.T) {
	const cache, memtable = 1 << 20, 2 << 20
	s, err := Open(Config{Dir: t.TempDir(), CacheBytes: cache, MemTableBytes: memtable})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f := newFeed(t, s, 1)
	for range 6 { // memtables begin small and double in size, so the last one has the full size
		for range 20 {
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
	// A compaction that ends during the scans removes the blocks of its inputs from the cache. The
	// blocks that are read after the last compaction stay.
	got := int64(0)
	for end := time.Now().Add(10 * time.Second); got < cache/2 && time.Now().Before(end); got = s.db.Metrics().BlockCache.Size {
		for item, err := range s.Scan(f.id, 1, nil, nil, Newest, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if len(item.Value) != 1_000 {
				t.Fatalf("a value has %d bytes, want 1000", len(item.Value))
			}
		}
	}
	if _, err := s.Lookup(rhumb.Key{Table: 1, Home: f.id, Name: []byte("key000001")}, Newest); err != nil {
		t.Fatal(err)
	}
	if got < cache/2 {
		t.Fatalf("%d bytes of blocks are cached, of %d", got, int64(cache))
	}
}
