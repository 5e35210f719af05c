package rhumb

import (
	"fmt"
	"slices"
)

// Region is a part of the world with nodes in it.
type Region struct {
	ID       RegionID `json:"id"`
	Name     string   `json:"name"`
	Location Point    `json:"location"`
	// Dead says that no node of the region has lived for a while. Names are created elsewhere without asking it.
	Dead bool `json:"dead,omitempty"`
}

// NodeState is what metadata holds of a node's fitness to serve.
type NodeState uint8

// The node states. They stand in stored bytes: append only.
const (
	// NodeLive may be primary and in-sync.
	NodeLive NodeState = 1
	// NodeFenced was found dead: it holds no role until it registers again.
	NodeFenced NodeState = 2
	// NodeDraining gives up its primaries and takes no new role.
	NodeDraining NodeState = 3
)

// String gives the stable name of the state.
func (s NodeState) String() string {
	switch s {
	case NodeLive:
		return "live"
	case NodeFenced:
		return "fenced"
	case NodeDraining:
		return "draining"
	}
	return fmt.Sprintf("state_%d", uint8(s))
}

// Node is what the cluster knows of one node.
type Node struct {
	ID     NodeID   `json:"id"`
	Region RegionID `json:"region"`
	Zone   string   `json:"zone"`
	// Addr takes clients and peers (gRPC), HeartbeatAddr the heartbeats of peers, AdminAddr HTTP: "host:port".
	Addr          string `json:"addr"`
	HeartbeatAddr string `json:"heartbeat_addr"`
	AdminAddr     string `json:"admin_addr"`
	Location      Point  `json:"location"`
	Store         UUID   `json:"store"`
	// Boot counts the node's lives.
	Boot  BootSeq   `json:"boot"`
	State NodeState `json:"state"`
	// Short is true when the node's disk was an older copy of itself at its last start: it had lost what it acknowledged
	// since, and what its ranges lack it fetches from the others.
	Short bool `json:"short,omitempty"`
	// Voter is true when the node votes in the metadata group; all others are learners with a local copy.
	Voter bool `json:"voter"`
	// Binary is the version of the node's program.
	Binary string `json:"binary,omitempty"`
}

// Identity gives the life of the node that metadata knows.
func (n Node) Identity() NodeIdentity { return NodeIdentity{n.ID, n.Store, n.Boot} }

// Range is the metadata record of one range: who orders its writes, who copies them, and under which epoch.
type Range struct {
	ID    RangeID `json:"id"`
	Class ClassID `json:"class"`
	// Epoch is the fencing number: one primary per epoch.
	Epoch Epoch `json:"epoch"`
	// Allocated is the greatest epoch ever allocated to this range, for elections and handovers alike.
	Allocated Epoch `json:"allocated"`
	// Version grows with every change of this record.
	Version uint64 `json:"version"`
	// Primary orders the range's writes. It is a member of InSync.
	Primary NodeID `json:"primary"`
	// Preferred is the node that should be primary when it is healthy and in sync.
	Preferred NodeID `json:"preferred"`
	// InSync is the in-sync set, primary included, sorted.
	InSync []NodeID `json:"in_sync"`
	// Replicas are all nodes that hold a copy, sorted; those not in InSync are learners.
	Replicas []NodeID `json:"replicas"`
	// Quarantined are the replicas with damaged data, sorted: they keep the data, serve nothing and are not elected.
	Quarantined []NodeID `json:"quarantined,omitempty"`
}

// IsInSync reports whether n is a member of the in-sync set.
func (r *Range) IsInSync(n NodeID) bool { return slices.Contains(r.InSync, n) }

// IsReplica reports whether n holds a copy.
func (r *Range) IsReplica(n NodeID) bool { return slices.Contains(r.Replicas, n) }

// IsQuarantined reports whether n's copy is damaged.
func (r *Range) IsQuarantined(n NodeID) bool { return slices.Contains(r.Quarantined, n) }

// Clone copies r with its slices.
func (r *Range) Clone() *Range {
	c := *r
	c.InSync = slices.Clone(r.InSync)
	c.Replicas = slices.Clone(r.Replicas)
	c.Quarantined = slices.Clone(r.Quarantined)
	return &c
}

// Block is BlockSlots consecutive slots of a region, allotted to a class: the hash slots of that class in the region
// (Node is NoNode, the first HashSlots of them in use), or the slots into which one node inserts server-named keys.
type Block struct {
	Region RegionID `json:"region"`
	Class  ClassID  `json:"class"`
	Node   NodeID   `json:"node"`
	// First is the lowest slot of the block, a multiple of BlockSlots.
	First Slot `json:"first"`
}

// Contains reports whether the slot lies in the block.
func (b Block) Contains(s Slot) bool { return s >= b.First && s-b.First < BlockSlots }
