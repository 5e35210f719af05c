package reader

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Table is a table of a view. It is valid as long as the view is locked.
type Table struct {
	view  View
	t     *table
	plain uint64 // a record below this version is shown at the first look; 0 when none is
}

// lookupKey is what a record must have to be the one looked up.
type lookupKey struct {
	word     uint64 // the number, or the hash of the name
	name     []byte
	named    bool
	shardKey bool
}

// Info gives the table's entry: its kind of keys and its features.
func (t *Table) Info() format.Table {
	if t.t == nil {
		return format.Table{}
	}
	return t.t.Table
}

// View gives the view that the table belongs to.
func (t *Table) View() View { return t.view }

// Get finds a record by its name. In a KeyUint64 table a name is a number of 8 bytes, big-endian. It fails with ErrNotFound
// when the key has no value, ErrExpired or ErrUnlocked when the view may not be read, InvalidArgument when the table can
// hold no such name, and Corrupt when the image is damaged.
func (t *Table) Get(name []byte) (Item, error) {
	var it Item
	err := t.get(&it, name, false)
	return it, err
}

// GetShardKey finds a record that the server named, in a KeyName table. It fails as Get does.
func (t *Table) GetShardKey(k rhumb.ShardKey) (Item, error) {
	name := shardKeyName(k)
	var it Item
	err := t.get(&it, name[:], true)
	return it, err
}

// shardKeyName gives a shard key as it stands in a record.
func shardKeyName(k rhumb.ShardKey) (b [rhumb.ShardKeySize]byte) {
	binary.BigEndian.PutUint32(b[0:], uint32(k.Home.Region))
	binary.BigEndian.PutUint32(b[4:], uint32(k.Home.Slot))
	binary.BigEndian.PutUint64(b[8:], k.Sequence)
	return b
}

// GetUint64 finds a record of a KeyUint64 table. It fails as Get does.
func (t *Table) GetUint64(key uint64) (it Item, err error) {
	if t.view.readable() {
		if r, l := t.look(key); l != nil {
			r.plain(&it, l)
			return it, nil
		}
	}
	err = t.getNumber(&it, key)
	return it, err
}

// GetUint64Value is GetUint64 for who wants nothing but the value.
func (t *Table) GetUint64Value(key uint64) ([]byte, error) {
	if t.view.readable() {
		if r, l := t.look(key); l != nil {
			return r.plainValue(l), nil
		}
	}
	return t.getNumberValue(key)
}

// look is a first look: nearly every look-up finds its record in the first slot that has its fingerprint, in the version
// that the view shows, with a value that does not end. The lane is nil when that is not so. It has few instructions, no loop
// and no call, since the processor has as many look-ups under way at a time as fit its queues. The record at the start of
// the heap is never given: it is what an empty slot leads to, and may not be written yet, so that it looks like that of
// key 0.
func (t *Table) look(key uint64) (r record, l *lane) {
	hash := t.t.root.HashNumber(key)
	l = t.t.lane(hash)
	n, _ := bits.Mul64(hash, l.buckets)
	b := bucket{unsafe.Add(l.index, uintptr(n)*format.BucketSize)}
	pattern := uint64(format.Fingerprint(hash)) * lanesLow // what follows is much of lane.likely, which the compiler calls
	ref := uint64(b.ref(makeMarks(b.fingerprints(0)^pattern, b.fingerprints(1)^pattern, b.fingerprints(2)^pattern).slot()))
	if ref == 0 || ref >= l.units {
		return r, nil
	}
	r = record{unsafe.Add(l.heap, uintptr(ref)*format.RecordAlign)}
	if !r.isPlain(l, key, t.plain) {
		return r, nil
	}
	return r, l
}

// getNumberValue is kept out of GetUint64Value, which would need a larger frame for it.
//
//go:noinline
func (t *Table) getNumberValue(number uint64) ([]byte, error) {
	var it Item
	err := t.getNumber(&it, number)
	return it.Value, err
}

func (t *Table) getNumber(it *Item, number uint64) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if t.t.KeyKind != format.KeyUint64 {
		return t.refuse("it is looked up by name, not by number")
	}
	return t.find(it, t.t.root.HashNumber(number), &lookupKey{word: number})
}

func (t *Table) get(it *Item, name []byte, shardKey bool) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if t.t.KeyKind == format.KeyUint64 {
		if shardKey || len(name) != 8 {
			return t.refuse(noShardKeys)
		}
		number := binary.BigEndian.Uint64(name)
		return t.find(it, t.t.root.HashNumber(number), &lookupKey{word: number})
	}
	if !shardKey && (len(name) == 0 || len(name) > format.NameSizeMax) {
		return t.refuse("its names have 1 to 254 bytes")
	}
	hash := t.t.root.HashName(name, shardKey)
	return t.find(it, hash, &lookupKey{word: hash, name: name, named: true, shardKey: shardKey})
}

// find looks a key up and gives the version that the view shows.
func (t *Table) find(it *Item, hash uint64, key *lookupKey) error {
	g := t.t.shard(hash)
	ref, ok, err := g.lookup(hash, key)
	if err != nil {
		return err
	}
	if !ok {
		return t.absent(g, hash)
	}
	return t.emit(it, g, ref)
}

// emit makes an item of the version that the view shows of the key whose newest record is given.
func (t *Table) emit(it *Item, g *segment, newest uint32) error {
	r, ref, ok, err := t.shown(g, newest)
	if err != nil {
		return err
	}
	if !ok || t.view.gone(r) {
		return ErrNotFound
	}
	return t.fill(it, g, r, ref)
}

// lane gives the same as shard for a first look.
func (t *table) lane(hash uint64) *lane { return &t.lanes[hash>>16&uint64(len(t.lanes)-1)] }

// shard gives the generation that holds the keys of a hash.
func (t *table) shard(hash uint64) *segment {
	return t.segments[int(hash>>16)&(len(t.segments)-1)]
}

// noShardKeys says what a KeyUint64 table has in place of names.
const noShardKeys = "its names are numbers of 8 bytes"

func (t *Table) refuse(why string) error {
	return rhumb.Ef("reader.Table", rhumb.InvalidArgument, "table %q: %s", t.t.Name, why)
}
