package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/peer"
)

const (
	// weighInterval is how often a node adds up its own load.
	weighInterval = 250 * time.Millisecond
	// loadStale is the age at which what a node said of its load counts for nothing.
	loadStale = 5 * time.Second
)

// loads holds the loads of the nodes of this region, this one included.
type loads struct {
	self rhumb.NodeID
	own  atomic.Pointer[peer.NodeLoad]

	mu    sync.RWMutex // guards heard
	heard map[rhumb.NodeID]heardLoad
}

type heardLoad struct {
	load peer.NodeLoad
	at   time.Time
}

func newLoads(self rhumb.NodeID) *loads {
	return &loads{self: self, heard: map[rhumb.NodeID]heardLoad{}}
}

// hear notes what another node says of its load. Only nodes of the catalog are heard, so their number is bounded.
func (l *loads) hear(from rhumb.NodeID, load peer.NodeLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard[from] = heardLoad{load, time.Now()}
}

// Load gives the bytes of a class that a node orders the writes of; known is false when it has not said so of late.
func (l *loads) Load(n rhumb.NodeID, class rhumb.ClassID) (bytes int64, known bool) {
	if n == l.self {
		own := l.own.Load()
		if own == nil {
			return 0, false
		}
		return (*own)[class], true
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	h, ok := l.heard[n]
	if !ok || time.Since(h.at) > loadStale {
		return 0, false
	}
	return h.load[class], true
}

// weigh adds up this node's load from time to time.
func (m *member) weigh() {
	t := time.NewTicker(weighInterval)
	defer t.Stop()
	for {
		load := peer.NodeLoad(m.host.Loads())
		m.loads.own.Store(&load)
		select {
		case <-m.ctx.Done():
			return
		case <-t.C:
		}
	}
}

// tellLoad gives what another node is told with each heartbeat: inserts stay in their region, and so do loads.
func (m *member) tellLoad(to rhumb.NodeID) (peer.NodeLoad, bool) {
	own := m.loads.own.Load()
	if own == nil {
		return nil, false
	}
	st := m.group.State()
	self, ok := st.Node(m.self.Node)
	other, there := st.Node(to)
	return *own, ok && there && self.Region == other.Region
}

// Load takes what another node says of its load.
func (m *member) Load(from rhumb.NodeID, load peer.NodeLoad) { m.loads.hear(from, load) }
