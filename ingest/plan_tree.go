package ingest

import (
	"slices"
	"sync/atomic"
)

// planTree finds the plan of a line: each node is a key, and its children are the keys that have stood behind it (row P4:
// Popeye's TargetNode). It serves one goroutine; the counts may be read by others.
type planTree struct {
	root planNode
	// size is the number of keys of all plans together.
	size int
	// refused counts the lines for which there was no room since the last sweep.
	refused int

	hits, misses atomic.Int64
}

type planNode struct {
	key      string
	null     bool // the key's value is null
	children []*planNode
	plan     *plan // nil where no line ended
	size     int   // what the plan counts in planTree.size
	used     bool  // since the last sweep
}

const (
	// plansSizeMax bounds planTree.size: about 15 MiB, and more than twice the 1,000 statements of Popeye at thirty keys each.
	plansSizeMax = 1 << 16
	// planChildrenMax bounds the keys behind one.
	planChildrenMax = 64
	// planSweepEvery is the number of lines without room from one sweep to the next. It is so great that making plans which
	// nobody uses stays a small part of the work.
	planSweepEvery = 1 << 15
)

// find gives the plan for the keys of pairs; nil when there is none.
func (t *planTree) find(pairs []pair) *plan {
	n := &t.root
	for i := range pairs {
		if n = n.child(&pairs[i]); n == nil {
			return nil
		}
	}
	n.used = true
	return n.plan
}

// child gives the node of a pair's key. The one that was asked for last stands first.
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

// admits reports whether there is room for a plan, and makes room from time to time.
func (t *planTree) admits(pairs []pair) bool {
	if t.size+1+len(pairs) <= plansSizeMax {
		return true
	}
	if t.refused++; t.refused < planSweepEvery {
		return false
	}
	t.refused, t.size = 0, 0
	t.sweep(&t.root)
	return t.size+1+len(pairs) <= plansSizeMax
}

// sweep drops the plans that were not used since the last sweep, counts the others, and reports whether n has any left.
func (t *planTree) sweep(n *planNode) (left bool) {
	n.children = slices.DeleteFunc(n.children, func(c *planNode) bool { return !t.sweep(c) })
	if !n.used {
		n.plan, n.size = nil, 0
	}
	n.used = false
	t.size += n.size
	return n.plan != nil || len(n.children) > 0
}

// learn keeps a plan for lines with the keys of pairs, if no key of them has too many behind it.
func (t *planTree) learn(pairs []pair, p *plan) {
	n := &t.root
	for i := range pairs {
		c := n.child(&pairs[i])
		if c == nil {
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
