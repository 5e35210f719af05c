package gate

import (
	"net/netip"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/rhumbdb/rhumb"
)

const (
	// nodeFor is how long an address from which a node called counts as that of a node.
	nodeFor = 24 * time.Hour
	// nodeNoteEvery is how old a note gets before another call of the node renews it.
	nodeNoteEvery = time.Minute
	// nodesMax bounds the addresses. A node may have several.
	nodesMax = 4 * rhumb.NodesMax
)

// Nodes remembers the addresses from which nodes have called. They say nothing about who calls next: they decide in which queue a
// connection waits before its certificate is known.
type Nodes struct {
	came *lru.Cache[netip.Addr, time.Time]
}

// NewNodes returns an empty Nodes.
func NewNodes() *Nodes {
	came, err := lru.New[netip.Addr, time.Time](nodesMax)
	if err != nil {
		panic(err) // the size is positive
	}
	return &Nodes{came}
}

// Note notes the address of a caller that has proved to be a node. Each call of a node may note it.
func (n *Nodes) Note(a netip.Addr, now time.Time) {
	if at, ok := n.came.Peek(a); !ok || now.Sub(at) >= nodeNoteEvery {
		n.came.Add(a, now)
	}
}

// Has reports whether a node called from an address lately.
func (n *Nodes) Has(a netip.Addr, now time.Time) bool {
	at, ok := n.came.Peek(a)
	return ok && now.Sub(at) < nodeFor
}
