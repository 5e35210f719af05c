package catalog

import (
	"iter"
	"slices"
	"sort"
)

// treeKeysMax is the maximum number of keys in a tree node. It is odd, so that a full node splits
// into two halves of equal size around its middle key.
const treeKeysMax = 31

// owner identifies the tree nodes that one apply has created and may still modify. It is not empty,
// so that each owner has its own address.
type owner struct{ _ byte }

// tree is a persistent B-tree from 64-bit keys to values, with path copying (P. L. Krijnen, L. G.
// L. T. Meertens, Making B-Trees Work for B, 1983). A tree is a value. Its set method changes it in
// place but never modifies a tree node that another tree can reach. The same holds for delete.
type tree[V any] struct {
	root *treeNode[V]
	size int
}

// treeKeysMin is the minimum number of keys in a tree node other than the root: half of a full node
// that was split. Two such nodes and the key between them fit into one node, which is how nodes merge.
const treeKeysMin = treeKeysMax / 2

// treeNode holds sorted keys and their values. A leaf has no kids; any other node has one more
// child than keys. Every node but the root has at least treeKeysMin keys.
type treeNode[V any] struct {
	owner *owner
	keys  []uint64
	vals  []V
	kids  []*treeNode[V]
}

// find returns the position of the first key that is not less than key, and whether that key equals
// key.
func (n *treeNode[V]) find(key uint64) (int, bool) {
	i := sort.Search(len(n.keys), func(i int) bool { return n.keys[i] >= key })
	return i, i < len(n.keys) && n.keys[i] == key
}

// get returns the value of key.
func (t *tree[V]) get(key uint64) (v V, ok bool) {
	for n := t.root; n != nil; {
		i, found := n.find(key)
		if found {
			return n.vals[i], true
		}
		if n.kids == nil {
			break
		}
		n = n.kids[i]
	}
	return v, false
}

// floor returns the value of the greatest key that is not greater than key.
func (t *tree[V]) floor(key uint64) (v V, ok bool) {
	for n := t.root; n != nil; {
		i, found := n.find(key)
		if found {
			return n.vals[i], true
		}
		// The greatest smaller key of this node, unless the subtree after it has a greater one.
		if i > 0 {
			v, ok = n.vals[i-1], true
		}
		if n.kids == nil {
			break
		}
		n = n.kids[i]
	}
	return v, ok
}

// set assigns a value to key. It copies the nodes on the path that o does not own.
func (t *tree[V]) set(o *owner, key uint64, v V) {
	if t.root == nil {
		t.root = &treeNode[V]{owner: o}
	}
	// Only nodes on the path to key are copied; all other nodes stay shared with the old tree.
	t.root = t.root.makeWritable(o)
	// A full root splits before the descent, which is how the tree grows in height. Full nodes on
	// the way down are split too, so a split never has to propagate upwards.
	if len(t.root.keys) == treeKeysMax {
		t.root = &treeNode[V]{owner: o, kids: []*treeNode[V]{t.root}}
		t.root.split(o, 0)
	}
	if t.root.set(o, key, v) {
		t.size++
	}
}

// set inserts into n, which o must own and which must not be full. It reports whether the key is
// new.
func (n *treeNode[V]) set(o *owner, key uint64, v V) bool {
	i, found := n.find(key)
	if !found && n.kids != nil && len(n.kids[i].keys) == treeKeysMax {
		n.split(o, i)
		// The split moved one key up into n, which may be key itself or lie below it.
		i, found = n.find(key)
	}
	switch {
	case found:
		n.vals[i] = v
		return false
	case n.kids == nil:
		n.keys = slices.Insert(n.keys, i, key)
		n.vals = slices.Insert(n.vals, i, v)
		return true
	}
	// The child is made writable before the descent, so every call owns its node.
	n.kids[i] = n.kids[i].makeWritable(o)
	return n.kids[i].set(o, key, v)
}

// delete removes key and reports whether it was there. It copies the nodes on the path that o does
// not own.
func (t *tree[V]) delete(o *owner, key uint64) bool {
	// Nodes are copied and merged on the way down, so the key must be known to exist beforehand.
	if _, ok := t.get(key); !ok {
		return false
	}
	t.root = t.root.makeWritable(o)
	t.root.delete(o, key)
	t.size--
	// The last two children of the root have merged, or the last key of all is gone.
	if len(t.root.keys) == 0 {
		if t.root.kids == nil {
			t.root = nil
		} else {
			t.root = t.root.kids[0]
		}
	}
	return true
}

// delete removes a key that is in the subtree of n. o owns n, and n can spare a key unless it is the
// root.
func (n *treeNode[V]) delete(o *owner, key uint64) {
	for {
		i, found := n.find(key)
		if n.kids == nil {
			n.keys = slices.Delete(n.keys, i, i+1)
			n.vals = slices.Delete(n.vals, i, i+1)
			return
		}
		// A child that loses a key must have one to spare. Filling it may move key, so the search begins
		// again; it fills at most once per level, since a filled child is above the minimum.
		if len(n.kids[i].keys) <= treeKeysMin {
			n.fill(o, i)
			continue
		}
		n.kids[i] = n.kids[i].makeWritable(o)
		if found {
			// The greatest key of the left subtree takes the place of the deleted one.
			n.keys[i], n.vals[i] = n.kids[i].popMax(o)
		} else {
			n.kids[i].delete(o, key)
		}
		return
	}
}

// popMax removes and returns the greatest key of the subtree of n, which o owns and which can spare a
// key.
func (n *treeNode[V]) popMax(o *owner) (key uint64, v V) {
	last := len(n.keys) - 1
	if n.kids == nil {
		key, v = n.keys[last], n.vals[last]
		clear(n.vals[last:])
		n.keys, n.vals = n.keys[:last], n.vals[:last]
		return key, v
	}
	if len(n.kids[last+1].keys) <= treeKeysMin {
		n.fill(o, last+1)
	}
	// Filling may have merged the last two children.
	last = len(n.kids) - 1
	n.kids[last] = n.kids[last].makeWritable(o)
	return n.kids[last].popMax(o)
}

// fill adds a key to child i of n, which is at the minimum: from the left neighbour, from the right
// one, or by merging it with one of them. o owns n.
func (n *treeNode[V]) fill(o *owner, i int) {
	switch {
	case i > 0 && len(n.kids[i-1].keys) > treeKeysMin:
		left, child := n.kids[i-1].makeWritable(o), n.kids[i].makeWritable(o)
		last := len(left.keys) - 1
		// The key between the two moves down, and the neighbour's outermost key takes its place.
		child.keys = slices.Insert(child.keys, 0, n.keys[i-1])
		child.vals = slices.Insert(child.vals, 0, n.vals[i-1])
		n.keys[i-1], n.vals[i-1] = left.keys[last], left.vals[last]
		clear(left.vals[last:])
		left.keys, left.vals = left.keys[:last], left.vals[:last]
		if left.kids != nil {
			child.kids = slices.Insert(child.kids, 0, left.kids[last+1])
			clear(left.kids[last+1:])
			left.kids = left.kids[:last+1]
		}
		n.kids[i-1], n.kids[i] = left, child
	case i < len(n.keys) && len(n.kids[i+1].keys) > treeKeysMin:
		// As above, from the other side.
		right, child := n.kids[i+1].makeWritable(o), n.kids[i].makeWritable(o)
		child.keys, child.vals = append(child.keys, n.keys[i]), append(child.vals, n.vals[i])
		n.keys[i], n.vals[i] = right.keys[0], right.vals[0]
		right.keys, right.vals = slices.Delete(right.keys, 0, 1), slices.Delete(right.vals, 0, 1)
		if right.kids != nil {
			child.kids = append(child.kids, right.kids[0])
			right.kids = slices.Delete(right.kids, 0, 1)
		}
		n.kids[i], n.kids[i+1] = child, right
	case i > 0:
		n.merge(o, i-1)
	default:
		n.merge(o, i)
	}
}

// merge joins child i of n, the key after it and child i+1. Both children are at the minimum.
func (n *treeNode[V]) merge(o *owner, i int) {
	left, right := n.kids[i].makeWritable(o), n.kids[i+1]
	left.keys = append(append(left.keys, n.keys[i]), right.keys...)
	left.vals = append(append(left.vals, n.vals[i]), right.vals...)
	left.kids = append(left.kids, right.kids...)
	n.kids[i] = left
	n.keys = slices.Delete(n.keys, i, i+1)
	n.vals = slices.Delete(n.vals, i, i+1)
	n.kids = slices.Delete(n.kids, i+1, i+2)
}

// split halves the full child i of n and moves its middle key up into n.
func (n *treeNode[V]) split(o *owner, i int) {
	const mid = treeKeysMax / 2
	// The left half keeps the node, so only it has to be owned; the right half is new.
	left := n.kids[i].makeWritable(o)
	// The upper half is cloned. If it shared the array of the left node, a later insert on the left
	// would overwrite it.
	right := &treeNode[V]{owner: o, keys: slices.Clone(left.keys[mid+1:]), vals: slices.Clone(left.vals[mid+1:])}
	key, val := left.keys[mid], left.vals[mid]
	if left.kids != nil {
		right.kids = slices.Clone(left.kids[mid+1:])
		clear(left.kids[mid+1:])
		left.kids = left.kids[:mid+1]
	}
	// The array beyond the new length would keep records alive.
	clear(left.vals[mid:])
	left.keys, left.vals = left.keys[:mid], left.vals[:mid]
	n.keys = slices.Insert(n.keys, i, key)
	n.vals = slices.Insert(n.vals, i, val)
	n.kids[i] = left
	n.kids = slices.Insert(n.kids, i+1, right)
}

// makeWritable returns n itself if o owns it, and otherwise a copy that o owns. The children stay
// shared.
func (n *treeNode[V]) makeWritable(o *owner) *treeNode[V] {
	if n.owner == o {
		return n
	}
	return &treeNode[V]{owner: o, keys: slices.Clone(n.keys), vals: slices.Clone(n.vals), kids: slices.Clone(n.kids)}
}

// from yields the keys that are not less than first, in order.
func (t *tree[V]) from(first uint64) iter.Seq2[uint64, V] {
	return func(yield func(uint64, V) bool) {
		if t.root != nil {
			t.root.ascend(first, yield)
		}
	}
}

// all yields all keys, in order.
func (t *tree[V]) all() iter.Seq2[uint64, V] { return t.from(0) }

// ascend yields the keys of the subtree that are not less than first. It returns false once yield
// does.
func (n *treeNode[V]) ascend(first uint64, yield func(uint64, V) bool) bool {
	i, _ := n.find(first)
	for ; i <= len(n.keys); i++ {
		// Only the leftmost child visited can hold keys below first. Passing first to the others
		// costs a search each and keeps the code simple.
		if n.kids != nil && !n.kids[i].ascend(first, yield) {
			return false
		}
		if i < len(n.keys) && !yield(n.keys[i], n.vals[i]) {
			return false
		}
	}
	return true
}
