package storage

import (
	"bytes"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// Bounds of the reads of names.
const (
	// walkNames is about the number of names that a walk over a range asks for, so that its seeks, one for each slot, serve many scans. A
	// walk of twice as many would take nearly twice as long where records are large.
	walkNames = 512
	// A cursor takes nameBatchLeast names first and twice as many each time, up to nameBatchMost: one of many ranges needs one name or two, and
	// one of a single range needs many.
	nameBatchLeast, nameBatchMost = 8, 256
)

// NameQuery selects names of one table in one range.
type NameQuery struct {
	Range rhumb.RangeID
	// Last is the last slot to read. If the range of the store ends before it, Next fails with Unavailable.
	Last  rhumb.Slot
	Table rhumb.TableID
	// Prefix selects the names that begin with it, From those at or after it.
	Prefix, From []byte
	// At is the timestamp of the read. It must not be above the commit position of the range: a name whose deletion may still be undone
	// would be left out.
	At rhumb.Timestamp
}

// NameCursor returns the keys of a query in the order of names. Some of them may have no record at the timestamp: the caller looks
// each up (Reader), and reports those without one (Absent). One goroutine uses a cursor.
//
// The names are taken from memory as far as they are there. A cursor holds no iterator and no lock between two calls, so it may be left at any
// time. A caller that merges the cursors of several ranges may find an error of one of them in the middle: it begins again, with newer
// timestamps.
type NameCursor struct {
	s     *Store
	q     NameQuery
	names []slotName // not returned yet
	buf   []slotName // the memory of names
	next  []byte     // where the names after them begin; nil if there are none
	batch int
	rs    *rangeState // from which names were taken
}

// Names returns a cursor over the names of a query.
func (s *Store) Names(q NameQuery) *NameCursor {
	c := &NameCursor{s: s, q: q, next: q.From, batch: nameBatchLeast}
	if bytes.Compare(c.next, q.Prefix) < 0 {
		c.next = q.Prefix
	}
	// An empty name is a position, and nil the end.
	// (bytes.Compare takes them for equal.)
	if c.next == nil {
		c.next = []byte{}
	}
	return c
}

// Next returns the next key; ok is false at the end and with an error.
func (c *NameCursor) Next() (key rhumb.Key, ok bool, err error) {
	for {
		for len(c.names) > 0 {
			m := c.names[0]
			c.names = c.names[1:]
			if !bytes.HasPrefix(m.name, c.q.Prefix) {
				// Names with the prefix are side by side, and the first name is not below it.
				c.names, c.next = nil, nil
				return key, false, nil
			}
			// The range was merged with the one after it, and the caller does not know that yet.
			if m.slot > c.q.Last {
				continue
			}
			return rhumb.Key{Table: c.q.Table, Home: rhumb.RangeID{Region: c.q.Range.Region, Slot: m.slot}, Name: m.name}, true, nil
		}
		if c.next == nil {
			return key, false, nil
		}
		if err := c.refill(); err != nil {
			return key, false, err
		}
	}
}

// Absent reports that a key that Next returned has no record at the timestamp.
func (c *NameCursor) Absent(key rhumb.Key) { c.s.names.noteAbsent(c.rs, c.q.Table, key.Name) }

// refill takes the next names from memory, or walks over the range.
func (c *NameCursor) refill() error {
	const op rhumb.Op = "storage.NameCursor.Next"
	// Looked up each time: a copy that was installed or dropped meanwhile has another state, with names of its own.
	c.rs = c.s.rangeOf(c.q.Range)
	last := rhumb.Slot(0)
	if c.rs != nil {
		last = max(c.q.Range.Slot, c.rs.copyState().LastSlot)
	}
	if c.rs == nil || last < c.q.Last {
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: c.q.Range, Msg: "the range was split or removed meanwhile; retry"}
	}
	if names, next, ok := c.s.names.read(c.rs, &c.q, last, c.next, c.batch, c.buf[:0]); ok {
		c.names, c.next = names, next
		c.buf, c.batch = names, min(2*c.batch, nameBatchMost)
		return nil
	}
	names, next, err := c.s.addSegment(c.rs, &c.q, last, c.next)
	if err != nil {
		return c.s.dbError(op, err)
	}
	c.names, c.next = names, next
	return nil
}

// addSegment walks over a range from a name on and keeps the names in memory. It returns them like nameCache.read.
//
// It is called for a name that no segment has, or none that a read at this timestamp may use. An error of the walk is that of the
// read, and nothing is kept then: the next scan walks again.
func (s *Store) addSegment(rs *rangeState, q *NameQuery, last rhumb.Slot, from []byte) (names []slotName, next []byte, err error) {
	x := s.names.begin(rs, q.Table, last)
	var g *nameSegment
	defer func() { s.names.finish(rs, x, g) }()
	// Another scan may have walked here while this one waited for it.
	if names, next, ok := s.names.read(rs, q, last, from, walkNames, nil); ok {
		return names, next, nil
	}
	// The walk is done with the index registered, and without the lock of the names: other ranges are read and written meanwhile.
	s.names.walks.Inc()
	if names, next, err = s.walkNames(q, last, from); err != nil {
		return nil, nil, err
	}
	// The caller's names are its own: those of the segment move when others are added.
	g = &nameSegment{from: bytes.Clone(from), to: next, since: q.At, names: slices.Clone(names)}
	if g.from == nil {
		g.from = []byte{}
	}
	return names, next, nil
}

// walkNames reads the next names of each slot of a range. The least of the last names that it read in slots that have more is the end
// of the names that are known without a gap. A name is left out only if its newest version is a deletion at or before the
// timestamp.
//
// A walk seeks once in each slot, so it reads several names there, which cost little more. With 64 slots it reads about a thousand names, and a
// third of them is known without a gap.
func (s *Store) walkNames(q *NameQuery, last rhumb.Slot, from []byte) (found []slotName, next []byte, err error) {
	span := keys.RangeSpan(q.Range, last)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = it.Close() }()
	// Collection may have removed a deletion that the timestamp does not cover, and the versions below it.
	if err := s.checkFloor("storage.Store.walkNames", q.Range, q.At); err != nil {
		return nil, nil, err
	}
	// The share of a slot and two standard deviations, so that few walks end early because of a crowded slot.
	share := walkNames / (int(last-q.Range.Slot) + 1)
	each := share + 2*int(math.Sqrt(float64(share))) + 2
	walk := slotWalk{it: it, at: q.Range, last: last, span: func(home rhumb.RangeID) keys.Span { return spanFrom(home, q.Table, from) }}
	for walk.next() {
		// Every version is of interest: a name whose versions are all uncommitted has a record at a later timestamp.
		n := 0
		sc := scanner{it: it, upper: walk.upper, started: true, ahead: true}
		for n < each && sc.nextName() {
			name, keep, err := newestName(it, q.At)
			if err != nil {
				return nil, nil, err
			}
			// The next walk reads the names beyond the end again.
			if next != nil && bytes.Compare(name, next) >= 0 {
				break
			}
			if keep {
				n++
				found = append(found, slotName{bytes.Clone(name), walk.at.Slot})
			}
		}
		if n == each {
			next = append(bytes.Clone(found[len(found)-1].name), 0)
		}
	}
	if err := it.Error(); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(found, slotName.compare)
	if next != nil {
		end, _ := slices.BinarySearchFunc(found, slotName{name: next}, slotName.compare)
		found = found[:end]
	}
	return found, next, nil
}

// spanFrom returns the span of the versions of the records of a table and home from a name on.
func spanFrom(home rhumb.RangeID, table rhumb.TableID, from []byte) keys.Span {
	span := keys.PrefixSpan(home, table, nil)
	if len(from) > 0 {
		span.Lower = keys.AppendDataPrefix(nil, rhumb.Key{Table: table, Home: home, Name: from})
	}
	return span
}

// newestName returns the name at an iterator, which is at the newest version of it. keep is false for a record that was deleted at or before
// a timestamp: no read at that timestamp or a later one needs it. The value of any other record is not loaded.
func newestName(it *pebble.Iterator, at rhumb.Timestamp) (name []byte, keep bool, err error) {
	_, name, v, err := keys.DecodeData(it.Key())
	if err != nil || v.HLC > at {
		return name, true, err
	}
	value, err := it.ValueAndErr()
	return name, !rhumb.IsTombstone(value), err
}
