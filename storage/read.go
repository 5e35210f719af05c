package storage

import (
	"iter"

	"github.com/rhumbdb/rhumb"
)

// Newest, as the timestamp of a read, sees every version that was applied, committed or not.
const Newest rhumb.Timestamp = 1<<64 - 1

// Found is what a store holds of a key at a timestamp.
type Found struct {
	// Value is in stored form; nil for a tombstone.
	Value []byte
	// Version is zero when there is no version at or below the timestamp.
	Version rhumb.Version
	// Tombstone is true when the newest version says that the key was deleted.
	Tombstone bool
}

// Get reads the newest version of a key at or below a timestamp. A key that has none, or a tombstone, is NotFound. A
// timestamp below what collection has removed is Unavailable: read again at a newer one.
func (s *Store) Get(key rhumb.Key, at rhumb.Timestamp) (value []byte, v rhumb.Version, err error) {
	panic("not written yet")
}

// Lookup is Get for those who tell a tombstone from a key that never was; neither is an error.
func (s *Store) Lookup(key rhumb.Key, at rhumb.Timestamp) (Found, error) { panic("not written yet") }

// Scan reads the records of one table and home whose names begin with prefix and come after the name after, in the
// order of names, as they were at a timestamp. A nil after begins at the first; a limit of 0 is none. The items' memory
// is the caller's. The sequence ends with the first error.
func (s *Store) Scan(home rhumb.RangeID, table rhumb.TableID, prefix, after []byte, at rhumb.Timestamp, limit int) iter.Seq2[rhumb.Item, error] {
	panic("not written yet")
}
