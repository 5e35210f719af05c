package inspect

import (
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// checkMoved checks FlagMoved of each appended record, which decides whether queries find the
// record through the tree or through the spatial delta. It derives the flag from the rule in
// docs/formats/snapshot.md and compares.
func (c *checker) checkMoved() {
	c.eachVisible(c.head.BaseUnits, c.tail, func(r *record) {
		// The predecessor may itself be moved. Then the tree has no leaf with the box of the newer
		// version either.
		pred, has := c.startingAt(r.prev)
		// A key without a base record, or with another box than before, is found through the delta.
		moved := true
		switch {
		case r.flags&format.FlagTombstone != 0:
			moved = has && pred.flags&format.FlagMoved != 0
		case has && pred.flags&(format.FlagTombstone|format.FlagMoved) == 0:
			moved = pred.flags&format.FlagBox != r.flags&format.FlagBox || pred.box != r.box
		}
		if moved != (r.flags&format.FlagMoved != 0) {
			c.addRecordFault(r.ref, "the record is found by the wrong index: moved is %v", !moved)
		}
	})
}

// checkTree checks that the boxes of the tree enclose those below them, and that its leaves are the
// records of the base.
func (c *checker) checkTree() {
	nodes := c.sectionBytes(format.SectionTreeNodes)
	t, err := rtree.Open(nodes, c.sectionBytes(format.SectionTreeRefs))
	if err != nil {
		return // checkSums has reported it
	}
	seen := [2]bitmap{newBitmap(c.head.BaseUnits), newBitmap(c.head.BaseUnits)}
	for leaf := range uint32(t.Items()) {
		box, ref := t.Leaf(leaf)
		part, ok := c.partOf(ref, box)
		if !ok || ref >= c.head.BaseUnits || c.aborted.has(ref) || seen[part].setNew(ref) {
			c.addSectionFault(format.SectionTreeRefs, uint64(leaf)*4, "leaf %d, of unit %d, is no box of a record of the base, or a second time", leaf, ref)
		}
	}
	// Every leaf above is a distinct box of a record. If the number of leaves is right too, every
	// box has its leaf.
	want := 0
	c.eachVisible(0, c.head.BaseUnits, func(r *record) {
		if r.flags&format.FlagBox != 0 {
			_, n := r.box.Split()
			want += n
		}
	})
	if want != t.Items() {
		c.addSectionFault(format.SectionTreeNodes, 4, "the tree has %d leaves, the records %d boxes", t.Items(), want)
	}
	c.checkLevels(nodes)
}

// partOf returns the index of the part of a record's box that equals a plain box; ok is false if no
// part does.
func (c *checker) partOf(ref uint32, box format.Box) (part int, ok bool) {
	r, ok := c.startingAt(ref)
	if !ok || r.flags&format.FlagBox == 0 {
		return 0, false
	}
	parts, n := r.box.Split()
	for i, p := range parts[:n] {
		if p == box {
			return i, true
		}
	}
	return 0, false
}

// checkLevels checks that each box of an upper level encloses the node below it.
func (c *checker) checkLevels(nodes []byte) {
	levels := int(le.Uint32(nodes))
	lane := func(node, lane uint32) format.Box {
		p := nodes[format.TreeHeaderSize+uint64(node)*format.NodeSize+uint64(lane)*4:]
		return format.Box{MinX: int32(le.Uint32(p)), MinY: int32(le.Uint32(p[64:])), MaxX: int32(le.Uint32(p[128:])), MaxY: int32(le.Uint32(p[192:]))}
	}
	for level := 1; level < levels; level++ {
		// rtree.Open has compared these numbers with the number of items.
		first, below := le.Uint32(nodes[16+8*level:]), le.Uint32(nodes[16+8*(level-1):])
		for child := range le.Uint32(nodes[20+8*(level-1):]) {
			parent := lane(first+child/format.NodeLanes, child%format.NodeLanes)
			for i := range uint32(format.NodeLanes) {
				b := lane(below+child, i)
				// Empty lanes have MinX above MaxX; rtree.Open has checked them.
				if b.MinX <= b.MaxX && (b.MinX < parent.MinX || b.MinY < parent.MinY || b.MaxX > parent.MaxX || b.MaxY > parent.MaxY) {
					c.addSectionFault(format.SectionTreeNodes, format.TreeHeaderSize+uint64(below+child)*format.NodeSize, "level %d: a box reaches beyond that of its node", level-1)
				}
			}
		}
	}
}

// checkDelta checks each entry, that the entry is in the chain of its cell, and that each moved
// record has its entries. Tombstones need none: queries return no deleted keys.
func (c *checker) checkDelta() {
	delta, cells := c.sectionBytes(format.SectionDelta), c.sectionBytes(format.SectionDeltaCells)
	heads := uint32(len(cells) / 4)
	if heads < 2 || heads&(heads-1) != 0 {
		c.addSectionFault(format.SectionDeltaCells, 0, "%d chains are no power of two", heads)
		return
	}
	seen := [2]bitmap{newBitmap(c.tail), newBitmap(c.tail)}
	head := make([]uint32, c.deltas)
	for i := range c.deltas {
		e := delta[uint64(i)*format.DeltaEntrySize:]
		box := format.Box{MinX: int32(le.Uint32(e)), MinY: int32(le.Uint32(e[4:])), MaxX: int32(le.Uint32(e[8:])), MaxY: int32(le.Uint32(e[12:]))}
		ref, ver := le.Uint32(e[16:]), le.Uint32(e[24:])
		part, ok := c.partOf(ref, box)
		r, _ := c.startingAt(ref)
		head[i] = format.DeltaHead(box, heads)
		switch at := uint64(i) * format.DeltaEntrySize; {
		case !ok || seen[part].setNew(ref):
			c.addSectionFault(format.SectionDelta, at, "entry %d, of unit %d, is no box of a record, or a second time", i, ref)
		// Recovery marks only the record as aborted. Its entry keeps the old version.
		case r.ver != ver && r.ver != format.AbortedVersion:
			c.addSectionFault(format.SectionDelta, at, "entry %d has version %d, its record %d", i, ver, r.ver)
		case r.flags&format.FlagMoved == 0:
			c.addSectionFault(format.SectionDelta, at, "entry %d is of a record that the tree has", i)
		case !allZero(e[28:format.DeltaEntrySize]):
			c.addSectionFault(format.SectionDelta, at+28, "bytes that mean nothing are not 0")
		}
	}
	c.checkCells(delta, cells, head)
	c.eachVisible(c.head.BaseUnits, c.tail, func(r *record) {
		if r.flags&format.FlagMoved == 0 || r.flags&format.FlagBox == 0 || r.flags&format.FlagTombstone != 0 {
			return
		}
		_, n := r.box.Split()
		for part := range n {
			if !seen[part].has(r.ref) {
				c.addRecordFault(r.ref, "the spatial delta has no entry for part %d of the box", part)
			}
		}
	})
}

// checkCells follows the chains of the delta. head[i] is the chain to which entry i belongs: an
// entry in another chain would not be found by a query for its cell.
func (c *checker) checkCells(delta, cells []byte, head []uint32) {
	linked := newBitmap(c.deltas)
	for cell := range uint32(len(cells) / 4) {
		for next := le.Uint32(cells[cell*4:]); next != 0; {
			// Marking each entry also ends a walk in a circle.
			if next > c.deltas || head[next-1] != cell || linked.setNew(next-1) {
				c.addSectionFault(format.SectionDeltaCells, uint64(cell)*4, "the chain leads to entry %d, which is not one of its own", next)
				break
			}
			e := delta[uint64(next-1)*format.DeltaEntrySize:]
			// The publisher links a new entry in front of older ones, so numbers fall along a
			// chain.
			if le.Uint32(e[20:]) >= next {
				c.addSectionFault(format.SectionDelta, uint64(next-1)*format.DeltaEntrySize+20, "a chain leads to a later entry")
				break
			}
			next = le.Uint32(e[20:])
		}
	}
	for i := range c.deltas {
		// Queries cannot find an entry outside all chains. Only an entry of an unfinished commit
		// may be unlinked.
		ver := le.Uint32(delta[uint64(i)*format.DeltaEntrySize+24:])
		if ref := le.Uint32(delta[uint64(i)*format.DeltaEntrySize+16:]); !linked.has(i) && ver <= c.limit && (ref >= c.tail || !c.aborted.has(ref)) {
			c.addSectionFault(format.SectionDelta, uint64(i)*format.DeltaEntrySize, "no chain leads to entry %d", i)
		}
	}
}
