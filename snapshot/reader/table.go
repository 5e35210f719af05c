package reader

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Table is a table of a view. It is valid while the view is locked.
type Table struct {
	view  View
	t     *table
	plain uint64 // the view shows every record below this version; 0 if each record needs a second look
}

// lookupKey is the key of a look-up, in the form in which records store it.
type lookupKey struct {
	word     uint64 // the number, or the hash of the name
	name     []byte
	named    bool
	shardKey bool
}

// Info returns the table's entry: the kind of its keys and its features.
func (t *Table) Info() format.Table {
	if t.t == nil {
		return format.Table{}
	}
	return t.t.Table
}

// View returns the view that the table belongs to.
func (t *Table) View() View { return t.view }

// Get returns the record of a name. In a KeyUint64 table a name is a number of 8 bytes, big-endian.
// Get fails with ErrNotFound if the key has no value, with ErrExpired or ErrUnlocked if the view
// may not be read, with kind InvalidArgument if the table cannot hold such a name, and with Corrupt
// if the image is damaged.
func (t *Table) Get(name []byte) (Item, error) {
	var it Item
	err := t.getName(&it, name, false)
	return it, err
}

// GetShardKey returns a record of a KeyName table that the server named. It fails as Get does.
func (t *Table) GetShardKey(k rhumb.ShardKey) (Item, error) {
	name := shardKeyName(k)
	var it Item
	err := t.getName(&it, name[:], true)
	return it, err
}

// shardKeyName returns the bytes of a shard key as records store them.
func shardKeyName(k rhumb.ShardKey) (b [rhumb.ShardKeySize]byte) {
	binary.BigEndian.PutUint32(b[0:], uint32(k.Home.Region))
	binary.BigEndian.PutUint32(b[4:], uint32(k.Home.Slot))
	binary.BigEndian.PutUint64(b[8:], k.Sequence)
	return b
}

// GetUint64 returns a record of a KeyUint64 table. It fails as Get does.
func (t *Table) GetUint64(key uint64) (it Item, err error) {
	if t.view.isReadable() {
		if r, l := t.firstLook(key); l != nil {
			r.fillPlain(&it, l)
			return it, nil
		}
	}
	err = t.getNumber(&it, key)
	return it, err
}

// GetUint64Value is like GetUint64 but returns only the value.
func (t *Table) GetUint64Value(key uint64) ([]byte, error) {
	if t.view.isReadable() {
		if r, l := t.firstLook(key); l != nil {
			return r.plainValue(l), nil
		}
	}
	return t.getNumberValue(key)
}

// firstLook is the fast path of a look-up. Nearly every look-up finds its record in the first slot
// with the fingerprint, in the version that the view shows, with a value that does not expire.
// Otherwise firstLook returns a nil lane.
//
// It has few instructions, no loop and no call. While this look-up waits for memory, the processor
// starts the next ones as far as its queues reach. With fewer instructions, more of them are in
// flight.
//
// The record at the start of the heap is never returned. An empty slot refers to it, and it may not
// be written yet, in which case it looks like the record of key 0.
func (t *Table) firstLook(key uint64) (r record, l *lane) {
	// The kind of keys is not checked: in a table of names plain is 0, so no record passes below.
	hash := t.t.root.HashNumber(key)
	l = t.t.laneOf(hash)
	// The high half of the product is a number below the bucket count, without a division.
	n, _ := bits.Mul64(hash, l.buckets)
	b := bucket{unsafe.Add(l.index, uintptr(n)*format.BucketSize)}
	pattern := uint64(format.Fingerprint(hash)) * lanesLow // lane.likelyRecord inlined by hand, because the compiler would call it
	ref := uint64(b.ref(makeMarks(b.fingerprints(0)^pattern, b.fingerprints(1)^pattern, b.fingerprints(2)^pattern).firstSlot()))
	// Below l.units a plain record ends within the heap, whatever its length says: therefore the
	// unchecked read of the value is safe.
	if ref == 0 || ref >= l.units {
		return r, nil
	}
	r = record{unsafe.Add(l.heap, uintptr(ref)*format.RecordAlign)}
	if !r.isPlain(l, key, t.plain) {
		return r, nil
	}
	return r, l
}

// getNumberValue is not inlined into GetUint64Value, which would need a larger frame for it.
//
//go:noinline
func (t *Table) getNumberValue(number uint64) ([]byte, error) {
	var it Item
	err := t.getNumber(&it, number)
	return it.Value, err
}

// getNumber is the slow path of a look-up by number.
func (t *Table) getNumber(it *Item, number uint64) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if t.t.KeyKind != format.KeyUint64 {
		return t.refuse("it is looked up by name, not by number")
	}
	return t.findKey(it, t.t.root.HashNumber(number), &lookupKey{word: number})
}

// getName looks a name up.
func (t *Table) getName(it *Item, name []byte, shardKey bool) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if t.t.KeyKind == format.KeyUint64 {
		if shardKey || len(name) != 8 {
			return t.refuse(noShardKeys)
		}
		// Big-endian order makes prefixes of the 8 bytes agree with the order of the numbers in
		// scans.
		number := binary.BigEndian.Uint64(name)
		return t.findKey(it, t.t.root.HashNumber(number), &lookupKey{word: number})
	}
	if !shardKey && (len(name) == 0 || len(name) > format.NameSizeMax) {
		return t.refuse("its names have 1 to 254 bytes")
	}
	hash := t.t.root.HashName(name, shardKey)
	return t.findKey(it, hash, &lookupKey{word: hash, name: name, named: true, shardKey: shardKey})
}

// findKey looks a key up and fills the item with the version that the view shows.
func (t *Table) findKey(it *Item, hash uint64, key *lookupKey) error {
	g := t.t.shardOf(hash)
	ref, ok, err := g.findNewest(hash, key)
	if err != nil {
		return err
	}
	if !ok {
		return t.absentError(g, hash)
	}
	return t.emitShown(it, g, ref)
}

// emitShown fills an item with the version that the view shows, given the newest record of the key.
func (t *Table) emitShown(it *Item, g *segment, newest uint32) error {
	r, ref, ok, err := t.shownVersion(g, newest)
	if err != nil {
		return err
	}
	if !ok || t.view.hasNoValue(r) {
		return ErrNotFound
	}
	return t.fillItem(it, g, r, ref)
}

// laneOf returns the lane of the shard that holds the keys of a hash.
func (t *table) laneOf(hash uint64) *lane { return &t.lanes[hash>>16&uint64(len(t.lanes)-1)] }

// shardOf returns the generation that holds the keys of a hash.
func (t *table) shardOf(hash uint64) *segment {
	return t.segments[int(hash>>16)&(len(t.segments)-1)]
}

// noShardKeys is the error for a name that cannot be a number.
const noShardKeys = "its names are numbers of 8 bytes"

// refuse returns an error of kind InvalidArgument.
func (t *Table) refuse(why string) error {
	return rhumb.Ef("reader.Table", rhumb.InvalidArgument, "table %q: %s", t.t.Name, why)
}
