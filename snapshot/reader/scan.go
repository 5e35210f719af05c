package reader

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"iter"
	"sort"
	"sync/atomic"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Scan gives the records of an ordered table whose names begin with a prefix, in the order of their keys: numbers by
// value, names bytewise, shard keys after all names and only when the prefix is empty. In a KeyUint64 table the prefix is of
// the number's 8 bytes, big-endian. It fails with kind InvalidArgument when the table is not ordered.
func (t *Table) Scan(prefix []byte) iter.Seq2[Item, error] {
	return seq(func(fn func(*Item) bool) error { return t.VisitScan(prefix, fn) })
}

// VisitScan is Scan with a visitor, as VisitAll has one.
func (t *Table) VisitScan(prefix []byte, fn func(*Item) bool) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if !t.t.Ordered() {
		return t.refuse("it keeps no order, so it can only be walked whole; `rhumb table create NAME --snapshot=ordered` makes a table that does")
	}
	from, until, ok := t.bounds(prefix)
	if !ok {
		return nil
	}
	m := make(merge, 0, len(t.t.segments))
	for _, g := range t.t.segments {
		c := cursor{t: t, g: g}
		if err := c.seek(from); err != nil {
			return err
		}
		if c.valid {
			m = append(m, c)
		}
	}
	for i := len(m)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
	return stopped(t.merge(m, until, fn))
}

// merge visits the keys of all cursors in order, as long as they are within.
func (t *Table) merge(m merge, within func(orderKey) bool, fn func(*Item) bool) error {
	for len(m) > 0 && within(m[0].key) {
		c := &m[0]
		if err := c.show(fn); err != nil {
			return err
		}
		if err := c.next(); err != nil {
			return err
		}
		if !c.valid {
			m[0] = m[len(m)-1]
			m = m[:len(m)-1]
		}
		m.down(0)
	}
	return nil
}

// orderKey is a key as it is ordered.
type orderKey struct {
	number   uint64
	name     []byte
	shardKey bool
}

func (k orderKey) compare(o orderKey) int {
	if k.shardKey != o.shardKey {
		if k.shardKey {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(k.number, o.number), bytes.Compare(k.name, o.name))
}

// bounds gives the lowest key with a prefix, and what tells the keys that have it from those that follow.
func (t *Table) bounds(prefix []byte) (from orderKey, within func(orderKey) bool, ok bool) {
	if t.t.KeyKind == format.KeyName {
		return orderKey{name: prefix}, func(k orderKey) bool {
			return len(prefix) == 0 || !k.shardKey && bytes.HasPrefix(k.name, prefix)
		}, true
	}
	if len(prefix) > 8 {
		return from, nil, false
	}
	var b [8]byte
	copy(b[:], prefix)
	first := binary.BigEndian.Uint64(b[:])
	last := first | (uint64(1)<<(64-8*len(prefix)) - 1) // a shift by 64 gives 0, and 0-1 every bit
	return orderKey{number: first}, func(k orderKey) bool { return k.number <= last }, true
}

// cursor walks the keys of one shard in order: those of the base, and those of the skip list, which the base lacks.
type cursor struct {
	t *Table
	g *segment

	valid  bool
	inBase bool // the key is the base's
	key    orderKey
	ref    uint32

	base    int // position in the order
	baseKey orderKey
	node    uint32 // word of the node, 0 at the end
	nodeKey orderKey
	steps   int // nodes passed; more than there are words is a circle
}

// keyAt gives the key of the record that stands at a place in the file, which is named when it is damaged.
func (c *cursor) keyAt(ref uint32) (orderKey, error) {
	r, ok := c.g.record(ref)
	if !ok {
		return orderKey{}, c.g.corrupt("an ordered reference points past the heap", c.g.refOffset(ref))
	}
	if c.t.t.KeyKind == format.KeyUint64 {
		return orderKey{number: r.word()}, nil
	}
	name, shardKey, ok := c.g.name(r, ref)
	if !ok {
		return orderKey{}, c.g.corrupt("a key runs past the heap", c.g.refOffset(ref))
	}
	return orderKey{name: name, shardKey: shardKey}, nil
}

// seek goes to the first key that is not below from.
func (c *cursor) seek(from orderKey) (err error) {
	c.base = sort.Search(len(c.g.order), func(i int) bool {
		k, e := c.keyAt(c.g.order[i])
		if e != nil {
			err = e
			return true
		}
		return k.compare(from) >= 0
	})
	if err != nil {
		return err
	}
	if err := c.seekNode(from); err != nil {
		return err
	}
	if err := c.loadBase(); err != nil {
		return err
	}
	return c.choose()
}

// word reads a word of the skip list.
func (c *cursor) word(at uint32) (uint32, error) {
	if uint64(at) >= uint64(len(c.g.skip)) {
		return 0, c.g.corrupt("the ordered delta leads past its end", uint64(at)*4)
	}
	return atomic.LoadUint32(&c.g.skip[at]), nil
}

// seekNode goes down the levels of the skip list, on each as far as keys are below from.
func (c *cursor) seekNode(from orderKey) error {
	if len(c.g.skip) < format.OrderHead+2+format.OrderHeightMax {
		return nil
	}
	at := uint32(format.OrderHead)
	for level := format.OrderHeightMax - 1; level >= 0; {
		next, key, err := c.after(at, uint32(level))
		if err != nil {
			return err
		}
		if next != 0 && key.compare(from) < 0 {
			at = next
			continue
		}
		if level == 0 {
			c.node, c.nodeKey = next, key
		}
		level--
	}
	return nil
}

// after gives the node that follows one on a level, 0 at the end, and its key.
func (c *cursor) after(at, level uint32) (next uint32, key orderKey, err error) {
	if next, err = c.word(at + 2 + level); err != nil || next == 0 {
		return 0, key, err
	}
	if c.steps++; c.steps > len(c.g.skip) {
		return 0, key, c.g.corrupt("the ordered delta runs in a circle", uint64(at)*4)
	}
	ref, err := c.word(next)
	if err != nil {
		return 0, key, err
	}
	key, err = c.keyAt(ref)
	return next, key, err
}

func (c *cursor) loadBase() (err error) {
	if c.base < len(c.g.order) {
		c.baseKey, err = c.keyAt(c.g.order[c.base])
	}
	return err
}

// choose takes the lower of the two keys.
func (c *cursor) choose() (err error) {
	hasBase := c.base < len(c.g.order)
	c.valid = hasBase || c.node != 0
	c.inBase = hasBase && (c.node == 0 || c.baseKey.compare(c.nodeKey) < 0)
	switch {
	case c.inBase:
		c.key, c.ref = c.baseKey, c.g.order[c.base]
	case c.valid:
		c.key = c.nodeKey
		c.ref, err = c.word(c.node)
	}
	return err
}

// next goes to the next key.
func (c *cursor) next() (err error) {
	if c.inBase {
		c.base++
		err = c.loadBase()
	} else {
		c.node, c.nodeKey, err = c.after(c.node, 0)
	}
	if err != nil {
		return err
	}
	return c.choose()
}

// show visits the version of the key that the view shows.
func (c *cursor) show(fn func(*Item) bool) error {
	r, ok := c.g.record(c.ref)
	if !ok {
		return c.g.corrupt("an ordered reference points past the heap", c.g.refOffset(c.ref))
	}
	if c.inBase && !c.g.isChanged(c.ref) {
		return c.t.show(c.g, c.ref, fn)
	}
	newest, ok, err := c.t.newestOf(c.g, r, c.ref)
	if err != nil || !ok {
		return err
	}
	return c.t.show(c.g, newest, fn)
}

// merge is a heap of cursors, the one with the lowest key on top. Shards have no key in common.
type merge []cursor

func (m merge) down(i int) {
	for {
		low := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(m) && m[child].key.compare(m[low].key) < 0 {
				low = child
			}
		}
		if low == i {
			return
		}
		m[i], m[low] = m[low], m[i]
		i = low
	}
}
