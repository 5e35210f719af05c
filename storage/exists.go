package storage

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// Exists reports which keys of one range existed at a timestamp, in the order of the keys. Exists opens
// one iterator for all keys and copies no value, so it costs less than as many calls of Lookup. Like
// Lookup it fails with Unavailable if versions of that time may have been collected.
func (s *Store) Exists(id rhumb.RangeID, wanted []rhumb.Key, at rhumb.Timestamp) ([]bool, error) {
	const op rhumb.Op = "storage.Store.Exists"
	it, err := s.db.NewIter(&absentOptions)
	if err != nil {
		return nil, s.dbError(op, err)
	}
	// The iterator is one view of the database for all names, and it is opened before checkFloor
	// reads the floor (see there).
	defer func() { _ = it.Close() }()
	exist := make([]bool, len(wanted))
	var buf [128]byte
	for i, key := range wanted {
		// SeekPrefixGE asks the bloom filters first. Most names do not exist, because callers ask
		// before they insert, so most seeks end there without reading a block.
		if !it.SeekPrefixGE(keys.AppendVersionAt(keys.AppendDataPrefix(buf[:0], key), at)) {
			if err := it.Error(); err != nil {
				return nil, s.dbError(op, err)
			}
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, s.dbError(op, err)
		}
		// The newest version at or before the timestamp decides: versions sort newest first.
		exist[i] = !rhumb.IsTombstone(v)
	}
	return exist, s.checkFloor(op, id, at)
}
