package node

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// relayFor returns the node that relays messages of the metadata group to a node that is out of
// contact. ok is false if messages go directly.
func (m *member) relayFor(to rhumb.NodeID) (rhumb.NodeID, bool) {
	if h := m.hostIfReady(); h != nil {
		return h.Leases().Via(to)
	}
	return rhumb.NoNode, false
}

// measuredRTT returns the measured round trip to another node.
func (m *member) measuredRTT(to rhumb.NodeID) (time.Duration, bool) {
	if h := m.hostIfReady(); h != nil {
		return h.Leases().RTT(to)
	}
	return 0, false
}
