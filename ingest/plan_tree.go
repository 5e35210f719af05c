package ingest

import (
	"slices"
	"sync/atomic"
)

// planTree finds the plan of a line. Each node is a key; its children are the keys that have
// followed it, like Popeye's TargetNode. It is not safe for concurrent use, except the counts.
type planTree struct {
	root planNode
	// size is the number of keys of all plans together.
	size int
	// refused counts the lines since the last sweep for whose plans there was no room.
	refused int

	hits, misses atomic.Int64
}

// planNode is a key after the keys on the path from the root.
type planNode struct {
	key      string
	null     bool // whether the value of the key is null
	children []*planNode
	plan     *plan // nil if no line with a plan ended here
	size     int   // what the plan adds to planTree.size
	used     bool  // whether the plan was used since the last sweep
}

const (
	// plansSizeMax bounds planTree.size. It allows about 15 MiB, and more than twice the 1,000
	// statements of Popeye with thirty keys each.
	plansSizeMax = 1 << 16
	// planChildrenMax bounds the children of a node. They are searched one by one.
	planChildrenMax = 64
	// planSweepEvery is the number of lines without room between two sweeps. It is large, so that
	// making plans that are never used remains a small part of the work.
	planSweepEvery = 1 << 15
)

// find returns the plan for the keys of pairs, or nil.
func (t *planTree) find(pairs []pair) *plan {
	n := &t.root
	for i := range pairs {
		if n = n.child(&pairs[i]); n == nil {
			return nil
		}
	}
	// Protects the plan from the next sweep.
	n.used = true
	return n.plan
}

// child returns the node of a pair's key. It moves the node to the front, because the next line
// probably has the same key.
func (n *planNode) child(p *pair) *planNode {
	for i, c := range n.children {
		if c.key == viewString(p.key) && c.null == (p.kind == nullValue) {
			if i > 0 {
				n.children[0], n.children[i] = c, n.children[0]
			}
			return c
		}
	}
	return nil
}

// admits reports whether there is room for a plan. From time to time it makes room.
func (t *planTree) admits(pairs []pair) bool {
	if t.size+1+len(pairs) <= plansSizeMax {
		return true
	}
	if t.refused++; t.refused < planSweepEvery {
		return false
	}
	// sweep counts the plans that remain.
	t.refused, t.size = 0, 0
	t.sweep(&t.root)
	return t.size+1+len(pairs) <= plansSizeMax
}

// sweep removes the plans below n that were not used since the last sweep, counts the others, and
// reports whether any is left.
func (t *planTree) sweep(n *planNode) (left bool) {
	n.children = slices.DeleteFunc(n.children, func(c *planNode) bool { return !t.sweep(c) })
	if !n.used {
		n.plan, n.size = nil, 0
	}
	n.used = false
	t.size += n.size
	return n.plan != nil || len(n.children) > 0
}

// learn adds a plan for lines with the keys of pairs, unless a key has too many children.
func (t *planTree) learn(pairs []pair, p *plan) {
	n := &t.root
	for i := range pairs {
		c := n.child(&pairs[i])
		if c == nil {
			// Keys that are different in every line, for example IDs used as keys, must not fill
			// the tree.
			if len(n.children) == planChildrenMax {
				t.refused++
				return
			}
			c = &planNode{key: string(pairs[i].key), null: pairs[i].kind == nullValue}
			n.children = append(n.children, c)
		}
		n = c
	}
	n.plan, n.size, n.used = p, 1+len(pairs), true
	t.size += n.size
}
