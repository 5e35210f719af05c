package gate

import (
	"net/netip"
	"testing"
	"time"
)

// TestAddressesOfNodes guards the queue of nodes: an address counts for a day after the last call of a node, and the number of addresses is bounded.
func TestAddressesOfNodes(t *testing.T) {
	n, now := NewNodes(), time.Unix(1e9, 0)
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	n.Note(a, now)
	if !n.Has(a, now) || n.Has(b, now) {
		t.Error("an address counts before a node called from it, or not afterwards")
	}
	n.Note(a, now.Add(nodeFor/2))
	if !n.Has(a, now.Add(nodeFor)) || n.Has(a, now.Add(2*nodeFor)) {
		t.Error("an address counts for another time than a day after its last call")
	}
	for i := range 2 * nodesMax {
		n.Note(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	if got := n.came.Len(); got != nodesMax {
		t.Errorf("%d addresses are kept, want %d", got, nodesMax)
	}
}
