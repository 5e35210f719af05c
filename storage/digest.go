package storage

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/zeebo/xxh3"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// Digest is a fingerprint of the records of a range as of one timestamp. Replicas that applied the same log up
// to there have equal digests, whatever their disks look like: tombstones, superseded versions, the log and
// the results of requests are left out, because every replica collects them at a time of its own.
type Digest struct {
	Range rhumb.RangeID
	// At is the timestamp of the records. Later versions do not count.
	At rhumb.Timestamp
	// Last is the last slot of the range. Digests of different spans cannot be compared.
	Last rhumb.Slot
	// Tables are those with records, in ascending order.
	Tables []TableDigest
}

// TableDigest is the digest of the records of one table in a range.
type TableDigest struct {
	Table rhumb.TableID
	// Records counts names that have a value, each once.
	Records uint64
	// Bytes is the size of names and values.
	Bytes uint64
	// Sum is the sum of the hashes of the records modulo 2^128. A sum needs no state per table but
	// itself, and the records of a table in a range of several slots do not follow each other.
	High, Low uint64
}

// Records returns the number of records of all tables.
func (d *Digest) Records() (n uint64) {
	for i := range d.Tables {
		n += d.Tables[i].Records
	}
	return n
}

// Bytes returns the size of all records.
func (d *Digest) Bytes() (n uint64) {
	for i := range d.Tables {
		n += d.Tables[i].Bytes
	}
	return n
}

// String returns all tables in one number.
func (d *Digest) String() string {
	var b []byte
	for i := range d.Tables {
		t := &d.Tables[i]
		for _, n := range []uint64{uint64(t.Table), t.Records, t.Bytes, t.High, t.Low} {
			b = binary.BigEndian.AppendUint64(b, n)
		}
	}
	sum := xxh3.Hash128(b).Bytes()
	return hex.EncodeToString(sum[:])
}

// add adds a record.
func (t *TableDigest) add(hash xxh3.Uint128, bytes int) {
	var carry uint64
	t.Low, carry = bits.Add64(t.Low, hash.Lo, 0)
	t.High, _ = bits.Add64(t.High, hash.Hi, carry)
	t.Records++
	t.Bytes += uint64(bytes)
}

// Digest computes the digest of a range as of a timestamp. The caller knows that the replica holds every
// entry up to there, and that no other entry will be at or below it. Pace, if set, is called before bytes
// are read and may wait; an error of it ends the computation.
//
// One iterator is open throughout, so that the range may be written and collected meanwhile. It keeps
// obsolete tables on the disk for that time. Unavailable means that versions as of the timestamp have been
// collected: the caller asks again at a newer one.
func (s *Store) Digest(ctx context.Context, id rhumb.RangeID, at rhumb.Timestamp, pace func(ctx context.Context, bytes int) error) (_ *Digest, err error) {
	const op rhumb.Op = "storage.Store.Digest"
	rs := s.rangeOf(id)
	if rs == nil || s.RangeDamaged(id) {
		return nil, rhumb.Ef(op, rhumb.NotFound, "%s holds no intact copy of range %s", s.cfg.Dir, id)
	}
	d := &Digest{Range: id, At: at, Last: rs.copyState().LastSlot}
	span := transferSpan(id, d.Last)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return nil, s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	// After the iterator is open: see checkFloor. Later collections do not change the view of the iterator, so one
	// check is enough however long the reading takes.
	if err := s.checkFloor(op, id, at); err != nil {
		return nil, err
	}
	w := digester{s: s, ctx: ctx, pace: pace, tables: map[rhumb.TableID]*TableDigest{}}
	// A range of several slots has the records of each slot in a span of their own. The log, the state and the
	// results of requests lie between these spans and are skipped.
	walk := slotWalk{it: it, at: id, last: d.Last, span: func(home rhumb.RangeID) keys.Span { return keys.KindSpan(home, keys.KindData) }}
	for walk.next() {
		if err := w.addSlot(op, it, walk.at, at, walk.upper); err != nil {
			return nil, err
		}
	}
	if err := it.Error(); err != nil {
		return nil, s.dbError(op, err)
	}
	// The order must not depend on the map, because digests are compared table by table.
	for _, t := range w.tables {
		d.Tables = append(d.Tables, *t)
	}
	slices.SortFunc(d.Tables, func(a, b TableDigest) int { return cmp.Compare(a.Table, b.Table) })
	return d, nil
}

// digester adds up the records of a range. It reads each value once and keeps nothing of it, so its memory does
// not grow with the range.
type digester struct {
	s    *Store
	ctx  context.Context
	pace func(ctx context.Context, bytes int) error
	// owed are the bytes that were read since the last call of pace.
	owed   int
	tables map[rhumb.TableID]*TableDigest
	// hash and buf are used again for each record.
	hash xxh3.Hasher
	buf  []byte
}

// addSlot adds the records of one slot. Only the newest version at or before the timestamp counts, and only if it is
// no tombstone: superseded versions and tombstones are collected at a different time on every node. The iterator is at the first of them.
func (w *digester) addSlot(op rhumb.Op, it *pebble.Iterator, home rhumb.RangeID, at rhumb.Timestamp, upper []byte) error {
	sc := scanner{it: it, home: home, at: at, upper: upper, started: true, ahead: true}
	for {
		item, value, ok, err := sc.nextLazy()
		if err != nil {
			return w.s.dbError(op, err)
		}
		if !ok {
			return nil
		}
		n := len(item.Key.Name) + len(value)
		if w.owed += n; w.owed >= paceEvery {
			if err := w.ctx.Err(); err != nil {
				return rhumb.WrapKind(op, rhumb.Unavailable, err)
			}
			if w.pace != nil {
				if err := w.pace(w.ctx, w.owed); err != nil {
					return rhumb.Wrap(op, err)
				}
			}
			w.owed = 0
		}
		// A range of a class that tables share has thousands of them at most, each with five words here.
		t := w.tables[item.Key.Table]
		if t == nil {
			t = &TableDigest{Table: item.Key.Table}
			w.tables[item.Key.Table] = t
		}
		t.add(w.sum(&item, value), n)
	}
}

// sum hashes a record: its home, name, version and value. The length of the name separates it from the
// value. The table is not part of it, because each table has a sum of its own. The hash notices accidents and not
// attackers: a node that wants to lie about its records could answer with any digest.
func (w *digester) sum(item *rhumb.Item, value []byte) xxh3.Uint128 {
	w.buf = binary.BigEndian.AppendUint32(w.buf[:0], uint32(item.Key.Home.Region))
	w.buf = binary.BigEndian.AppendUint64(w.buf, uint64(item.Key.Home.Slot))
	w.buf = keys.AppendVersion(w.buf, item.Version)
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(len(item.Key.Name)))
	w.buf = append(w.buf, item.Key.Name...)
	w.hash.Reset()
	_, _ = w.hash.Write(w.buf)
	_, _ = w.hash.Write(value)
	return w.hash.Sum128()
}
