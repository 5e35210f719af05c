package storage

import (
	"iter"

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
// The value must not be changed, as that of Store.Lookup. A Reader adds no rows: its iterator may be older than what was removed since.
// Store.LookupEach adds them.
func (r *Reader) Lookup(key rhumb.Key, at rhumb.Timestamp) (f Found, err error) {
	r.key = keys.AppendDataPrefix(r.key[:0], key)
	if f, _, ok := r.s.rows.get(r.key, at, true); ok {
		return f, nil
	}
	r.key = keys.AppendVersionAt(r.key, at)
	if f, err = r.s.lookupWith(r.it, r.key); err != nil {
		return f, err
	}
	return f, r.s.checkFloor("storage.Reader.Lookup", key.Home, at)
}

// Covers returns Unavailable if versions of a range as of a timestamp may have been collected before the reader was made. If it returns
// nil, ScanSlots may read at the timestamp for as long as the reader lives.
func (r *Reader) Covers(id rhumb.RangeID, at rhumb.Timestamp) error {
	// The floor never falls, so the one of now is no lower than that of the creation.
	return r.s.checkFloor("storage.Reader.Covers", id, at)
}

// ScanSlots returns the records of one table and range as of a timestamp that the reader covers. They are in order within each slot only,
// which spares a range of many slots the seeks of Store.Scan. The memory of the items is the caller's. The sequence ends with the first
// error.
func (r *Reader) ScanSlots(id rhumb.RangeID, table rhumb.TableID, at rhumb.Timestamp) iter.Seq2[rhumb.Item, error] {
	const op rhumb.Op = "storage.Reader.ScanSlots"
	return func(yield func(rhumb.Item, error) bool) {
		last := id.Slot
		if rs := r.s.rangeOf(id); rs != nil {
			st := rs.copyState()
			last = max(last, st.LastSlot)
		}
		walk := slotWalk{it: r.it, at: id, last: last, span: func(home rhumb.RangeID) keys.Span { return keys.PrefixSpan(home, table, nil) }}
		for walk.next() {
			sc := scanner{it: r.it, home: walk.at, at: at, upper: walk.upper, started: true, ahead: true}
			for {
				item, ok, err := sc.next()
				if err != nil {
					yield(rhumb.Item{}, r.s.dbError(op, err))
					return
				}
				if !ok {
					break
				}
				if !yield(item, nil) {
					return
				}
			}
		}
		if err := r.it.Error(); err != nil {
			yield(rhumb.Item{}, r.s.dbError(op, err))
		}
	}
}

// lookupWith returns the first version at or after a physical key, which is the newest one at or before the timestamp in it.
func (s *Store) lookupWith(it *pebble.Iterator, k []byte) (f Found, err error) {
	const op rhumb.Op = "storage.Store.Lookup"
	// Versions sort newest first, so the first key at or after (name, timestamp) is the newest
	// version at or before the timestamp. The prefix lets Pebble skip tables by their bloom
	// filters.
	if !it.SeekPrefixGE(k) {
		return f, s.dbError(op, it.Error())
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
	return f, nil
}
