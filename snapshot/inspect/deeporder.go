package inspect

import (
	"bytes"
	"cmp"
	"fmt"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// orderFirst is the first word that a node of a skip list may take.
const orderFirst = format.OrderHead + 2 + format.OrderHeightMax

// compareKeys orders two records as an ordered table does: names before shard keys, each by their
// bytes, and numbers by value.
func compareKeys(a, b *record) int {
	if a.shardKey != b.shardKey {
		if a.shardKey {
			return 1
		}
		return -1
	}
	if a.name == nil && b.name == nil {
		return cmp.Compare(a.word, b.word)
	}
	return bytes.Compare(a.name, b.name)
}

// checkOrder checks that the order lists each record of the base once, in ascending key order.
func (c *checker) checkOrder() {
	sec, _ := c.head.Find(format.SectionOrder)
	refs := c.sectionBytes(format.SectionOrder)
	if sec.Items != c.head.Records {
		c.addSectionFault(format.SectionOrder, 0, "%d keys are ordered, the base has %d", sec.Items, c.head.Records)
	}
	var last record
	for i := range min(sec.Items, sec.Size/4) {
		r, ok := c.startingAt(le.Uint32(refs[i*4:]))
		if !ok || r.ref >= c.head.BaseUnits || c.aborted.has(r.ref) {
			c.addSectionFault(format.SectionOrder, i*4, "no record of the base begins at unit %d", le.Uint32(refs[i*4:]))
			continue
		}
		// Strictly ascending keys also prove that no key is listed twice.
		if i > 0 && compareKeys(&last, &r) >= 0 {
			c.addSectionFault(format.SectionOrder, i*4, "the keys do not rise")
		}
		last = r
	}
}

// node is a node of the skip list, as checkSkip finds it in storage order.
type node struct {
	record
	height uint32
	linked uint32 // a bit for each level on which a link leads to it
}

// checkSkip reads the nodes of the skip list in storage order, and then follows every level. So it
// also finds a link into the middle of a node.
func (c *checker) checkSkip() {
	words := c.sectionBytes(format.SectionOrderDelta)
	word := func(at uint32) uint32 { return le.Uint32(words[uint64(at)*4:]) }
	if word(format.OrderHead) != format.NoPrev || word(format.OrderHead+1) != format.OrderHeightMax {
		c.addSectionFault(format.SectionOrderDelta, format.OrderHead*4, "the head of the ordered delta is damaged")
	}
	// Nodes are stored contiguously in the order of allocation, so all of them are found without
	// following a link.
	nodes := map[uint32]*node{}
	for at := uint32(orderFirst); at < c.words; {
		n := &node{}
		ok := at+2 <= c.words
		if ok {
			n.height = word(at + 1)
			n.record, ok = c.startingAt(word(at))
		}
		// After a node with a wrong height, the start of the next node is unknown.
		if !ok || n.height == 0 || n.height > format.OrderHeightMax || at+2+n.height > c.words || n.ref < c.head.BaseUnits {
			c.addSectionFault(format.SectionOrderDelta, uint64(at)*4, "a node is not whole, or is of no appended record")
			return
		}
		nodes[at] = n
		at += 2 + n.height
	}
	for level := range uint32(format.OrderHeightMax) {
		var last *node
		// More steps than nodes mean a circle.
		for at, steps := word(format.OrderHead+2+level), 0; at != 0; steps++ {
			n, ok := nodes[at]
			if !ok || n.height <= level || steps > len(nodes) {
				c.addSectionFault(format.SectionOrderDelta, uint64(at)*4, "level %d leads to no node of its height", level)
				break
			}
			if last != nil && compareKeys(&last.record, &n.record) >= 0 {
				c.addSectionFault(format.SectionOrderDelta, uint64(at)*4, "level %d: the keys do not rise", level)
			}
			n.linked |= 1 << level
			last = n
			at = word(at + 2 + level)
		}
	}
	c.checkNodes(nodes)
}

// checkNodes checks that each key that the base lacks has a node on the lowest level, and that the
// node of a record that the image shows is linked on all its levels. A node of an aborted record is
// reused when its key is written again. Its publisher may have died between two levels, so any
// number of linked levels is valid.
func (c *checker) checkNodes(nodes map[uint32]*node) {
	lacking := map[string]uint32{} // the first record of each key that the base lacks
	c.eachVisible(c.head.BaseUnits, c.tail, func(r *record) {
		if r.prev == format.NoPrev {
			lacking[r.keyString()] = r.ref
		}
	})
	for at, n := range nodes {
		first, ok := lacking[n.keyString()]
		switch all := uint32(1)<<n.height - 1; {
		case n.flags&format.FlagTombstone != 0 || ok && n.ref > first:
			c.addSectionFault(format.SectionOrderDelta, uint64(at)*4, "a node is of the record at unit %d, which is not the first of its key", n.ref)
		// An unfinished commit may have linked the node on any number of levels.
		case n.ver > c.limit:
		case !ok:
			c.addSectionFault(format.SectionOrderDelta, uint64(at)*4, "a node is of a key that the base has")
		case n.linked != all:
			c.addSectionFault(format.SectionOrderDelta, uint64(at)*4, "levels %b lead to a node, and not %b", n.linked, all)
		}
		if n.linked&1 != 0 {
			delete(lacking, n.keyString())
		}
	}
	for _, ref := range lacking {
		c.addRecordFault(ref, "the ordered delta lacks the key")
	}
}

// keyString returns a string that is unique to the record's key within its table.
func (r *record) keyString() string {
	if r.name == nil {
		return string(le.AppendUint64(nil, r.word))
	}
	return fmt.Sprint(r.shardKey, string(r.name))
}
