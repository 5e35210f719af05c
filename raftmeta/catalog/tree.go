package catalog

import (
	"iter"
	"slices"
	"sort"
)

// treeKeysMax is the greatest number of keys in one tree node; a full node splits into two halves around its middle key.
const treeKeysMax = 31

// owner marks the tree nodes that one apply has made and may still write to. It has a size so that each has an address of
// its own.
type owner struct{ _ byte }

// tree is a persistent B-tree (P. L. Krijnen, L. G. L. T. Meertens, Making B-Trees Work for B, 1983: path copying) from
// 64-bit keys to values. A tree is a value: set changes it in place but never a node that another tree can reach. Keys are
// never removed, as ids and slots are for ever.
type tree[V any] struct {
	root *treeNode[V]
	size int
}

// treeNode holds sorted keys with their values, and between them, unless it is a leaf, one more child than keys.
type treeNode[V any] struct {
	owner *owner
	keys  []uint64
	vals  []V
	kids  []*treeNode[V]
}

// find gives the position of the first key that is not below key, and whether it is key.
func (n *treeNode[V]) find(key uint64) (int, bool) {
	i := sort.Search(len(n.keys), func(i int) bool { return n.keys[i] >= key })
	return i, i < len(n.keys) && n.keys[i] == key
}

// get gives the value of key.
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

// set gives key a value. Nodes that o does not own are copied first.
func (t *tree[V]) set(o *owner, key uint64, v V) {
	if t.root == nil {
		t.root = &treeNode[V]{owner: o}
	}
	t.root = t.root.makeWritable(o)
	if len(t.root.keys) == treeKeysMax {
		t.root = &treeNode[V]{owner: o, kids: []*treeNode[V]{t.root}}
		t.root.split(o, 0)
	}
	if t.root.set(o, key, v) {
		t.size++
	}
}

// set inserts into n, which o owns and which is not full. It reports whether the key is new.
func (n *treeNode[V]) set(o *owner, key uint64, v V) bool {
	i, found := n.find(key)
	if !found && n.kids != nil && len(n.kids[i].keys) == treeKeysMax {
		n.split(o, i)
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
	n.kids[i] = n.kids[i].makeWritable(o)
	return n.kids[i].set(o, key, v)
}

// split halves the full child i of n and lifts its middle key into n.
func (n *treeNode[V]) split(o *owner, i int) {
	const mid = treeKeysMax / 2
	left := n.kids[i].makeWritable(o)
	right := &treeNode[V]{owner: o, keys: slices.Clone(left.keys[mid+1:]), vals: slices.Clone(left.vals[mid+1:])}
	key, val := left.keys[mid], left.vals[mid]
	if left.kids != nil {
		right.kids = slices.Clone(left.kids[mid+1:])
		clear(left.kids[mid+1:])
		left.kids = left.kids[:mid+1]
	}
	clear(left.vals[mid:])
	left.keys, left.vals = left.keys[:mid], left.vals[:mid]
	n.keys = slices.Insert(n.keys, i, key)
	n.vals = slices.Insert(n.vals, i, val)
	n.kids[i] = left
	n.kids = slices.Insert(n.kids, i+1, right)
}

// writable gives n itself when o owns it, else a copy that o owns.
func (n *treeNode[V]) makeWritable(o *owner) *treeNode[V] {
	if n.owner == o {
		return n
	}
	return &treeNode[V]{owner: o, keys: slices.Clone(n.keys), vals: slices.Clone(n.vals), kids: slices.Clone(n.kids)}
}

// from yields the keys that are not below first, in order.
func (t *tree[V]) from(first uint64) iter.Seq2[uint64, V] {
	return func(yield func(uint64, V) bool) {
		if t.root != nil {
			t.root.ascend(first, yield)
		}
	}
}

// all yields everything in the order of the keys.
func (t *tree[V]) all() iter.Seq2[uint64, V] { return t.from(0) }

func (n *treeNode[V]) ascend(first uint64, yield func(uint64, V) bool) bool {
	i, _ := n.find(first)
	for ; i <= len(n.keys); i++ {
		if n.kids != nil && !n.kids[i].ascend(first, yield) {
			return false
		}
		if i < len(n.keys) && !yield(n.keys[i], n.vals[i]) {
			return false
		}
	}
	return true
}
