package client

import (
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// fullFor is how long inserts avoid a node. Then one insert asks it again.
	fullFor = 2 * time.Second
	// fullMax bounds the entries of fullNodes. Beyond it all are dropped, which costs one redirect
	// for each node that is still full.
	fullMax = 1_024
)

// fullNodes tracks which nodes have sent inserts of a class to another node, because they hold more
// of the class than others. Inserts avoid them for a while, so that not every insert pays for the
// redirect.
type fullNodes struct {
	mu    sync.Mutex // guards until
	until map[inserter]time.Time
}

// inserter is a node that takes inserts of a class.
type inserter struct {
	node  rhumb.NodeID
	class rhumb.ClassID
}

// markFull records that a node redirected an insert.
func (f *fullNodes) markFull(n rhumb.NodeID, class rhumb.ClassID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.until == nil || len(f.until) >= fullMax {
		f.until = map[inserter]time.Time{}
	}
	f.until[inserter{n, class}] = time.Now().Add(fullFor)
}

// withoutFull returns nodes, and the elements of ranges that belong to them, without the nodes that
// are full. If all are full it returns all: a full node still finds a range for an insert.
func (f *fullNodes) withoutFull(nodes []rhumb.Node, ranges []rhumb.RangeID, class rhumb.ClassID) ([]rhumb.Node, []rhumb.RangeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// The usual case, without a copy.
	if len(f.until) == 0 {
		return nodes, ranges
	}
	now := time.Now()
	var keptNodes []rhumb.Node
	var keptRanges []rhumb.RangeID
	for i, n := range nodes {
		if now.After(f.until[inserter{n.ID, class}]) {
			keptNodes, keptRanges = append(keptNodes, n), append(keptRanges, ranges[i])
		}
	}
	if len(keptNodes) == 0 {
		return nodes, ranges
	}
	return keptNodes, keptRanges
}
