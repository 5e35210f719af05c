package storage

import (
	"bytes"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// TableSpan names the records of one table with one home in a range.
type TableSpan struct {
	Home  rhumb.RangeID
	Table rhumb.TableID
}

// ClearStepMax bounds the versions that one call of MeasureTable reads.
const ClearStepMax = 8_192

// ClearKeptMax bounds the versions of a dropped table that stay when the others are deleted. Those of the
// last few entries of a log stay always, and an entry has at most rhumb.BatchOpsMax of them.
const ClearKeptMax = 3 * rhumb.BatchOpsMax

// NextTable returns the first table after the given one that has records in a range; the zero TableSpan
// begins. It skips from table to table, so that it costs a few reads per table, however large the tables
// are.
func (s *Store) NextTable(id rhumb.RangeID, after TableSpan) (next TableSpan, ok bool, err error) {
	const op rhumb.Op = "storage.Store.NextTable"
	span := s.spanOf(id)
	from := span.Lower
	if after != (TableSpan{}) {
		from = keys.PrefixSpan(after.Home, after.Table, nil).Upper
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: span.Upper})
	if err != nil {
		return next, false, s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	for ok := it.First(); ok; {
		d, err := keys.Decode(it.Key())
		if err != nil || d.Kind == keys.KindData {
			return TableSpan{d.Home, d.Table}, err == nil, s.dbError(op, err)
		}
		// The log, state and results of the range follow the records of its first slot.
		ok = it.SeekGE(keys.HomeSpan(d.Home).Upper)
	}
	return next, false, s.dbError(op, it.Error())
}

// TableMeasure is what MeasureTable has found so far.
type TableMeasure struct {
	// Settled is the timestamp above which versions have to stay (SettledBefore). The caller sets it.
	Settled rhumb.Timestamp
	// Bytes is the size of the versions that can go, and Kept are the keys of those that have to stay, in
	// ascending order.
	Bytes int64
	Kept  [][]byte
	// after is the last key that was read; nil at the beginning.
	after []byte
}

// MeasureTable adds up to ClearStepMax versions of a table to m. It returns false once all have been read,
// or if more than ClearKeptMax have to stay.
func (s *Store) MeasureTable(t TableSpan, m *TableMeasure) (more bool, err error) {
	const op rhumb.Op = "storage.Store.MeasureTable"
	span := keys.PrefixSpan(t.Home, t.Table, nil)
	if m.after != nil {
		span.Lower = keys.ImmediateSuccessor(nil, m.after)
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return false, s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	for n, ok := 0, it.First(); ok; n, ok = n+1, it.Next() {
		if n == ClearStepMax {
			return true, nil
		}
		m.after = append(m.after[:0], it.Key()...)
		if v, ok := keys.VersionOf(it.Key()); !ok || v.HLC > m.Settled {
			if m.Kept = append(m.Kept, bytes.Clone(it.Key())); len(m.Kept) > ClearKeptMax {
				return false, nil
			}
			continue
		}
		_, name, _, err := keys.DecodeData(it.Key())
		if err != nil {
			return false, s.dbError(op, err)
		}
		// The values may be large, and only their size is of interest.
		value := it.LazyValue()
		m.Bytes += int64(versionWeight(len(name), value.Len()))
	}
	return false, s.dbError(op, it.Error())
}

// SettledBefore returns a timestamp below which no entry of a range's log is needed any more: neither to
// be sent to another replica nor to be undone. It is 0 if there is none.
func (s *Store) SettledBefore(id rhumb.RangeID) rhumb.Timestamp {
	c, ok := s.beginCollection(id)
	if !ok {
		return 0
	}
	defer c.end()
	return c.beforeTrim()
}

// ClearTable removes all versions of a table from a range except those that m keeps. The caller makes
// sure that none was written since the measurement began. It is not synced: after a crash the caller finds
// the table again.
//
// A few range deletions take the place of a deletion per version. They cost a few bytes, and Pebble drops
// whole files that they cover without reading them.
func (s *Store) ClearTable(id rhumb.RangeID, t TableSpan, m *TableMeasure) error {
	const op rhumb.Op = "storage.Store.ClearTable"
	if len(m.Kept) > ClearKeptMax {
		return rhumb.Ef(op, rhumb.TooLarge, "%d versions or more have to stay; the limit is %d", len(m.Kept), ClearKeptMax)
	}
	c, ok := s.beginCollection(id)
	if !ok {
		return nil
	}
	defer c.end()
	span := keys.PrefixSpan(t.Home, t.Table, nil)
	// Keys are in ascending order, so one walk over those that stay finds all gaps.
	lower := span.Lower
	// One deletion before each key that stays, and one after the last.
	for _, kept := range append(slices.Clone(m.Kept), span.Upper) {
		if keys.Compare(lower, kept) < 0 {
			if err := c.b.DeleteRange(lower, kept, nil); err != nil {
				return s.dbError(op, err)
			}
		}
		lower = keys.ImmediateSuccessor(nil, kept)
	}
	c.done.Bytes = m.Bytes
	// Nobody reads a dropped table, so its records only take room.
	defer s.rows.clear()
	return s.dbError(op, c.apply())
}
