package rtree

import (
	"math/bits"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Tree is a packed R-tree in two sections of a segment. It is immutable; the zero value is a tree
// over nothing.
type Tree struct {
	shape
	items uint32
	nodes []byte // without the header
	refs  []byte // 16 references for each leaf node
	// Data of each level for the assembly kernels: its first node, the number of its last node, and
	// the lanes of the last node that have a child. Lanes without a child touch no query, unless
	// they were damaged after Open. The mask keeps even those from being followed.
	at   [levelsMax]*node
	last [levelsMax]uint32
	tail [levelsMax]uint32
}

// Open returns the tree in the sections SectionTreeNodes and SectionTreeRefs, which must stay
// mapped while the tree is used. They may be larger than the tree. Open checks the header and the
// empty lanes; after that no search can leave the sections, whatever the boxes contain. It returns
// Corrupt with the offset in the section.
func Open(nodes, refs []byte) (Tree, error) {
	const op rhumb.Op = "rtree.Open"
	if len(nodes) < format.TreeHeaderSize {
		return Tree{}, rhumb.Ef(op, rhumb.Corrupt, "tree nodes: %d bytes, want a header of %d", len(nodes), format.TreeHeaderSize)
	}
	// The shape follows from the number of items. The header is only compared with it, so a damaged
	// header cannot direct a search.
	items := le.Uint32(nodes[4:])
	t := Tree{shape: shapeOf(items), items: items}
	if n := le.Uint32(nodes); n != uint32(t.levels) {
		return Tree{}, rhumb.Ef(op, rhumb.Corrupt, "tree nodes, offset 0: %d levels for %d items, want %d", n, items, t.levels)
	}
	for i := range t.levels {
		first, count := le.Uint32(nodes[16+8*i:]), le.Uint32(nodes[20+8*i:])
		if first != t.first[i] || count != t.count[i] {
			return Tree{}, rhumb.Ef(op, rhumb.Corrupt, "tree nodes, offset %d: level %d has %d nodes from %d, want %d from %d",
				16+8*i, i, count, first, t.count[i], t.first[i])
		}
	}
	nodeBytes, refBytes := uint64(t.shape.nodeCount())*format.NodeSize, uint64(t.count[0])*format.NodeLanes*4
	if have := uint64(len(nodes) - format.TreeHeaderSize); have < nodeBytes || uint64(len(refs)) < refBytes {
		return Tree{}, rhumb.Ef(op, rhumb.Corrupt, "tree of %d items in %d bytes of nodes and %d of references, want %d and %d",
			items, have, len(refs), nodeBytes, refBytes)
	}
	t.nodes, t.refs = nodes[format.TreeHeaderSize:][:nodeBytes], refs[:refBytes]
	// checkPadding reads nodes, so the sizes must have been checked before.
	t.indexLevels()
	if err := t.checkPadding(op); err != nil {
		return Tree{}, err
	}
	return t, nil
}

// indexLevels fills in the data of each level for the kernels.
func (t *Tree) indexLevels() {
	children := t.items
	for level := range t.levels {
		t.at[level], t.last[level] = t.nodeAt(level, 0), t.count[level]-1
		t.tail[level] = allLanes >> (t.count[level]*format.NodeLanes - children)
		children = t.count[level]
	}
}

// childLanes returns the lanes of a node that have a child, or a leaf.
func (t *Tree) childLanes(level int, node uint32) uint32 {
	if node == t.last[level] {
		return t.tail[level]
	}
	return allLanes
}

// checkPadding checks the last node of each level: the lanes without a child must match no query.
// This is the only property of boxes that a search relies on.
func (t *Tree) checkPadding(op rhumb.Op) error {
	children := t.items
	for level := range t.levels {
		last := t.count[level] - 1
		for lane := children - last*format.NodeLanes; lane < format.NodeLanes; lane++ {
			if b := t.boxAt(level, last, lane); b != empty {
				at := format.TreeHeaderSize + int(t.first[level]+last)*format.NodeSize + int(lane)*4
				return rhumb.Ef(op, rhumb.Corrupt, "tree nodes, offset %d: lane %d of the last node of level %d holds a box and has no child",
					at, lane, level)
			}
		}
		children = t.count[level]
	}
	return nil
}

// Items returns the number of leaves. Leaves are plain boxes, so a record whose box crosses the
// antimeridian counts twice.
func (t *Tree) Items() int { return int(t.items) }

// Bounds returns the box around all boxes; ok is false for a tree over nothing.
func (t *Tree) Bounds() (b format.Box, ok bool) {
	if t.levels == 0 {
		return format.Box{}, false
	}
	b = empty
	for lane := range uint32(format.NodeLanes) {
		// Empty lanes do not change the union.
		c := t.boxAt(t.levels-1, 0, lane)
		b = format.Box{MinX: min(b.MinX, c.MinX), MinY: min(b.MinY, c.MinY), MaxX: max(b.MaxX, c.MaxX), MaxY: max(b.MaxY, c.MaxY)}
	}
	return b, true
}

// Leaf returns the box and the reference of a leaf, which must be below Items.
func (t *Tree) Leaf(leaf uint32) (b format.Box, ref uint32) {
	return t.boxAt(0, leaf/format.NodeLanes, leaf%format.NodeLanes), le.Uint32(t.refs[4*leaf:])
}

// Bounds of Effort.
const (
	effortSamples  = 64
	effortNodesMax = 1024 // of a sample
)

// Effort returns how many nodes a query for the box of a leaf reads, as the mean over a sample of
// leaves: the cost of a small query in a populated place. A tree with leaves in Hilbert order is
// near the least possible effort. A tree with leaves in another order, or whose boxes moved since,
// has a greater effort and finds the same items.
func (t *Tree) Effort() float64 {
	n := min(effortSamples, t.items)
	if n == 0 {
		return 0
	}
	read := 0
	for i := range n {
		b, _ := t.Leaf(uint32(uint64(i) * uint64(t.items) / uint64(n)))
		// The limit bounds the time for a tree whose boxes overlap everywhere.
		left := effortNodesMax
		t.countReads(t.levels-1, 0, &b, &left)
		// What is left of the limit was not read.
		read += effortNodesMax - left
	}
	return float64(read) / float64(n)
}

// countReads subtracts from left the number of nodes that a query reads from a node downwards,
// until left is 0.
func (t *Tree) countReads(level int, n uint32, query *format.Box, left *int) {
	if *left == 0 {
		return
	}
	*left--
	if level == 0 {
		return
	}
	for lanes := t.childLanes(level, n); lanes != 0; lanes &= lanes - 1 {
		lane := uint32(bits.TrailingZeros32(lanes))
		if b := t.boxAt(level, n, lane); b.Intersects(*query) {
			t.countReads(level-1, n*format.NodeLanes+lane, query, left)
		}
	}
}

// nodeAt returns a node of a level.
func (t *Tree) nodeAt(level int, n uint32) *node {
	return (*node)(t.nodes[int(t.first[level]+n)*format.NodeSize:])
}

// nodeRefs returns the references of a leaf node.
func (t *Tree) nodeRefs(n uint32) *nodeRefs {
	return (*nodeRefs)(t.refs[int(n)*4*format.NodeLanes:])
}

// boxAt returns the box in a lane of a node.
func (t *Tree) boxAt(level int, node, lane uint32) format.Box {
	return t.nodeAt(level, node).laneBox(lane)
}
