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

// A scan merges the shards, since keys are spread over them by their hashes. Within a shard it
// merges the sorted base with the skip list of keys that came since. Both lists hold keys and not
// versions: whether the view shows a version of the key, and which, is decided when the key is
// visited.

// Scan returns the records of an ordered table whose names begin with a prefix, in the order of
// their keys: numbers by value, names by their bytes, and shard keys after all names and only if
// the prefix is empty. In a KeyUint64 table the prefix is a prefix of the number's 8 bytes,
// big-endian. It fails with kind InvalidArgument if the table is not ordered.
func (t *Table) Scan(prefix []byte) iter.Seq2[Item, error] {
	return sequenceOf(func(fn func(*Item) bool) error { return t.VisitScan(prefix, fn) })
}

// VisitScan is Scan with a visitor; see VisitAll.
func (t *Table) VisitScan(prefix []byte, fn func(*Item) bool) error {
	if err := t.view.check(); err != nil {
		return err
	}
	if !t.t.Ordered() {
		return t.refuse("it keeps no order, so prefix scans are not possible; `rhumb table create NAME --snapshot=ordered` creates an ordered table")
	}
	from, until, ok := t.prefixBounds(prefix)
	if !ok {
		return nil
	}
	m := make(merge, 0, len(t.t.segments))
	for _, g := range t.t.segments {
		c := cursor{t: t, g: g}
		if err := c.seekKey(from); err != nil {
			return err
		}
		// A shard without a key in the range takes no part in the merge.
		if c.valid {
			m = append(m, c)
		}
	}
	// Build the heap bottom-up: each cursor starts at the first key of its own shard.
	for i := len(m)/2 - 1; i >= 0; i-- {
		m.siftDown(i)
	}
	return ignoreStop(t.mergeCursors(m, until, fn))
}

// mergeCursors visits the keys of all cursors in order, as long as they are within the bounds.
func (t *Table) mergeCursors(m merge, within func(orderKey) bool, fn func(*Item) bool) error {
	for len(m) > 0 && within(m[0].key) {
		c := &m[0]
		if err := c.showKey(fn); err != nil {
			return err
		}
		if err := c.nextKey(); err != nil {
			return err
		}
		// The shard is exhausted: its cursor leaves the heap.
		if !c.valid {
			m[0] = m[len(m)-1]
			m = m[:len(m)-1]
		}
		m.siftDown(0)
	}
	return nil
}

// orderKey is a key in the form in which ordered tables compare it.
type orderKey struct {
	number   uint64
	name     []byte
	shardKey bool
}

// compareKey orders shard keys after all names, and otherwise numbers by value and names by their
// bytes.
func (k orderKey) compareKey(o orderKey) int {
	// The publisher sorts the base by the same rule; see docs/formats/snapshot.md.
	if k.shardKey != o.shardKey {
		if k.shardKey {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(k.number, o.number), bytes.Compare(k.name, o.name))
}

// prefixBounds returns the lowest key with a prefix, and a function that reports whether a key has
// the prefix. ok is false if no key can have it.
func (t *Table) prefixBounds(prefix []byte) (from orderKey, within func(orderKey) bool, ok bool) {
	if t.t.KeyKind == format.KeyName {
		return orderKey{name: prefix}, func(k orderKey) bool {
			return len(prefix) == 0 || !k.shardKey && bytes.HasPrefix(k.name, prefix)
		}, true
	}
	// A number has 8 bytes, so no key can have a longer prefix.
	if len(prefix) > 8 {
		return from, nil, false
	}
	var b [8]byte
	// The lowest number with the prefix has zeros in the remaining bytes, the highest has ones.
	copy(b[:], prefix)
	first := binary.BigEndian.Uint64(b[:])
	last := first | (uint64(1)<<(64-8*len(prefix)) - 1) // a shift by 64 yields 0, and 0-1 sets every bit
	return orderKey{number: first}, func(k orderKey) bool { return k.number <= last }, true
}

// cursor walks the keys of one shard in order. It merges two lists: the order of the base, and the
// skip list of the keys that the base lacks. No key is in both.
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
	steps   int // nodes passed; more steps than words mean a circle
}

// keyAt returns the key of a record.
func (c *cursor) keyAt(ref uint32) (orderKey, error) {
	r, ok := c.g.recordAt(ref)
	if !ok {
		return orderKey{}, c.g.corruptAt("an ordered reference points past the heap", c.g.refOffset(ref))
	}
	if c.t.t.KeyKind == format.KeyUint64 {
		return orderKey{number: r.word()}, nil
	}
	name, shardKey, ok := c.g.name(r, ref)
	if !ok {
		return orderKey{}, c.g.corruptAt("a key runs past the heap", c.g.refOffset(ref))
	}
	return orderKey{name: name, shardKey: shardKey}, nil
}

// seekKey moves to the first key that is not below from.
func (c *cursor) seekKey(from orderKey) (err error) {
	c.base = sort.Search(len(c.g.order), func(i int) bool {
		k, e := c.keyAt(c.g.order[i])
		// sort.Search has no errors. Reporting a match ends the search soon, and the error is
		// returned below.
		if e != nil {
			err = e
			return true
		}
		return k.compareKey(from) >= 0
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
	return c.chooseLower()
}

// skipWord reads a word of the skip list. The load is atomic, because the publisher links nodes
// meanwhile.
func (c *cursor) skipWord(at uint32) (uint32, error) {
	if uint64(at) >= uint64(len(c.g.skip)) {
		return 0, c.g.corruptAt("the ordered delta leads past its end", uint64(at)*4)
	}
	return atomic.LoadUint32(&c.g.skip[at]), nil
}

// seekNode finds the first node that is not below from. It descends the levels of the skip list and
// advances on each level while keys are below from.
func (c *cursor) seekNode(from orderKey) error {
	// A section that cannot hold the head node holds no list.
	if len(c.g.skip) < format.OrderHead+2+format.OrderHeightMax {
		return nil
	}
	at := uint32(format.OrderHead)
	for level := format.OrderHeightMax - 1; level >= 0; {
		next, key, err := c.nodeAfter(at, uint32(level))
		if err != nil {
			return err
		}
		if next != 0 && key.compareKey(from) < 0 {
			// The search continues from this node on the same level.
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

// nodeAfter returns the node that follows another on a level, 0 at the end, and its key.
func (c *cursor) nodeAfter(at, level uint32) (next uint32, key orderKey, err error) {
	if next, err = c.skipWord(at + 2 + level); err != nil || next == 0 {
		return 0, key, err
	}
	// Nodes do not share words. More steps than words mean a circle, which only damage can make.
	if c.steps++; c.steps > len(c.g.skip) {
		return 0, key, c.g.corruptAt("the ordered delta runs in a circle", uint64(at)*4)
	}
	ref, err := c.skipWord(next)
	if err != nil {
		return 0, key, err
	}
	key, err = c.keyAt(ref)
	return next, key, err
}

// loadBase reads the key at the position in the order.
func (c *cursor) loadBase() (err error) {
	if c.base < len(c.g.order) {
		c.baseKey, err = c.keyAt(c.g.order[c.base])
	}
	return err
}

// chooseLower selects the lower of the two keys.
func (c *cursor) chooseLower() (err error) {
	hasBase := c.base < len(c.g.order)
	c.valid = hasBase || c.node != 0
	// Equal keys cannot occur: a key of the base has no node.
	c.inBase = hasBase && (c.node == 0 || c.baseKey.compareKey(c.nodeKey) < 0)
	switch {
	case c.inBase:
		c.key, c.ref = c.baseKey, c.g.order[c.base]
	case c.valid:
		c.key = c.nodeKey
		c.ref, err = c.skipWord(c.node)
	}
	return err
}

// nextKey moves to the next key.
func (c *cursor) nextKey() (err error) {
	if c.inBase {
		c.base++
		err = c.loadBase()
	} else {
		c.node, c.nodeKey, err = c.nodeAfter(c.node, 0)
	}
	if err != nil {
		return err
	}
	return c.chooseLower()
}

// showKey visits the version of the key that the view shows. A record of the base without a newer
// version needs no look-up.
func (c *cursor) showKey(fn func(*Item) bool) error {
	r, ok := c.g.recordAt(c.ref)
	if !ok {
		return c.g.corruptAt("an ordered reference points past the heap", c.g.refOffset(c.ref))
	}
	// In a closed view this is right too: showNewest follows the chain from the base record, which
	// has no newer version.
	if c.inBase && !c.g.isChanged(c.ref) {
		return c.t.showNewest(c.g, c.ref, fn)
	}
	newest, ok, err := c.t.newestOf(c.g, r, c.ref)
	if err != nil || !ok {
		return err
	}
	return c.t.showNewest(c.g, newest, fn)
}

// merge is a heap of cursors with the lowest key on top. No key is in two shards.
type merge []cursor

// siftDown moves a cursor to its place below.
func (m merge) siftDown(i int) {
	for {
		// The two children of a heap node are at 2i+1 and 2i+2.
		low := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(m) && m[child].key.compareKey(m[low].key) < 0 {
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
