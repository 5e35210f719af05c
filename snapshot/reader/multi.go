package reader

import (
	"encoding/binary"
	"errors"
	"math"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A multi-get looks up a group of keys at a time, in three steps:
//
//  1. All keys are hashed, and all buckets and then all likely records are requested from memory
//     (group.locateRecords). A single look-up waits for two cache lines, one after the other; a
//     group waits about as long as a single look-up.
//  2. A first look accepts the records that need no further check: see record.isPlain.
//  3. The remaining keys, usually few, are looked up as in Get, after their previous versions were
//     requested.
//
// There is one loop for all kinds of keys and results, runMulti. The variants are chosen once per
// group, by a switch and not by an interface or a function value: the compiler cannot prove that
// those retain no pointer, so the group would be heap-allocated on each call instead of living on
// the stack.

// groupSize is how many keys are looked up at once. Measured: 32 keep the memory busy; 64 gain
// little and need more room on the stack.
const groupSize = 32

// lane holds the fields of a shard that a first look needs, in one cache line. The assembly depends
// on its layout.
type lane struct {
	index   unsafe.Pointer
	heap    unsafe.Pointer
	buckets uint64
	units   uint64 // records below this unit end within the heap, unless their value is long
	version uint64 // the base
	flags   uint32 // the flags of most records, as in record.lengthAndFlags: those of the first record
	at      uint32 // where the value of a record with these flags begins
	behind  uint64 // buckets after the primary ones
	_       [8]byte
}

const laneSize = 64

// plainUnits is the greatest number of units that a record of a number takes if its value is not
// long.
const plainUnits = (format.RecordAlign+math.MaxUint16)/format.RecordAlign + 1

// A lane must not be larger than laneSize: the assembly multiplies by it.
const _ = uint(laneSize - unsafe.Sizeof(lane{}))

// makeLane returns the lane of a segment.
func (g *segment) makeLane() lane {
	l := lane{index: g.index, heap: g.heap, buckets: uint64(g.buckets), version: g.version, at: format.RecordHeadSize}
	l.behind = uint64(g.head.BucketsMax - g.head.Buckets)
	// In a heap of fewer units no record can be taken for plain, and first looks find none.
	if g.units > plainUnits {
		l.units = uint64(g.units) - plainUnits
	}
	// The first record is taken as typical. A deleted record still has the same field layout, so
	// the tombstone flag is ignored.
	if f := (record{g.heap}).flags() &^ format.FlagTombstone; g.head.BaseUnits > 0 && f&format.FlagExpiry == 0 {
		l.flags, l.at = uint32(f)<<16, uint32(nameAt(f))
	}
	return l
}

// group is the state of one round of a multi-get.
type group struct {
	hashes [groupSize]uint64
	// records holds the likely record of each key, or nil. A record at the start of the heap counts
	// as missing; see Table.firstLook.
	records [groupSize]unsafe.Pointer
	late    [groupSize]uint8 // the keys for which a first look was not enough
	lates   int
}

// addLate marks a key for a second look.
func (q *group) addLate(i int) {
	q.late[q.lates] = uint8(i)
	q.lates++
}

// addAllLate marks the first n keys for a second look.
func (q *group) addAllLate(n int) {
	for i := range n {
		q.late[i] = uint8(i)
	}
	q.lates = n
}

// fetchOlder requests the previous versions of the records that a first look saw, all at the same
// time. An old view shows those.
func (q *group) fetchOlder(t *table) {
	var older [groupSize]unsafe.Pointer
	n := 0
	for _, i := range q.late[:q.lates] {
		l, r := t.laneOf(q.hashes[i]), record{q.records[i]}
		// No version check: a prefetch of a record that is not needed costs little and cannot fail.
		if r.p != nil && r.p != l.heap && uint64(r.prev()) < l.units {
			older[n] = unsafe.Add(l.heap, uintptr(r.prev())*format.RecordAlign)
			n++
		}
	}
	// A single record is about to be read anyway, so a prefetch would gain nothing.
	if hasKernel && n > 1 {
		fetchKernel(&older[0], n)
	}
}

// fetchHidden requests the previous versions of those among the first n records that the view does
// not show. A view of the newest version hides no record unless it is closed; checking the commit
// word spares such a view the loop.
func (q *group) fetchHidden(t *Table, n int) {
	v := &t.view
	q.lates = 0
	if v.closed == 0 && v.version >= v.held.committed() {
		return
	}
	for i, p := range q.records[:n] {
		if p != nil && p != t.t.laneOf(q.hashes[i]).heap && !v.shows(record{p}, v.limitOf(t.t.shardOf(q.hashes[i]))) {
			q.addLate(i)
		}
	}
	q.fetchOlder(t.t)
}

// multiGet is the keys of one multi-get, of one kind, and where the results go: to items, or to
// values if items is nil.
type multiGet struct {
	numbers   []uint64
	names     [][]byte
	shardKeys []rhumb.ShardKey
	items     []Item
	values    [][]byte
}

// MultiGetUint64 looks up many keys of a KeyUint64 table; out[i] becomes the record of keys[i],
// with Found false if the key has no value. It is several times as fast as GetUint64 in a loop,
// because it fetches the records of 32 keys at the same time. It returns the number of keys found.
// It fails as GetUint64 does, except with ErrNotFound; out must be as long as keys.
func (t *Table) MultiGetUint64(keys []uint64, out []Item) (found int, err error) {
	if err := t.checkNumbers(len(keys), len(out)); err != nil {
		return 0, err
	}
	return t.runMulti(&multiGet{numbers: keys, items: out}, len(keys))
}

// MultiGetUint64Values is MultiGetUint64 for values alone: out[i] becomes the value of keys[i], nil
// if the key has none.
func (t *Table) MultiGetUint64Values(keys []uint64, out [][]byte) (found int, err error) {
	if err := t.checkNumbers(len(keys), len(out)); err != nil {
		return 0, err
	}
	return t.runMulti(&multiGet{numbers: keys, values: out}, len(keys))
}

// MultiGet looks up many names, as MultiGetUint64 does numbers. In a KeyUint64 table a name is a
// number of 8 bytes, big-endian.
func (t *Table) MultiGet(names [][]byte, out []Item) (found int, err error) {
	if err := t.checkMulti(len(names), len(out)); err != nil {
		return 0, err
	}
	return t.runMulti(&multiGet{names: names, items: out}, len(names))
}

// MultiGetShardKeys looks up many records of a KeyName table that the server named, as MultiGet
// does names.
func (t *Table) MultiGetShardKeys(keys []rhumb.ShardKey, out []Item) (found int, err error) {
	if err := t.checkMulti(len(keys), len(out)); err != nil {
		return 0, err
	}
	if t.t.KeyKind != format.KeyName {
		return 0, t.refuse(noShardKeys)
	}
	return t.runMulti(&multiGet{shardKeys: keys, items: out}, len(keys))
}

// runMulti looks up the keys of a multi-get, group by group.
func (t *Table) runMulti(m *multiGet, keys int) (found int, err error) {
	var q group
	for from := 0; from < keys; from += groupSize {
		n := min(keys-from, groupSize)
		// A name that no table can hold fails the whole call. Earlier results stay in out.
		if err := m.hashKeys(t, &q, from, n); err != nil {
			return found, err
		}
		// From here on the records of the whole group are being loaded into the cache.
		q.locateRecords(n, t.t.lanes)
		if m.numbers != nil {
			m.takePlain(t, &q, from, n)
			if q.lates > 0 {
				q.fetchOlder(t.t)
			}
		} else {
			// Names differ in length, so each needs the second look, which compares them. Only
			// records that the view hides are worth following in advance.
			q.fetchHidden(t, n)
			q.addAllLate(n)
		}
		found += n - q.lates
		for _, i := range q.late[:q.lates] {
			got, err := m.takeLate(t, &q, from, int(i))
			if err != nil {
				return found, err
			}
			found += got
		}
	}
	return found, nil
}

// hashKeys hashes the n keys from a position on.
func (m *multiGet) hashKeys(t *Table, q *group, from, n int) (err error) {
	switch {
	case m.numbers != nil:
		for i, k := range m.numbers[from:][:n] {
			q.hashes[i] = t.t.root.HashNumber(k)
		}
	case m.names != nil:
		for i, name := range m.names[from:][:n] {
			if q.hashes[i], err = t.hashName(name); err != nil {
				return err
			}
		}
	default:
		for i, k := range m.shardKeys[from:][:n] {
			name := shardKeyName(k)
			q.hashes[i] = t.t.root.HashName(name[:], true)
		}
	}
	return nil
}

// takePlain is the first look at n numbers: it accepts the records that need no second look. The
// two loops, for items and for values, differ in one line; the choice between them is made once per
// group and not once per key.
func (m *multiGet) takePlain(t *Table, q *group, from, n int) {
	q.lates = 0
	if m.items == nil {
		out := m.values[from:][:n]
		for i, k := range m.numbers[from:][:n] {
			l, r := t.t.laneOf(q.hashes[i]), record{q.records[i]}
			if r.p == nil || r.p == l.heap || !r.isPlain(l, k, t.plain) {
				q.addLate(i)
				continue
			}
			out[i] = r.plainValue(l)
		}
		return
	}
	out := m.items[from:][:n]
	for i, k := range m.numbers[from:][:n] {
		l, r := t.t.laneOf(q.hashes[i]), record{q.records[i]}
		if r.p == nil || r.p == l.heap || !r.isPlain(l, k, t.plain) {
			q.addLate(i)
			continue
		}
		// out may hold results of an earlier call, and fillPlain sets only some fields.
		out[i] = Item{}
		r.fillPlain(&out[i], l)
	}
}

// takeLate looks key i of a group up and reports 1 if it has a value.
func (m *multiGet) takeLate(t *Table, q *group, from, i int) (found int, err error) {
	var key lookupKey
	switch {
	case m.numbers != nil:
		key = lookupKey{word: m.numbers[from+i]}
	case m.names == nil:
		name := shardKeyName(m.shardKeys[from+i])
		key = lookupKey{word: q.hashes[i], name: name[:], named: true, shardKey: true}
	case t.t.KeyKind == format.KeyUint64:
		key = lookupKey{word: binary.BigEndian.Uint64(m.names[from+i])}
	default:
		key = lookupKey{word: q.hashes[i], name: m.names[from+i], named: true}
	}
	if m.items != nil {
		return t.finishKey(q, i, &key, &m.items[from+i])
	}
	// Only values were asked for. The item stays on the stack.
	var it Item
	found, err = t.finishKey(q, i, &key, &it)
	if err == nil {
		m.values[from+i] = it.Value
	}
	return found, err
}

// checkNumbers returns an error if numbers cannot be looked up.
func (t *Table) checkNumbers(keys, out int) error {
	if t.t.KeyKind != format.KeyUint64 {
		return t.refuse("it is looked up by name, not by number")
	}
	return t.checkMulti(keys, out)
}

// checkMulti returns an error if the view may not be read or the results do not fit.
func (t *Table) checkMulti(keys, out int) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if out < keys {
		return t.refuse("out is shorter than keys")
	}
	return nil
}

// hashName returns the hash of a name.
func (t *Table) hashName(name []byte) (uint64, error) {
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

// finishKey uses the located record if it belongs to the key. Otherwise it looks the key up: the
// key may be missing, two keys of a bucket may have one fingerprint, or the key may be in a later
// overflow bucket. The record at the start of the heap is never taken here: an empty slot leads to
// it, and it may not be written yet, so that it looks like the record of key 0.
func (t *Table) finishKey(q *group, i int, key *lookupKey, it *Item) (found int, err error) {
	g := t.t.shardOf(q.hashes[i])
	if p := q.records[i]; p != nil && p != g.heap && *(*uint64)(p) == key.word {
		ref := uint32((uintptr(p) - uintptr(g.heap)) / format.RecordAlign)
		if !key.named || g.sameName(record{p}, ref, key) {
			return countFound(it, t.emitShown(it, g, ref))
		}
	}
	return countFound(it, t.findKey(it, q.hashes[i], key))
}

// countFound turns ErrNotFound into an empty item that does not count.
func countFound(it *Item, err error) (int, error) {
	if err == nil {
		return 1, nil
	}
	*it = Item{}
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	return 0, err
}
