package storage

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/zeebo/xxh3"

	"github.com/rhumbdb/rhumb"
)

// Bounds of the records that a store keeps in memory.
const (
	// rowsBytesDefault bounds the memory of all rows of a store.
	rowsBytesDefault = 32 << 20
	// rowShards is the number of parts of a row cache, each with a lock of its own. It is a power of two.
	rowShards = 64
	// rowOverhead approximates the memory of a row besides its key and value.
	rowOverhead = 160
	// rowShareMax bounds one row, as a share of its shard: large values would leave few others.
	rowShareMax = 8
)

// rowCache keeps the newest version of records that were read, so that a read of a popular record need not seek in the database
// (docs/decisions/0081-rows-in-memory.md).
//
// A row answers every read at or after its version. It may do so because it is the newest version that the store has, committed or
// not, which two rules ensure:
//
//   - A batch that writes or undoes a version removes the row of its key after the database has the batch, and before
//     anybody learns of a commit position in it. Until then the row is still the newest version for every timestamp that a
//     read may have.
//   - A read adds a row only if nothing was removed from the shard since before the read opened its iterator. Otherwise a slow read would bring
//     back what a batch has just replaced.
//
// Deletions and absent records have no rows: collection removes tombstones, and nothing that is collected may have a row.
//
// A full shard drops rows that were not read since the hand passed them last (SIEVE: Zhang et al., NSDI 2024). A row that is
// read once leaves soon, and a read moves nothing in a list.
type rowCache struct {
	// shardMax is the bound of the bytes of a shard; 0 turns the cache off.
	shardMax int64
	// used is set by the first read. A store that nobody reads from removes nothing.
	used   atomic.Bool
	shards [rowShards]rowShard

	hits, misses, evictions prometheus.Counter
}

// rowShard is the part of a row cache with one share of the hashes.
type rowShard struct {
	mu   sync.Mutex // guards all below
	rows map[uint64]*row
	// newest is the last row that was added. Rows form a list from there to the oldest, and hand is where the search
	// for a row to drop continues towards newest; nil means at the oldest.
	newest, oldest, hand *row
	bytes                int64
	// removals counts the removals of keys, whether they had a row or not.
	removals uint64
	_        [64]byte // keeps the locks of two shards in different cache lines
}

// row is the newest version of one record. Its key and value are never changed.
type row struct {
	hash         uint64
	key          string
	value        []byte
	version      rhumb.Version
	read         bool // since the hand passed
	newer, older *row
}

func (r *row) size() int64 { return int64(len(r.key)+len(r.value)) + rowOverhead }

// rowMiss is what a read that found no row needs to add one.
type rowMiss struct {
	hash     uint64
	removals uint64
}

// rowHash returns the hash of a key without its version.
func rowHash(prefix []byte) uint64 { return xxh3.Hash(prefix) }

// shardOf returns the shard of a hash. The map of the shard uses the low bits.
func (c *rowCache) shardOf(hash uint64) *rowShard { return &c.shards[hash>>58] }

// get returns the row of a key if it answers a read at a timestamp. Otherwise the caller opens its
// iterator after the call, and may add what it finds. A lookup for a write (forRead is false) adds
// nothing, does not count, and makes no row more popular.
func (c *rowCache) get(prefix []byte, at rhumb.Timestamp, forRead bool) (f Found, miss rowMiss, ok bool) {
	if c.shardMax == 0 || !forRead && !c.used.Load() {
		return f, miss, false
	}
	if !c.used.Load() {
		c.used.Store(true)
	}
	miss.hash = rowHash(prefix)
	s := c.shardOf(miss.hash)
	s.mu.Lock()
	r := s.rows[miss.hash]
	// Two keys may have one hash.
	if ok = r != nil && r.version.HLC <= at && r.key == string(prefix); ok {
		r.read = r.read || forRead
		f.Value, f.Version = r.value, r.version
	}
	miss.removals = s.removals
	s.mu.Unlock()
	switch {
	case !forRead:
	case ok:
		c.hits.Inc()
	default:
		c.misses.Inc()
	}
	return f, miss, ok
}

// add adds the newest version of a key, which was read after the call of get that returned miss. The value must not be changed
// afterwards.
func (c *rowCache) add(prefix []byte, f Found, miss rowMiss) {
	r := &row{hash: miss.hash, value: f.Value, version: f.Version}
	if c.shardMax == 0 || r.size()+int64(len(prefix)) > c.shardMax/rowShareMax {
		return
	}
	s := c.shardOf(r.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removals != miss.removals {
		return
	}
	if old := s.rows[r.hash]; old != nil {
		s.drop(old)
	}
	r.key = string(prefix)
	if s.rows == nil {
		s.rows = make(map[uint64]*row)
	}
	s.rows[r.hash] = r
	s.bytes += r.size()
	if r.older = s.newest; r.older != nil {
		r.older.newer = r
	} else {
		s.oldest = r
	}
	s.newest = r
	for s.bytes > c.shardMax {
		s.drop(s.leastWanted())
		c.evictions.Inc()
	}
}

// leastWanted returns the next row that was not read since the hand passed it. There is at least one row.
func (s *rowShard) leastWanted() *row {
	r := s.hand
	for {
		if r == nil {
			r = s.oldest
		}
		if !r.read {
			return r
		}
		r.read = false
		r = r.newer
		s.hand = r
	}
}

// drop removes a row of the shard.
func (s *rowShard) drop(r *row) {
	delete(s.rows, r.hash)
	s.bytes -= r.size()
	if s.hand == r {
		s.hand = r.newer
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		s.newest = r.older
	}
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		s.oldest = r.newer
	}
}

// remove removes the rows of keys that a batch has changed in the database.
func (c *rowCache) remove(hashes []uint64) {
	// A read that begins after this look sees the batch: it sets used before it opens its iterator.
	if !c.used.Load() {
		return
	}
	for _, hash := range hashes {
		s := c.shardOf(hash)
		s.mu.Lock()
		s.removals++
		if r := s.rows[hash]; r != nil {
			s.drop(r)
		}
		s.mu.Unlock()
	}
}

// clear removes all rows. It is for changes of ranges as a whole, which are rare.
func (c *rowCache) clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.removals++
		s.rows, s.newest, s.oldest, s.hand, s.bytes = nil, nil, nil, nil, 0
		s.mu.Unlock()
	}
}

// usage returns the memory of the rows, in bytes, and their number.
func (c *rowCache) usage() (bytes int64, rows int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		bytes += s.bytes
		rows += len(s.rows)
		s.mu.Unlock()
	}
	return bytes, rows
}
