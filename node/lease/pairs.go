package lease

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// PeerInfo names a node to watch.
type PeerInfo struct {
	ID     rhumb.NodeID
	Boot   rhumb.BootSeq
	Timing Timing
}

// Pairs is this node's side of all its pairs.
type Pairs struct {
	self rhumb.NodeIdentity
}

// New begins a life of a node. freshStore says that its store was made for this life, so that no earlier life gave
// grants; otherwise WaitUntil lies at least LeaseMax ahead.
func New(self rhumb.NodeIdentity, now time.Duration, freshStore bool) *Pairs {
	return &Pairs{self: self}
}

// SetPeers says whom to watch and grant to. A peer that is left out is neither, but what it holds is remembered.
func (p *Pairs) SetPeers(now time.Duration, peers []PeerInfo) {}

// Tick gives the heartbeats that are due.
func (p *Pairs) Tick(now time.Duration) []Outgoing { return nil }

// Due gives the time at which Tick has something to send.
func (p *Pairs) Due() time.Duration { return 0 }

// Receive takes a frame and gives the answer to it, if it wants one.
func (p *Pairs) Receive(now time.Duration, from rhumb.NodeIdentity, f *Frame) []Outgoing { return nil }

// Exclude takes range r out of all grants for epochs below e (ruling 1). The driver calls it with every promise, before
// it acts on it, and at start with every durable promise. primary is the primary of e, or NoNode if it is not known:
// it need not be told.
func (p *Pairs) Exclude(r rhumb.RangeID, e rhumb.Epoch, primary rhumb.NodeID) {}

// Holds reports whether this node holds, for epoch e of r, unexpired grants of all members but itself (rule L).
func (p *Pairs) Holds(now time.Duration, r rhumb.RangeID, e rhumb.Epoch, members []rhumb.NodeID) bool {
	return false
}

// WaitUntil gives the time at which every grant that this node gave to others for epochs of r below e is over (rule
// E). It falls when holders confirm the exclusion.
func (p *Pairs) WaitUntil(r rhumb.RangeID, e rhumb.Epoch) time.Duration { return 0 }

// Suspects lists the peers without two-way contact within their suspect interval, sorted.
func (p *Pairs) Suspects(now time.Duration) []rhumb.NodeID { return nil }

// RTT gives the smoothed round trip to a peer, and ok false before the first.
func (p *Pairs) RTT(n rhumb.NodeID) (time.Duration, bool) { return 0, false }

// SetHealthy says whether this node's data path works. While it does not, Tick and Receive send nothing.
func (p *Pairs) SetHealthy(now time.Duration, ok bool, why string) {}

// Unhealthy gives the reason of the last SetHealthy with ok false, or "".
func (p *Pairs) Unhealthy() string { return "" }

// DropHeld forgets every grant that this node holds: its clock is not to be trusted for a while.
func (p *Pairs) DropHeld() {}

// Rebirth begins a new life in place (ruling 11): everything held is dropped and frames carry the new boot. The caller
// must give up every primary role before the first frame of the new life leaves.
func (p *Pairs) Rebirth(self rhumb.NodeIdentity) {}
