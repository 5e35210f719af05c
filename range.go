package rhumb

import (
	"fmt"
	"slices"
	"time"
)

// Region is a part of the world that contains nodes.
type Region struct {
	ID       RegionID `json:"id"`
	Name     string   `json:"name"`
	Location Point    `json:"location"`
	// Dead reports that no node of the region has been alive for a while. Clients create names
	// elsewhere without asking a dead region whether they exist.
	Dead bool `json:"dead,omitempty"`
	// Into, if not 0, is the region whose nodes take the ranges of this one, because this one is being removed or was. The
	// keys of the ranges keep their home. It may have been removed since, into another one.
	Into RegionID `json:"into,omitempty"`
	// Removed reports that the region has no nodes any more and never gets any. Its name has got a suffix, so that
	// another region can have it.
	Removed bool `json:"removed,omitempty"`
	// Lost is the number of ranges that were given up when the region was removed by force: nobody had a copy.
	Lost uint32 `json:"lost_ranges,omitempty"`
}

// RegionDistance is the measured round trip between two regions, A below B.
type RegionDistance struct {
	A      RegionID `json:"a"`
	B      RegionID `json:"b"`
	Micros uint32   `json:"micros"`
}

// NodeState is the fitness of a node to serve, as metadata records it.
type NodeState uint8

// The node states. They are stored on disk: append only.
const (
	// NodeLive may be primary and in-sync.
	NodeLive NodeState = 1
	// NodeFenced was declared dead: it holds no role until it registers again.
	NodeFenced NodeState = 2
	// NodeDraining hands over its primaries and accepts no new role.
	NodeDraining NodeState = 3
	// NodeDecommissioning serves as a live node does, gets no new copies, and loses those that it has.
	NodeDecommissioning NodeState = 4
)

// Serves reports whether a node in this state may hold roles.
func (s NodeState) Serves() bool { return s == NodeLive || s == NodeDecommissioning }

// String returns the stable name of the state.
func (s NodeState) String() string {
	switch s {
	case NodeLive:
		return "live"
	case NodeFenced:
		return "fenced"
	case NodeDraining:
		return "draining"
	case NodeDecommissioning:
		return "decommissioning"
	}
	return fmt.Sprintf("state_%d", uint8(s))
}

// Node is the metadata record of one node.
type Node struct {
	ID NodeID `json:"id"`
	// Name is the name in the node's certificate. It is bound when the node first registers with one and
	// never changes. It is empty for a node that has only run with --insecure.
	Name   string   `json:"name,omitempty"`
	Region RegionID `json:"region"`
	Zone   string   `json:"zone"`
	// Addr serves clients and peers (gRPC), HeartbeatAddr receives the heartbeats of peers,
	// AdminAddr serves HTTP: each is "host:port".
	Addr          string `json:"addr"`
	HeartbeatAddr string `json:"heartbeat_addr"`
	AdminAddr     string `json:"admin_addr"`
	Location      Point  `json:"location"`
	Store         UUID   `json:"store"`
	// Boot counts the node's lives.
	Boot  BootSeq   `json:"boot"`
	State NodeState `json:"state"`
	// Short reports that the disk of the node was an older copy of itself at its last start. The
	// node lost writes that it had acknowledged, and fetches them from the other replicas.
	Short bool `json:"short,omitempty"`
	// Voter reports whether the node votes in the metadata group. All other nodes are learners with
	// a local copy.
	Voter bool `json:"voter"`
	// Binary is the text of the node's Build: the version of the program, and the cluster versions that it
	// supports.
	Binary string `json:"binary,omitempty"`
	// Forgotten reports that an operator gave the node up for good: it never registers again, and its name
	// is free.
	Forgotten bool `json:"forgotten,omitempty"`
	// Leaving reports that the node is to hold nothing any more: an operator decommissions or replaces it. The node keeps it
	// over restarts and fencings.
	Leaving bool `json:"leaving,omitempty"`
	// ReplacedBy is the node that returned in the place of this one with an empty disk: under its name, or at its address in
	// an insecure cluster.
	ReplacedBy NodeID `json:"replaced_by,omitempty"`
	// VotePinned reports that an operator gave the node its vote in the metadata group. It keeps the vote, and gets it back after a
	// failure, until the vote is moved or unpinned.
	VotePinned bool `json:"vote_pinned,omitempty"`
	// Witness reports that the node only votes in the metadata group: it never has copies of ranges.
	Witness bool `json:"witness,omitempty"`
	// Relapses counts how often the node failed, or had to be relieved, soon after it had become healthy, and FailedAt is the last
	// time: fail-back to it waits for longer with each (docs/operations/nodes.md#primaries). Both are 0 if it never did.
	Relapses uint32    `json:"relapses,omitempty"`
	FailedAt time.Time `json:"failed_at,omitzero"`
}

// Build returns the program of the node's present life.
func (n Node) Build() Build { return ParseBuild(n.Binary) }

// Identity returns the life of the node that metadata has registered.
func (n Node) Identity() NodeIdentity { return NodeIdentity{n.ID, n.Store, n.Boot} }

// Range is the metadata record of one range: who orders its writes, who copies them, and under
// which epoch.
type Range struct {
	ID RangeID `json:"id"`
	// Last is the last slot of the range; the first is that of its ID. 0 means that the range has one slot.
	Last  Slot    `json:"last,omitempty"`
	Class ClassID `json:"class"`
	// Epoch is the fencing number. An epoch has at most one primary.
	Epoch Epoch `json:"epoch"`
	// Allocated is the greatest epoch ever allocated to the range, by an election or a handover. No
	// epoch is allocated twice.
	Allocated Epoch `json:"allocated"`
	// Version grows with every change of this record.
	Version uint64 `json:"version"`
	// Primary orders the range's writes. It is a member of InSync.
	Primary NodeID `json:"primary"`
	// Preferred is the node that should be primary while it is healthy and in sync.
	Preferred NodeID `json:"preferred"`
	// InSync is the in-sync set, including the primary, in ascending order.
	InSync []NodeID `json:"in_sync"`
	// Replicas lists the nodes that hold a copy, in ascending order. Those not in InSync are
	// learners.
	Replicas []NodeID `json:"replicas"`
	// Quarantined lists the replicas with damaged data, in ascending order. They keep the data,
	// serve nothing and cannot be elected.
	Quarantined []NodeID `json:"quarantined,omitempty"`
	// Lives are the recorded lives: in each, the member holds everything that clients were told, as the primary knew when it
	// last changed the in-sync set. One answer of a recorded life suffices for an election. Sorted by node; only members that
	// are not quarantined are in it.
	Lives []MemberLife `json:"lives,omitempty"`
	// Recovery is the last loss that an operator accepted, nil when there was none.
	Recovery *Recovery `json:"recovery,omitempty"`
	// Prepared is a handover that the primary is to carry out, nil if there is none. Its target is in sync, is not the
	// primary, and is not quarantined.
	Prepared *Handover `json:"prepared,omitempty"`
	// Birth, if not 0, means that the range is reserved and not born: its slots still belong to the range
	// before it, which is about to split (docs/replication.md#rule-split). It is the epoch in which the
	// range may begin without asking anybody.
	Birth Epoch `json:"birth,omitempty"`
	// TakesOver, if not 0, means that the range is about to take over the slots of the range after it, and Ends that the range is about to
	// be taken over by the one before it (docs/replication.md#rule-merge). Both are the version that the left record got with the
	// merge, which distinguishes merges of the same slots.
	TakesOver uint64 `json:"takes_over,omitempty"`
	Ends      uint64 `json:"ends,omitempty"`
	// Merged lists the first slots of the ranges that this one took over, ascending. No range begins there again: a copy of the old range
	// may be left on a disk, and its log has nothing to do with that of a new range.
	Merged []Slot `json:"merged,omitempty"`
	// Kept reports that an operator split the range off from the one before it: nothing but an operator merges it back into that one.
	Kept bool `json:"kept,omitempty"`
	// Leaving lists the replicas whose copies are to go, in ascending order. The primary takes them out of the in-sync set.
	Leaving []NodeID `json:"leaving,omitempty"`
	// Removed lists the nodes whose replicas were removed in this epoch, in ascending order. Such a node gets a new copy only
	// in a new epoch: a late acknowledgement of the old copy must not count for the new one.
	Removed []NodeID `json:"removed,omitempty"`
	// Former is the node that was preferred before its copy was given up because it was dead, or NoNode. If it returns, the range is
	// copied to it and handed over to it (docs/decisions/0062-former-ranges-return.md).
	Former NodeID `json:"former,omitempty"`
}

// Handover is an epoch that is reserved for a node, which the primary makes its successor without an election.
type Handover struct {
	Epoch  Epoch  `json:"epoch"`
	Target NodeID `json:"target"`
}

// Recovery records that an operator let a range go on from one copy, without what the others held.
type Recovery struct {
	// Epoch began with it; Node held the copy.
	Epoch Epoch  `json:"epoch"`
	Node  NodeID `json:"node"`
	// Gone are the nodes whose copies were given up because they were not live, sorted.
	Gone []NodeID `json:"gone,omitempty"`
	// End is where the copy's log ended, EndTime the timestamp there, and Known the greatest position that any copy that
	// answered knew as committed, as the operator was shown them; 0 where nothing was known.
	End     Seq       `json:"end"`
	EndTime Timestamp `json:"end_time"`
	Known   Seq       `json:"known"`
}

// MemberLife is one life of a member of an in-sync set.
type MemberLife struct {
	Node NodeID  `json:"node"`
	Life BootSeq `json:"life"`
}

// LastSlot returns the last slot of the range.
func (r *Range) LastSlot() Slot { return max(r.ID.Slot, r.Last) }

// Holds reports whether keys with a home belong to the range.
func (r *Range) Holds(home RangeID) bool {
	return home.Region == r.ID.Region && home.Slot >= r.ID.Slot && home.Slot <= r.LastSlot()
}

// IsMerging reports whether the range is about to be united with a neighbour.
func (r *Range) IsMerging() bool { return r.TakesOver != 0 || r.Ends != 0 }

// IsInSync reports whether n is in the in-sync set.
func (r *Range) IsInSync(n NodeID) bool { return slices.Contains(r.InSync, n) }

// IsReplica reports whether n holds a copy.
func (r *Range) IsReplica(n NodeID) bool { return slices.Contains(r.Replicas, n) }

// IsQuarantined reports whether n's copy is damaged.
func (r *Range) IsQuarantined(n NodeID) bool { return slices.Contains(r.Quarantined, n) }

// IsLeaving reports whether n's copy is to go.
func (r *Range) IsLeaving(n NodeID) bool { return slices.Contains(r.Leaving, n) }

// LifeOf returns the recorded life of a member, or 0 if the record has none.
func (r *Range) LifeOf(n NodeID) BootSeq {
	for _, m := range r.Lives {
		if m.Node == n {
			return m.Life
		}
	}
	return 0
}

// Clone returns a deep copy of r.
func (r *Range) Clone() *Range {
	c := *r
	c.InSync = slices.Clone(r.InSync)
	c.Replicas = slices.Clone(r.Replicas)
	c.Quarantined = slices.Clone(r.Quarantined)
	c.Lives = slices.Clone(r.Lives)
	c.Leaving, c.Removed = slices.Clone(r.Leaving), slices.Clone(r.Removed)
	c.Merged = slices.Clone(r.Merged)
	if r.Recovery != nil {
		recovery := *r.Recovery
		recovery.Gone = slices.Clone(recovery.Gone)
		c.Recovery = &recovery
	}
	if r.Prepared != nil {
		prepared := *r.Prepared
		c.Prepared = &prepared
	}
	return &c
}

// Block is a run of consecutive slots of a region, allotted to a class. If Node is NoNode, the block
// holds the hash slots of the class in the region: all its slots if the class has buckets, else the
// first HashSlots of them. Otherwise Node inserts server-named keys into them.
type Block struct {
	Region RegionID `json:"region"`
	Class  ClassID  `json:"class"`
	Node   NodeID   `json:"node"`
	// First is the lowest slot of the block, a multiple of BlockSlots.
	First Slot `json:"first"`
	// Slots is the number of slots, a multiple of BlockSlots. 0 means BlockSlots.
	Slots uint32 `json:"slots,omitempty"`
}

// Size returns the number of slots in the block.
func (b Block) Size() Slot { return Slot(max(b.Slots, BlockSlots)) }

// Contains reports whether the slot lies in the block.
func (b Block) Contains(s Slot) bool { return s >= b.First && s-b.First < b.Size() }
