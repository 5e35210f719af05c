package storage

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// Exists reports which keys of one range existed at a timestamp, in the order of names, whose tables are in tables. It
// opens one iterator for all of them and copies no value, so it costs less than as many calls of Lookup. Like Lookup it
// returns an error of kind Unavailable if versions of that time may be collected.
func (s *Store) Exists(home rhumb.RangeID, tables []rhumb.TableID, names [][]byte, at rhumb.Timestamp) ([]bool, error) {
	const op rhumb.Op = "storage.Store.Exists"
	it, err := s.db.NewIter(nil)
	if err != nil {
		return nil, s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	exist := make([]bool, len(names))
	var buf [128]byte
	for i, name := range names {
		key := rhumb.Key{Table: tables[i], Home: home, Name: name}
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
		exist[i] = !rhumb.IsTombstone(v)
	}
	return exist, s.checkFloor(op, home, at)
}
