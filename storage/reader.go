package storage

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// Reader looks up keys with one iterator, which costs less than one for each key, and least in ascending order of keys. It sees the
// store as of its creation: a caller that reads at a commit timestamp takes the timestamp first. A Reader keeps old files of the store
// alive, so it must be closed soon. One goroutine uses it.
type Reader struct {
	s  *Store
	it *pebble.Iterator
	// key is a buffer for physical keys: the iterator copies the bytes that it keeps.
	key []byte
}

// NewReader returns a reader of the present content of the store. What batches apply later it does not see, so it serves reads at the
// commit positions that were published before.
func (s *Store) NewReader() (*Reader, error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return nil, s.dbError("storage.Store.NewReader", err)
	}
	return &Reader{s: s, it: it}, nil
}

// Close releases the reader.
func (r *Reader) Close() error { return r.s.dbError("storage.Reader.Close", r.it.Close()) }

// Lookup is Store.Lookup with the iterator of the reader. It returns Unavailable for a timestamp below the collection floor of the
// present, although the reader may still see the versions: it need not know when the floor was raised.
//
// The memory of the value is the caller's, as that of Store.Lookup is.
func (r *Reader) Lookup(key rhumb.Key, at rhumb.Timestamp) (f Found, err error) {
	r.key = keys.AppendVersionAt(keys.AppendDataPrefix(r.key[:0], key), at)
	return r.s.lookupWith(r.it, r.key, key.Home, at)
}

// lookupWith is Lookup with an iterator and the physical key of the read.
func (s *Store) lookupWith(it *pebble.Iterator, k []byte, home rhumb.RangeID, at rhumb.Timestamp) (f Found, err error) {
	const op rhumb.Op = "storage.Store.Lookup"
	// Versions sort newest first, so the first key at or after (name, timestamp) is the newest
	// version at or before the timestamp. The prefix lets Pebble skip tables by their bloom
	// filters.
	if !it.SeekPrefixGE(k) {
		if err := it.Error(); err != nil {
			return f, s.dbError(op, err)
		}
		return f, s.checkFloor(op, home, at)
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return f, s.dbError(op, err)
	}
	// The value is valid only until the iterator moves, so it is copied.
	f.Version, _ = keys.VersionOf(it.Key())
	if rhumb.IsTombstone(v) {
		f.Tombstone = true
	} else {
		f.Value = append(make([]byte, 0, len(v)), v...)
	}
	return f, s.checkFloor(op, home, at)
}
