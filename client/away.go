package client

import (
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
)

// away remembers which nodes have sent inserts of a class to another node: they hold too much of it. Inserts pass them by
// for a while.
type away struct {
	mu    sync.Mutex // guards until
	until map[inserter]time.Time
}

// inserter is a node as one that takes inserts of a class.
type inserter struct {
	node  rhumb.NodeID
	class rhumb.ClassID
}

const (
	// awayFor is how long a node is passed by. Then one insert asks it again.
	awayFor = 2 * time.Second
	// awayMax bounds what is remembered; beyond it all is forgotten, which costs an insert a redirect each.
	awayMax = 1_024
)

// note remembers that a node sent an insert away.
func (a *away) note(n rhumb.NodeID, class rhumb.ClassID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until == nil || len(a.until) >= awayMax {
		a.until = map[inserter]time.Time{}
	}
	a.until[inserter{n, class}] = time.Now().Add(awayFor)
}

// pass leaves out the nodes that are passed by, unless that leaves none. into tells something of each node.
func (a *away) pass(nodes []rhumb.Node, into []rhumb.RangeID, class rhumb.ClassID) ([]rhumb.Node, []rhumb.RangeID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.until) == 0 {
		return nodes, into
	}
	now := time.Now()
	var stay []rhumb.Node
	var stayInto []rhumb.RangeID
	for i, n := range nodes {
		if now.After(a.until[inserter{n.ID, class}]) {
			stay, stayInto = append(stay, n), append(stayInto, into[i])
		}
	}
	if len(stay) == 0 {
		return nodes, into
	}
	return stay, stayInto
}
