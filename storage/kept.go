package storage

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/storage/nodelog"
)

// Bounds of the memory of log records and results.
const (
	// keptChunkBytes is the size of a chunk. A chunk is copied as a whole while writes wait, which
	// takes less than a millisecond.
	keptChunkBytes = 64 << 10
	// copiesMax bounds the chunks that one batch copies. A batch seldom fills one.
	copiesMax = 4
	// keptViewMax bounds the records in memory that one call of Entries looks at. Its caller asks again
	// for later ones.
	keptViewMax = 4_096
)

// isKept reports whether a key stays in the log of the store, and out of the database, until the log
// needs the room: log records and results of requests. The floor of a client, which has number 0, does
// not: collection writes it again and again.
func isKept(key []byte) bool {
	switch keys.KindOf(key) {
	case keys.KindLog:
		return true
	case keys.KindDedup:
		d, err := keys.Decode(key)
		return err == nil && d.Request.Seq != 0
	}
	return false
}

// keptTable holds the log records and the results of requests that are in the log of the store and not
// in its database. Most log records are collected before the log needs their room, so they are never
// written a second time. The database and the table together hold the keys of a store; no key but that
// of a result is in both, and then the table counts.
//
// The table holds bytes and not places in the log: a reader needs no disk, and no place has to be
// guarded against being written over. It takes a fraction of the memory that the same keys take in a
// memtable.
//
// The content is a function of the records of the log after the last one that was copied. A start
// computes it again from these.
//
// Invariants: chunks are in the order of the log. Each reference is to a SET in a chunk of the table.
// The log records of a range that are in the table follow those that are in the database, because
// chunks are copied from the oldest on.
type keptTable struct {
	// mu is held while a batch changes the table and the database, so that a reader that holds it sees
	// both at one moment. It is taken after storeLog.order.
	mu     sync.RWMutex
	ranges map[rhumb.RangeID]*keptRange
	chunks []*keptChunk
	base   uint32 // number of chunks[0]
	bytes  int64  // of all chunks
}

// keptRange are the keys of one range. Both kinds of lists are in ascending order.
type keptRange struct {
	log     []keptRef
	results map[rhumb.UUID][]keptRef
}

// keptRef is the place of the SET of one key: of the log record, or of the result, with a sequence number.
type keptRef struct {
	seq   uint64
	chunk uint32
	at    uint32
}

// keptChunk is a part of the log: the operations on keys of the table, as batches encode them, of
// consecutive records. Its memory is never moved or used again, so that readers may use a value without
// a lock.
type keptChunk struct {
	ops    []byte
	first  nodelog.Number  // of the first record with an operation in the chunk
	begin  uint64          // where the log was when the chunk was begun, in bytes
	oldest rhumb.Timestamp // the least timestamp of a result in the chunk, or 0
}

// newKeptTable returns an empty table.
func newKeptTable() *keptTable { return &keptTable{ranges: map[rhumb.RangeID]*keptRange{}} }

// add applies the operations of a record on keys of the table, in order. It calls gone with each
// deleted key that the database may have. pos is the place of the record in the log, in bytes. mu is
// held.
func (k *keptTable) add(number nodelog.Number, ops []byte, pos uint64, gone func(key []byte) error) error {
	// A record without kept part needs no chunk, so it does not hold up the position of the copies.
	if len(ops) == 0 {
		return nil
	}
	c := k.chunkFor(number, len(ops), pos)
	from := len(c.ops)
	c.ops = append(c.ops, ops...)
	k.bytes += int64(len(ops))
	r := batchrepr.Reader(c.ops[from:])
	for {
		at := len(c.ops) - len(r)
		kind, key, value, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		// The main part has the same range deletion, for the keys that were copied.
		if kind == pebble.InternalKeyKindRangeDelete {
			k.deleteSpan(keys.Span{Lower: key, Upper: value})
			continue
		}
		d, err := keys.Decode(key)
		if err != nil {
			return err
		}
		switch kind {
		case pebble.InternalKeyKindSet:
			k.set(d, keptRef{chunk: k.base + uint32(len(k.chunks)-1), at: uint32(at)})
			if d.Kind == keys.KindDedup && len(value) >= seenSeqAt {
				hlc := rhumb.Timestamp(binary.BigEndian.Uint64(value[seenHLCAt:]))
				if c.oldest == 0 || hlc < c.oldest {
					c.oldest = hlc
				}
			}
		case pebble.InternalKeyKindDelete:
			// A log record is written once for each number that is in use, so it is in one place. A
			// request may have a result in both, after two ranges with results of it were united.
			if k.remove(d, nil) && d.Kind == keys.KindLog {
				continue
			}
			if err := gone(key); err != nil {
				return err
			}
		default:
			return rhumb.Ef("storage.keptTable.add", rhumb.Corrupt, "record %d of the log has an operation of kind %s on key %s", number, kind, keys.Format(key))
		}
	}
}

// chunkFor returns the chunk for the operations of a record.
func (k *keptTable) chunkFor(number nodelog.Number, size int, pos uint64) *keptChunk {
	if n := len(k.chunks); n > 0 {
		if c := k.chunks[n-1]; cap(c.ops)-len(c.ops) >= size {
			return c
		}
	}
	// A record with many results has a chunk of its own.
	c := &keptChunk{ops: make([]byte, 0, max(keptChunkBytes, size)), first: number, begin: pos}
	k.chunks = append(k.chunks, c)
	return c
}

// list calls change with the list that has a key, and stores the list that change returns.
func (k *keptTable) list(d keys.Decoded, change func(refs []keptRef, seq uint64) []keptRef) {
	r := k.ranges[d.Home]
	if r == nil {
		r = &keptRange{results: map[rhumb.UUID][]keptRef{}}
		k.ranges[d.Home] = r
	}
	if d.Kind == keys.KindLog {
		r.log = change(r.log, uint64(d.Seq))
	} else if refs := change(r.results[d.Request.Client], d.Request.Seq); len(refs) > 0 {
		r.results[d.Request.Client] = refs
	} else {
		delete(r.results, d.Request.Client)
	}
	// A store may have had many ranges, so those without keys are forgotten.
	if len(r.log) == 0 && len(r.results) == 0 {
		delete(k.ranges, d.Home)
	}
}

// findRef returns the index of a number in a list.
func findRef(refs []keptRef, seq uint64) (int, bool) {
	return slices.BinarySearchFunc(refs, seq, func(r keptRef, seq uint64) int { return cmp.Compare(r.seq, seq) })
}

// set adds or replaces the reference of a key.
func (k *keptTable) set(d keys.Decoded, ref keptRef) {
	k.list(d, func(refs []keptRef, seq uint64) []keptRef {
		ref.seq = seq
		// Nearly always the newest.
		if n := len(refs); n == 0 || refs[n-1].seq < seq {
			return append(refs, ref)
		}
		i, found := findRef(refs, seq)
		if found {
			refs[i] = ref
			return refs
		}
		return slices.Insert(refs, i, ref)
	})
}

// remove removes the reference of a key, and with only that reference and no newer one. It reports
// whether it did.
func (k *keptTable) remove(d keys.Decoded, only *keptRef) (removed bool) {
	if k.ranges[d.Home] == nil {
		return false
	}
	k.list(d, func(refs []keptRef, seq uint64) []keptRef {
		i, found := findRef(refs, seq)
		if !found || only != nil && (refs[i].chunk != only.chunk || refs[i].at != only.at) {
			return refs
		}
		removed = true
		// Collection and copying remove the oldest. The memory in front is given back when the list grows.
		if i == 0 {
			return refs[1:]
		}
		return slices.Delete(refs, i, i+1)
	})
	return removed
}

// deleteSpan removes all keys of a span.
func (k *keptTable) deleteSpan(span keys.Span) {
	for id, r := range k.ranges {
		// The lists of a range are between its first log record and its last result.
		if whole := (keys.Span{Lower: keys.KindSpan(id, keys.KindLog).Lower, Upper: keys.KindSpan(id, keys.KindDedup).Upper}); !overlap(span, whole) {
			continue
		}
		r.log = slices.DeleteFunc(r.log, func(f keptRef) bool { return span.Contains(keys.AppendLog(nil, id, rhumb.Seq(f.seq))) })
		for client, refs := range r.results {
			refs = slices.DeleteFunc(refs, func(f keptRef) bool {
				return span.Contains(keys.AppendDedup(nil, id, rhumb.RequestID{Client: client, Seq: f.seq}))
			})
			if r.results[client] = refs; len(refs) == 0 {
				delete(r.results, client)
			}
		}
		if len(r.log) == 0 && len(r.results) == 0 {
			delete(k.ranges, id)
		}
	}
}

// overlap reports whether two spans have keys in common.
func overlap(a, b keys.Span) bool {
	return (b.Upper == nil || keys.Compare(a.Lower, b.Upper) < 0) && (a.Upper == nil || keys.Compare(b.Lower, a.Upper) < 0)
}

// value returns the value under a reference. mu is held; the value may be used after that.
func (k *keptTable) value(f keptRef) []byte {
	r := batchrepr.Reader(k.chunks[f.chunk-k.base].ops[f.at:])
	// add has read the same bytes.
	_, _, value, _, _ := r.Next()
	return value
}

// copied returns the number of the record up to which the database has everything, if it has the main
// part of all records up to applied. mu is held.
func (k *keptTable) copied(applied nodelog.Number) nodelog.Number {
	if len(k.chunks) == 0 {
		return applied
	}
	return k.chunks[0].first - 1
}

// moveOldest removes the oldest chunk and calls set with each key that is still in the table, in the
// order of the log. mu is held.
func (k *keptTable) moveOldest(set func(key, value []byte) error) (moved int, err error) {
	c := k.chunks[0]
	for r := batchrepr.Reader(c.ops); ; {
		at := len(c.ops) - len(r)
		kind, key, value, ok, err := r.Next()
		if err != nil {
			return moved, err
		}
		if !ok {
			break
		}
		if kind != pebble.InternalKeyKindSet {
			continue
		}
		d, err := keys.Decode(key)
		if err != nil {
			return moved, err
		}
		// A key that was deleted or written again since has no reference to this place.
		if k.remove(d, &keptRef{chunk: k.base, at: uint32(at)}) {
			moved++
			if err := set(key, value); err != nil {
				return moved, err
			}
		}
	}
	k.bytes -= int64(len(c.ops))
	// Readers may still use values of the chunk, so its memory is left to the garbage collector.
	k.chunks[0] = nil
	k.chunks = k.chunks[1:]
	k.base++
	return moved, nil
}

// get returns the value of a key; ok is false if the table does not have it. A nil table is empty, also
// in the methods below: a store with the log of its database has none.
func (k *keptTable) get(d keys.Decoded) (value []byte, ok bool) {
	if k == nil {
		return nil, false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	r := k.ranges[d.Home]
	if r == nil {
		return nil, false
	}
	// The kind of the key chooses the list.
	refs, seq := r.log, uint64(d.Seq)
	if d.Kind == keys.KindDedup {
		refs, seq = r.results[d.Request.Client], d.Request.Seq
	}
	i, ok := findRef(refs, seq)
	if !ok {
		return nil, false
	}
	return k.value(refs[i]), true
}

// keptRecord is a log record.
type keptRecord struct {
	seq   rhumb.Seq
	value []byte
}

// logOf returns up to most log records of a range from..to, both included, and calls open at the same
// moment.
func (k *keptTable) logOf(id rhumb.RangeID, from, to rhumb.Seq, most int, open func() error) (out []keptRecord, err error) {
	if k == nil {
		return nil, open()
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	if err := open(); err != nil || k.ranges[id] == nil {
		return nil, err
	}
	refs := k.ranges[id].log
	lo, _ := findRef(refs, uint64(from))
	hi, found := findRef(refs, uint64(to))
	if found {
		hi++
	}
	if hi <= lo {
		return nil, nil
	}
	// The values, and not the references, leave the lock: a chunk may be copied right after.
	refs = refs[lo:hi]
	refs = refs[:min(len(refs), most)]
	out = make([]keptRecord, len(refs))
	for i, f := range refs {
		out[i] = keptRecord{rhumb.Seq(f.seq), k.value(f)}
	}
	return out, nil
}

// lastLog returns the last log record of a range.
func (k *keptTable) lastLog(id rhumb.RangeID) (value []byte, ok bool) {
	if k == nil {
		return nil, false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	r := k.ranges[id]
	if r == nil || len(r.log) == 0 {
		return nil, false
	}
	return k.value(r.log[len(r.log)-1]), true
}

// lastResults returns the greatest numbers of a client with a result, descending, and calls open at the
// same moment.
func (k *keptTable) lastResults(id rhumb.RangeID, client rhumb.UUID, open func() error) (seqs []uint64, err error) {
	if k == nil {
		return nil, open()
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	if err := open(); err != nil || k.ranges[id] == nil {
		return nil, err
	}
	refs := k.ranges[id].results[client]
	for i := len(refs) - 1; i >= 0 && len(seqs) < rhumb.DedupWindow; i-- {
		// No client reaches the greatest number of all.
		if refs[i].seq < math.MaxUint64 {
			seqs = append(seqs, refs[i].seq)
		}
	}
	return seqs, nil
}

// resultsOlder returns how many of the oldest chunks have to be copied until the table has no result
// that is older than an age.
func (k *keptTable) resultsOlder(now rhumb.Timestamp, age time.Duration) (chunks int) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	// Timestamps of different ranges do not grow together, so the search ends with the newest chunk.
	for i, c := range k.chunks {
		if c.oldest != 0 && now.Sub(c.oldest) > age {
			chunks = i + 1
		}
	}
	return chunks
}

// usage returns the bytes of the table.
func (k *keptTable) usage() int64 {
	if k == nil {
		return 0
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.bytes
}

// logWalk reads the log records of a range in ascending order: those in the database, then those in the
// table.
type logWalk struct {
	s     *Store
	it    *pebble.Iterator
	kept  []keptRecord
	ok    bool
	begun bool
}

// view returns the reader for walks over whole ranges.
func (s *Store) view() pebble.Reader {
	if s.ahead != nil {
		return s.ahead
	}
	return s.db
}

// walkLog returns a walk over the log records from..to of a range, both included. The table contributes
// up to most of them. The view is that of one moment, also for clones of its iterator.
func (s *Store) walkLog(id rhumb.RangeID, from, to rhumb.Seq, most int) (*logWalk, error) {
	w := &logWalk{s: s}
	upper := keys.KindSpan(id, keys.KindLog).Upper
	if to < math.MaxUint64 {
		upper = keys.AppendLog(nil, id, to+1)
	}
	var err error
	w.kept, err = s.kept.logOf(id, from, to, most, func() (err error) {
		w.it, err = s.view().NewIter(&pebble.IterOptions{LowerBound: keys.AppendLog(nil, id, from), UpperBound: upper})
		return err
	})
	return w, err
}

// next returns the next record. The value of a record is valid until the next call. ok is false at the
// end, or with an error.
func (w *logWalk) next() (r keptRecord, ok bool, err error) {
	if !w.begun {
		w.begun, w.ok = true, w.it.First()
	} else if w.ok {
		w.ok = w.it.Next()
	}
	// The records in memory follow those of the database.
	if !w.ok {
		if err := w.it.Error(); err != nil || len(w.kept) == 0 {
			return r, false, err
		}
		r, w.kept = w.kept[0], w.kept[1:]
		return r, true, nil
	}
	d, err := keys.Decode(w.it.Key())
	if err != nil {
		return r, false, err
	}
	r.seq = d.Seq
	r.value, err = w.it.ValueAndErr()
	return r, err == nil, err
}

// close releases the iterator.
func (w *logWalk) close() error { return w.it.Close() }
