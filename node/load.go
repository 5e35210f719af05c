package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/peer"
)

const (
	// weighInterval is the interval at which a node sums up its own load.
	weighInterval = 250 * time.Millisecond
	// loadStale is the age from which a reported load is ignored. Inserts then do not move to a
	// node that may be gone.
	loadStale = 5 * time.Second
)

// loads holds the loads of the nodes in this region, including this node. Package admin compares
// them when it decides which node takes inserts.
type loads struct {
	self rhumb.NodeID
	own  atomic.Pointer[peer.NodeLoad] // replaced as a whole, so that a heartbeat reads it without a lock

	mu    sync.RWMutex // guards heard
	heard map[rhumb.NodeID]heardLoad
}

// heardLoad is a load that another node reported, and the time of the report.
type heardLoad struct {
	load peer.NodeLoad
	at   time.Time
}

func newLoads(self rhumb.NodeID) *loads {
	return &loads{self: self, heard: map[rhumb.NodeID]heardLoad{}}
}

// recordLoad stores the load that another node reported. The network accepts heartbeats only from
// nodes of the catalog, so the number of entries is bounded.
func (l *loads) recordLoad(from rhumb.NodeID, load peer.NodeLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard[from] = heardLoad{load, time.Now()}
}

// Load returns the number of bytes of a class for which a node is primary. known is false if the
// node has not reported its load recently.
func (l *loads) Load(n rhumb.NodeID, class rhumb.ClassID) (bytes int64, known bool) {
	if n == l.self {
		// The own load is summed up all the time, so it cannot be stale.
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

// weighLoop sums up the load of this node at intervals.
func (m *member) weighLoop() {
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

// loadFor returns the load that a heartbeat to another node carries. Only nodes of the same region
// exchange loads, because inserts never leave their region.
func (m *member) loadFor(to rhumb.NodeID) (peer.NodeLoad, bool) {
	// Before the first sum, a load of zero would attract inserts.
	own := m.loads.own.Load()
	if own == nil {
		return nil, false
	}
	st := m.group.State()
	self, ok := st.Node(m.self.Node)
	other, there := st.Node(to)
	return *own, ok && there && self.Region == other.Region
}

// Load records the load that another node reported.
func (m *member) Load(from rhumb.NodeID, load peer.NodeLoad) { m.loads.recordLoad(from, load) }
