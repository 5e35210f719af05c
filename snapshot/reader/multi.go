package reader

import (
	"encoding/binary"
	"errors"
	"math"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// groupSize is how many keys are looked up at once. Measured: 32 keep the memory busy; 64 gain little and need more room on
// the stack.
const groupSize = 32

// lane is what a first look needs of a shard. Its layout is known to the assembly.
type lane struct {
	index   unsafe.Pointer
	heap    unsafe.Pointer
	buckets uint64
	units   uint64 // records below it end in the heap, unless their value is long
	version uint64 // the base
	flags   uint32 // of most records, it is hoped: those of the first, as in record.lengthAndFlags
	at      uint32 // where the value of such a record begins
	behind  uint64 // buckets behind the primary ones
	_       [8]byte
}

const laneSize = 64

// plainUnits is the most units of a record of a number whose value is not long.
const plainUnits = (format.RecordAlign+math.MaxUint16)/format.RecordAlign + 1

// The assembly counts on it.
const _ = uint(laneSize - unsafe.Sizeof(lane{}))

func (g *segment) lane() lane {
	l := lane{index: g.index, heap: g.heap, buckets: uint64(g.buckets), version: g.version, at: format.RecordHeadSize}
	l.behind = uint64(g.head.BucketsMax - g.head.Buckets)
	if g.units > plainUnits {
		l.units = uint64(g.units) - plainUnits
	}
	// The first record stands for all, and its fields do so when it is deleted too.
	if f := (record{g.heap}).flags() &^ format.FlagTombstone; g.head.BaseUnits > 0 && f&format.FlagExpiry == 0 {
		l.flags, l.at = uint32(f)<<16, uint32(nameAt(f))
	}
	return l
}

// group is one round of MultiGet.
type group struct {
	hashes  [groupSize]uint64
	records [groupSize]unsafe.Pointer // the likely record of each key, nil for none; nor is that at the heap's start, see Table.look
	late    [groupSize]uint8          // the keys for which a first look was not enough
	lates   int
}

// later notes a key for a second look.
func (q *group) later(i int) {
	q.late[q.lates] = uint8(i)
	q.lates++
}

// fetchOlder begins to fetch the versions before those that a first look saw, all at the same time: in an old view they are
// what is shown.
func (q *group) fetchOlder(t *table) {
	var older [groupSize]unsafe.Pointer
	n := 0
	for _, i := range q.late[:q.lates] {
		l, r := t.lane(q.hashes[i]), record{q.records[i]}
		if r.p != nil && r.p != l.heap && uint64(r.prev()) < l.units {
			older[n] = unsafe.Add(l.heap, uintptr(r.prev())*format.RecordAlign)
			n++
		}
	}
	if hasKernel && n > 1 {
		fetchKernel(&older[0], n)
	}
}

// fetchHidden does so for those of the first n records that the view does not show. A view of the newest version hides none,
// unless it is a closed one.
func (q *group) fetchHidden(t *Table, n int) {
	v := &t.view
	if v.closed == 0 && v.version >= v.held.committed() {
		return
	}
	q.lates = 0
	for i, p := range q.records[:n] {
		if p != nil && p != t.t.lane(q.hashes[i]).heap && !v.shows(record{p}, v.limit(t.t.shard(q.hashes[i]))) {
			q.later(i)
		}
	}
	q.fetchOlder(t.t)
}

// MultiGetUint64 looks up many keys of a KeyUint64 table; out[i] becomes the record of keys[i], with Found false when the
// key has no value. It is several times as fast as as many calls of GetUint64, since it fetches the records of 32 keys at
// the same time. It gives the number of keys found and fails as GetUint64 does, but for ErrNotFound; out must be as long as
// keys.
func (t *Table) MultiGetUint64(keys []uint64, out []Item) (found int, err error) {
	if err := t.checkNumbers(len(keys), len(out)); err != nil {
		return 0, err
	}
	var q group
	for len(keys) > 0 {
		n := t.locateNumbers(&q, keys)
		for i, k := range keys[:n] {
			l, r := t.t.lane(q.hashes[i]), record{q.records[i]}
			if r.p == nil || r.p == l.heap || !r.isPlain(l, k, t.plain) {
				q.later(i)
				continue
			}
			out[i] = Item{}
			r.plain(&out[i], l)
		}
		found += n - q.lates
		if q.lates > 0 {
			q.fetchOlder(t.t)
		}
		for _, i := range q.late[:q.lates] {
			got, err := t.finish(&q, int(i), &lookupKey{word: keys[i]}, &out[i])
			if err != nil {
				return found, err
			}
			found += got
		}
		keys, out = keys[n:], out[n:]
	}
	return found, nil
}

// MultiGetUint64Values is MultiGetUint64 for who wants nothing but the values: out[i] becomes the value of keys[i], nil when
// the key has none.
func (t *Table) MultiGetUint64Values(keys []uint64, out [][]byte) (found int, err error) {
	if err := t.checkNumbers(len(keys), len(out)); err != nil {
		return 0, err
	}
	var q group
	for len(keys) > 0 {
		n := t.locateNumbers(&q, keys)
		for i, k := range keys[:n] {
			l, r := t.t.lane(q.hashes[i]), record{q.records[i]}
			if r.p == nil || r.p == l.heap || !r.isPlain(l, k, t.plain) {
				q.later(i)
				continue
			}
			out[i] = r.plainValue(l)
		}
		found += n - q.lates
		if q.lates > 0 {
			q.fetchOlder(t.t)
		}
		for _, i := range q.late[:q.lates] {
			var it Item
			got, err := t.finish(&q, int(i), &lookupKey{word: keys[i]}, &it)
			if err != nil {
				return found, err
			}
			out[i] = it.Value
			found += got
		}
		keys, out = keys[n:], out[n:]
	}
	return found, nil
}

// MultiGet looks up many names, as MultiGetUint64 does numbers. In a KeyUint64 table a name is a number of 8 bytes,
// big-endian.
func (t *Table) MultiGet(names [][]byte, out []Item) (found int, err error) {
	if err := t.checkMulti(len(names), len(out)); err != nil {
		return 0, err
	}
	var q group
	for len(names) > 0 {
		n := min(len(names), groupSize)
		for i, name := range names[:n] {
			if q.hashes[i], err = t.hash(name); err != nil {
				return found, err
			}
		}
		q.locate(n, t.t.lanes)
		q.fetchHidden(t, n)
		for i, name := range names[:n] {
			key := lookupKey{word: q.hashes[i], name: name, named: true}
			if t.t.KeyKind == format.KeyUint64 {
				key = lookupKey{word: binary.BigEndian.Uint64(name)}
			}
			got, err := t.finish(&q, i, &key, &out[i])
			if err != nil {
				return found, err
			}
			found += got
		}
		names, out = names[n:], out[n:]
	}
	return found, nil
}

// MultiGetShardKeys looks up many records that the server named, in a KeyName table, as MultiGet does names.
func (t *Table) MultiGetShardKeys(keys []rhumb.ShardKey, out []Item) (found int, err error) {
	if err := t.checkMulti(len(keys), len(out)); err != nil {
		return 0, err
	}
	if t.t.KeyKind != format.KeyName {
		return 0, t.refuse(noShardKeys)
	}
	var q group
	var names [groupSize][rhumb.ShardKeySize]byte
	for len(keys) > 0 {
		n := min(len(keys), groupSize)
		for i, k := range keys[:n] {
			names[i] = shardKeyName(k)
			q.hashes[i] = t.t.root.HashName(names[i][:], true)
		}
		q.locate(n, t.t.lanes)
		q.fetchHidden(t, n)
		for i := range n {
			got, err := t.finish(&q, i, &lookupKey{word: q.hashes[i], name: names[i][:], named: true, shardKey: true}, &out[i])
			if err != nil {
				return found, err
			}
			found += got
		}
		keys, out = keys[n:], out[n:]
	}
	return found, nil
}

// locateNumbers does the first of keys, as many as make a group, and gives their number.
func (t *Table) locateNumbers(q *group, keys []uint64) int {
	n := min(len(keys), groupSize)
	for i, k := range keys[:n] {
		q.hashes[i] = t.t.root.HashNumber(k)
	}
	q.locate(n, t.t.lanes)
	q.lates = 0
	return n
}

func (t *Table) checkNumbers(keys, out int) error {
	if t.t.KeyKind != format.KeyUint64 {
		return t.refuse("it is looked up by name, not by number")
	}
	return t.checkMulti(keys, out)
}

func (t *Table) checkMulti(keys, out int) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if out < keys {
		return t.refuse("out is shorter than keys")
	}
	return nil
}

func (t *Table) hash(name []byte) (uint64, error) {
	switch {
	case t.t.KeyKind == format.KeyUint64 && len(name) != 8:
		return 0, t.refuse(noShardKeys)
	case t.t.KeyKind == format.KeyUint64:
		return t.t.root.HashNumber(binary.BigEndian.Uint64(name)), nil
	case len(name) == 0 || len(name) > format.NameSizeMax:
		return 0, t.refuse("its names have 1 to 254 bytes")
	}
	return t.t.root.HashName(name, false), nil
}

// finish takes the record that was located if it is the key's, and looks the key up otherwise: when it is not there, when
// two keys of a bucket have one fingerprint, or when the key is in an overflow bucket. The record at the start of the heap
// is always looked up: it is what an empty slot leads to, and may not be written yet, so that it looks like that of key 0.
func (t *Table) finish(q *group, i int, key *lookupKey, it *Item) (found int, err error) {
	g := t.t.shard(q.hashes[i])
	if p := q.records[i]; p != nil && p != g.heap && *(*uint64)(p) == key.word {
		ref := uint32((uintptr(p) - uintptr(g.heap)) / format.RecordAlign)
		if !key.named || g.sameName(record{p}, ref, key) {
			err = t.emit(it, g, ref)
			return t.outcome(it, err)
		}
	}
	return t.outcome(it, t.find(it, q.hashes[i], key))
}

func (t *Table) outcome(it *Item, err error) (int, error) {
	if err == nil {
		return 1, nil
	}
	*it = Item{}
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	return 0, err
}
