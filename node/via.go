package node

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// via returns the node that passes messages of the metadata group on to one that is out of contact.
func (m *member) via(to rhumb.NodeID) (rhumb.NodeID, bool) {
	if h := m.ranges(); h != nil {
		return h.Leases().Via(to)
	}
	return rhumb.NoNode, false
}

// rtt returns the measured round trip to another node.
func (m *member) rtt(to rhumb.NodeID) (time.Duration, bool) {
	if h := m.ranges(); h != nil {
		return h.Leases().RTT(to)
	}
	return 0, false
}
