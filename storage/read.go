package storage

import (
	"bytes"
	"iter"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// Newest, as the timestamp of a read, selects every version that was applied, committed or not.
const Newest rhumb.Timestamp = 1<<64 - 1

// Found is the result of a lookup of a key at a timestamp.
type Found struct {
	// Value is in stored form; nil for a tombstone.
	Value []byte
	// Version is zero if no version is at or before the timestamp.
	Version rhumb.Version
	// Tombstone is set if the newest version says that the record was deleted.
	Tombstone bool
}

// absentOptions is for lookups of names that often do not exist: those of creations, and of older
// versions. Pebble asks the filters of the last level, which has most of the records, only with this
// option, because they save nothing where the record is there.
var absentOptions = pebble.IterOptions{UseL6Filters: true}

// Lookup reads the newest version of a key at or before a timestamp. A tombstone and a key without
// a version are no errors. If the timestamp is below the collection floor, Lookup may fail with
// Unavailable: the caller reads again at a newer one. The value must not be changed: later reads may get the same one.
func (s *Store) Lookup(key rhumb.Key, at rhumb.Timestamp) (f Found, err error) {
	return s.lookup("storage.Store.Lookup", key, at, true, nil)
}

// LookupForWrite is Lookup for a write that depends on the record. It uses a row that is there, and
// adds none: the write would remove it, and the rows that it displaces are wanted by reads. absent
// says that the record is probably absent, because the write wants it to be; the result is the same.
func (s *Store) LookupForWrite(key rhumb.Key, at rhumb.Timestamp, absent bool) (f Found, err error) {
	var options *pebble.IterOptions
	if absent {
		options = &absentOptions
	}
	return s.lookup("storage.Store.LookupForWrite", key, at, false, options)
}

// lookup looks up a record. With add, the record becomes a row, and the metrics of rows count the lookup.
func (s *Store) lookup(op rhumb.Op, key rhumb.Key, at rhumb.Timestamp, add bool, options *pebble.IterOptions) (f Found, err error) {
	// The buffer holds most keys, so that a lookup does not allocate one.
	var buf [128]byte
	prefix := keys.AppendDataPrefix(buf[:0], key)
	// A row is the newest version, which collection never removes, so the floor does not matter.
	f, miss, ok := s.rows.get(prefix, at, add)
	if ok {
		return f, nil
	}
	it, err := s.db.NewIter(options)
	if err != nil {
		return f, s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	if add {
		f, err = s.lookupRow(it, prefix, at, miss)
	} else {
		f, err = s.lookupWith(it, keys.AppendVersionAt(prefix, at))
	}
	if err != nil {
		return f, err
	}
	return f, s.checkFloor(op, key.Home, at)
}

// lookupRow looks up a key without its version, of which there was no row when miss was made, with an iterator that was opened after that. It
// adds a row.
func (s *Store) lookupRow(it *pebble.Iterator, prefix []byte, at rhumb.Timestamp, miss rowMiss) (f Found, err error) {
	// The newest version of all is seldom one that the read must not see, and only that may become a row.
	f, err = s.lookupWith(it, keys.AppendVersionAt(prefix, Newest))
	if err == nil && f.Version.HLC > at {
		return s.lookupWith(it, keys.AppendVersionAt(prefix, at))
	}
	if err == nil && f.Value != nil {
		s.rows.add(prefix, f, miss)
	}
	return f, err
}

// LookupEach is Lookup for several keys with one iterator at most, which costs less than one for each, and least in ascending order of keys. It
// calls do with the result for each index in order, as long as do returns nil.
func (s *Store) LookupEach(wanted []rhumb.Key, order []int, at rhumb.Timestamp, do func(i int, f Found) error) error {
	const op rhumb.Op = "storage.Store.LookupEach"
	// All rows come before the iterator: it must be younger than each miss that adds a row, and is not needed if there is none.
	type result struct {
		f    Found
		miss rowMiss
		// from and to bound the key in prefixes; both are 0 if f is of a row.
		from, to int
	}
	results := make([]result, len(order))
	var prefixes []byte // of the keys without a row
	for n, i := range order {
		r, from, ok := &results[n], len(prefixes), false
		prefixes = keys.AppendDataPrefix(prefixes, wanted[i])
		if r.f, r.miss, ok = s.rows.get(prefixes[from:], at, true); ok {
			prefixes = prefixes[:from]
		} else {
			r.from, r.to = from, len(prefixes)
		}
	}
	var it *pebble.Iterator
	if len(prefixes) > 0 {
		var err error
		if it, err = s.db.NewIter(nil); err != nil {
			return s.dbError(op, err)
		}
		defer func() { _ = it.Close() }()
	}
	var key []byte
	for n, i := range order {
		r := &results[n]
		if r.to > 0 {
			key = append(key[:0], prefixes[r.from:r.to]...)
			var err error
			if r.f, err = s.lookupRow(it, key, at, r.miss); err == nil {
				err = s.checkFloor(op, wanted[i].Home, at)
			}
			if err != nil {
				return err
			}
		}
		if err := do(i, r.f); err != nil {
			return err
		}
	}
	return nil
}

// checkFloor rejects a read at a timestamp below the collection floor. The caller opens its
// iterator first. Collection raises the floor before it removes anything, so a read whose iterator
// missed a version sees the higher floor.
func (s *Store) checkFloor(op rhumb.Op, home rhumb.RangeID, at rhumb.Timestamp) error {
	// The newest version of a record is never collected, apart from tombstones.
	if at == Newest {
		return nil
	}
	rs := s.rangeHolding(home)
	if rs == nil {
		return nil
	}
	if floor := rhumb.Timestamp(rs.floor.Load()); at < floor {
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: home, Msg: "versions as of " + at.String() + " may have been collected; read at " + floor.String() + " or later"}
	}
	return nil
}

// Scan returns the records of one table and range whose names begin with prefix and follow the name
// after, in the order of names, as of a timestamp. A nil after means from the first record; limit 0
// means no limit. The memory of the items is the caller's. The sequence ends with the first error.
func (s *Store) Scan(home rhumb.RangeID, table rhumb.TableID, prefix, after []byte, at rhumb.Timestamp, limit int) iter.Seq2[rhumb.Item, error] {
	const op rhumb.Op = "storage.Store.Scan"
	if rs := s.rangeOf(home); rs != nil {
		if st := rs.copyState(); st.LastSlot > home.Slot {
			return s.scanWide(&st, scanQuery{table, prefix, after, at, limit})
		}
	}
	return func(yield func(rhumb.Item, error) bool) {
		span := scanSpan(home, table, prefix, after)
		// The name after may be beyond the prefix.
		if keys.Compare(span.Lower, span.Upper) >= 0 {
			return
		}
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
		if err != nil {
			yield(rhumb.Item{}, s.dbError(op, err))
			return
		}
		defer func() { _ = it.Close() }()
		if err := s.checkFloor(op, home, at); err != nil {
			yield(rhumb.Item{}, err)
			return
		}
		// One check at the beginning is enough: the iterator keeps its view of the database,
		// whatever is collected during the scan.
		sc := scanner{it: it, home: home, at: at}
		for n := 0; limit <= 0 || n < limit; n++ {
			item, ok, err := sc.next()
			if err != nil {
				yield(rhumb.Item{}, s.dbError(op, err))
				return
			}
			if !ok || !yield(item, nil) {
				return
			}
		}
	}
}

// scanSpan returns the keys of a scan.
func scanSpan(home rhumb.RangeID, table rhumb.TableID, prefix, after []byte) keys.Span {
	span := keys.PrefixSpan(home, table, prefix)
	if after != nil {
		from := keys.AppendDataPrefix(nil, rhumb.Key{Table: table, Home: home, Name: after})
		// All versions of the name after share a prefix, and its successor is the first key after
		// them.
		from = keys.ImmediateSuccessor(nil, from)
		if keys.Compare(span.Lower, from) < 0 {
			span.Lower = from
		}
	}
	return span
}

// scanner iterates over the versions of a span and stops at the newest version of each name at or
// before a timestamp.
type scanner struct {
	it      *pebble.Iterator
	home    rhumb.RangeID
	at      rhumb.Timestamp
	upper   []byte // the end of the span, if the iterator has a later one
	started bool
	ahead   bool // the iterator is already at the next name
	seek    []byte
}

// next returns the next record that exists at the scanner's timestamp; ok is false at the end and
// with an error.
func (sc *scanner) next() (item rhumb.Item, ok bool, err error) {
	item, value, ok, err := sc.nextLazy()
	if ok {
		item.Value = bytes.Clone(value)
	}
	return item, ok, err
}

// nextLazy is next with the value apart, whose memory is the iterator's.
func (sc *scanner) nextLazy() (item rhumb.Item, value []byte, ok bool, err error) {
	for {
		if !sc.nextName() {
			return item, nil, false, sc.it.Error()
		}
		v, found := keys.VersionOf(sc.it.Key())
		// seekOlder has moved on to the next name, which nextName then returns.
		if found && v.HLC > sc.at && !sc.seekOlder() {
			continue
		}
		// A value is loaded only for the version that is returned: skipped versions may have large
		// values.
		value, err := sc.it.ValueAndErr()
		if err != nil {
			return item, nil, false, err
		}
		if rhumb.IsTombstone(value) {
			continue
		}
		table, name, v, err := keys.DecodeData(sc.it.Key())
		if err != nil {
			return item, nil, false, err
		}
		return rhumb.Item{Key: rhumb.Key{Table: table, Home: sc.home, Name: bytes.Clone(name)}, Version: v}, value, true, nil
	}
}

// nextName moves to the newest version of the next name.
func (sc *scanner) nextName() bool {
	ok := false
	switch {
	case !sc.started:
		sc.started = true
		ok = sc.it.First()
	case sc.ahead:
		sc.ahead = false
		ok = sc.it.Valid()
	default:
		// NextPrefix skips the older versions of the current name.
		ok = sc.it.NextPrefix()
	}
	return ok && (sc.upper == nil || keys.Compare(sc.it.Key(), sc.upper) < 0)
}

// seekOlder moves within a name to the newest version at or before the timestamp. It reports false
// if the name has none; the iterator is then at the next name.
func (sc *scanner) seekOlder() bool {
	prefix := keys.Split(sc.it.Key())
	sc.seek = keys.AppendVersionAt(append(sc.seek[:0], sc.it.Key()[:prefix]...), sc.at)
	if sc.it.SeekGE(sc.seek) && bytes.Equal(sc.it.Key()[:keys.Split(sc.it.Key())], sc.seek[:prefix]) {
		return true
	}
	sc.ahead = true
	return false
}
