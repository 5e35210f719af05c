package reader

import (
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Table is a table of a view. It is valid as long as the view is locked.
type Table struct {
	view View
	t    *table
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
	var b [rhumb.ShardKeySize]byte
	binary.BigEndian.PutUint32(b[0:], uint32(k.Home.Region))
	binary.BigEndian.PutUint32(b[4:], uint32(k.Home.Slot))
	binary.BigEndian.PutUint64(b[8:], k.Sequence)
	var it Item
	err := t.get(&it, b[:], true)
	return it, err
}

// GetUint64 finds a record of a KeyUint64 table. It fails as Get does.
func (t *Table) GetUint64(key uint64) (it Item, err error) {
	if t.view.check() != nil || t.t.careful {
		err = t.getNumber(&it, key)
		return it, err
	}
	hash := t.t.root.HashNumber(key)
	g := t.t.shard(hash)
	if r, ref, ok := g.guess(hash); ok && r.word() == key && t.plain(&it, g, r, ref) {
		return it, nil
	}
	err = t.find(&it, hash, &lookupKey{word: key})
	return it, err
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
			return t.refuse("its names are numbers of 8 bytes")
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

// shard gives the generation that holds the keys of a hash.
func (t *table) shard(hash uint64) *segment {
	return t.segments[int(hash>>16)&(len(t.segments)-1)]
}

func (t *Table) refuse(why string) error {
	return rhumb.Ef("reader.Table", rhumb.InvalidArgument, "table %q: %s", t.t.Name, why)
}
