package catalog

import (
	"github.com/rhumbdb/rhumb"
)

// Command is a change of the catalog. The types of this file are all there are.
type Command interface {
	// code numbers the command in stored bytes.
	code() code
	// apply checks everything first and only then changes anything.
	apply(t *tx) Result
	// fill and take move the command to and from its encoding.
	fill(w *wireCommand)
}

// code numbers a command in stored bytes: append only.
type code uint8

const (
	codeInit          code = 1
	codeAddRegion     code = 2
	codeRegisterNode  code = 3
	codeCreateClass   code = 4
	codeCreateTable   code = 5
	codeEnsureRegions code = 6
	codeOpenSlot      code = 7
	codeAlterISR      code = 8
	codeElect         code = 9
	codeFenceNode     code = 10
	codeSetNodeState  code = 11
	codeSetReplicas   code = 12
	codeSetVoters     code = 13
	codeBatch         code = 14

	codeQuarantineReplica code = 15
	codeReadmitReplica    code = 16
	codeSetRegionDead     code = 20
	codeRecoverRange      code = 21
)

// BatchMax bounds the commands of one Batch.
const BatchMax = 10_000

// RegionNameSizeMax and AddrSizeMax bound names of regions and zones, and addresses, in bytes.
const (
	RegionNameSizeMax = 64
	AddrSizeMax       = 256
)

// Init founds the cluster and registers its first node, which becomes node 1. Repeated with the same cluster id and
// nonce it gives the first result again; on any other founded cluster it is AlreadyExists.
type Init struct {
	Cluster rhumb.ClusterID
	First   RegisterNode
}

// AddRegion adds a region. It gives the region that has the name already when its location is the same, else
// AlreadyExists.
type AddRegion struct {
	Name     string
	Location rhumb.Point
}

// RegisterNode makes a node known at its start, in a new life: Node is NoNode for a node that has no id yet (a Store that
// is known gets its old id back). It makes the node live, and, when the node had a life before, gives every range whose
// primary it was a new epoch and, where another live node is in sync, a new primary, since a restarted node never goes on
// in its old epoch (section 1.6, rule S; ruling 11).
//
// The life's number is the registered one plus one, or Boot when that is greater: a node counts its starts, and metadata
// its lives. The same Nonce again gives the first result again, or with a greater Boot another life: the node started again
// before it knew of the first.
//
// Refusals: WrongCluster when Cluster or Store are not the registered ones (an empty replaced disk); NotFound for an unknown
// Node; InvalidArgument for a new region without a location or a change of region; Conflict for the Nonce of an earlier
// life (a late repetition, or a copy of a disk that had not registered yet: it draws another).
type RegisterNode struct {
	// Cluster is the cluster that the node believes to join; zero joins any.
	Cluster rhumb.ClusterID
	Node    rhumb.NodeID
	Store   rhumb.UUID
	Boot    rhumb.BootSeq
	// Nonce is random and made once per life. The node has stored it before it registers, and keeps it over retries.
	Nonce uint64
	// Previous is the nonce of the life before, as the node's disk has it; 0 when it has none. When metadata knows a later
	// one, the disk is an older copy: the new life is marked short.
	Previous uint64
	// Short says that the node knows of its disks that they have lost something that they had made durable.
	Short bool
	// Region is the name of the node's region. A name that is new makes a region at Location.
	Region string
	Zone   string
	// Location is where the node is, when HasLocation; else it is where its region is.
	Location    rhumb.Point
	HasLocation bool
	// Addr, HeartbeatAddr and AdminAddr are "host:port".
	Addr, HeartbeatAddr, AdminAddr string
	// Binary is the version of the node's program.
	Binary string
}

// Placement says which nodes hold the ranges of one block of hash slots: for each slot the replicas, first the one that
// is to be its primary. Package raftmeta/place makes placements.
type Placement struct {
	Region   rhumb.RegionID
	Replicas [][]rhumb.NodeID
}

// CreateClass makes a class with its hash slots in all regions of Placements, in one apply; it gives the class of equal
// settings when there is one. Placements may leave out regions with fewer live nodes than replicas, but not all regions.
type CreateClass struct {
	Settings   rhumb.ClassSettings
	Placements []Placement
}

// CreateTable makes a table, and the class of its settings when there is none yet, as CreateClass does. A name that is
// taken by a table that is alike gives that table; by another, AlreadyExists.
type CreateTable struct {
	Name     string
	Settings rhumb.ClassSettings
	rhumb.TableOptions
	Placements []Placement
}

// EnsureRegionBlocks gives a class its hash slots in regions that joined later or have got enough nodes. Regions that
// have them are left alone.
type EnsureRegionBlocks struct {
	Class      rhumb.ClassID
	Placements []Placement
}

// OpenSlot opens the next slot for the server-named keys of a node and class, in a new block when the last is used up.
// Opened is the count of slots that the proposer knows to be open (State.ActiveSlot); when more are open already, the
// result is the newest of them and nothing changes.
type OpenSlot struct {
	Node   rhumb.NodeID
	Class  rhumb.ClassID
	Opened uint32
	// Replicas hold the new range; the first must be Node. Package raftmeta/place chooses them.
	Replicas []rhumb.NodeID
}

// Member is one life of a member of an in-sync set. Vouched says that the member, in this life, holds everything that
// clients were told (ruling 17a): the record then names the life.
type Member struct {
	Node    rhumb.NodeID
	Boot    rhumb.BootSeq
	Vouched bool
}

// AlterISR changes the in-sync set of a range; only its primary proposes it (section 1.3). Epoch and Version must be the
// record's, the set no smaller than the class's minimum and part of the replicas, the primary in it, and each member that
// joins live with its current boot sequence; who is in sync may stay, dead or draining. The unchanged set is always accepted:
// it moves the version (ruling 7) and records the lives that the primary vouches for. Lives that it does not vouch for are
// in the record no longer.
type AlterISR struct {
	Range   rhumb.RangeID
	Epoch   rhumb.Epoch
	Version uint64
	Members []Member
}

// Elect makes a live in-sync node the primary in a new epoch. Without a Node it is the wish of the present primary to be
// relieved; the metadata leader fills in whom it finds, and where it finds nobody the command is a Conflict.
type Elect struct {
	Range   rhumb.RangeID
	Version uint64
	Node    rhumb.NodeID
	// InSync, when not empty, becomes the in-sync set: a part of the present one, with Node, not below the minimum.
	InSync []rhumb.NodeID
}

// FenceNode takes every role from a node that was found dead: each range whose primary it was gets a new epoch and the
// nearest live in-sync node as primary, and the node leaves every in-sync set that stays at its minimum. A range without
// another live in-sync node keeps its record until the node registers again. Boot must be the registered one, else
// Conflict. Fencing a fenced node changes nothing.
type FenceNode struct {
	Node rhumb.NodeID
	Boot rhumb.BootSeq
}

// SetNodeState drains a node (its roles are taken as FenceNode takes them, but it stays reachable and keeps its copies) or
// makes a draining node live again. Boot must be the registered one, else Conflict.
type SetNodeState struct {
	Node  rhumb.NodeID
	Boot  rhumb.BootSeq
	State rhumb.NodeState
}

// SetReplicas sets who holds copies of a range, and its preferred primary (NoNode leaves it as it is). In-sync members
// must stay; new ones start as learners, and must be live or draining.
type SetReplicas struct {
	Range     rhumb.RangeID
	Version   uint64
	Replicas  []rhumb.NodeID
	Preferred rhumb.NodeID
}

// QuarantineReplica notes that a replica has found its data damaged: the replica is not elected any more, another in-sync
// node becomes primary in its place, and it leaves the in-sync set where that stays at its minimum. Quarantining a
// quarantined replica changes nothing.
//
// Epoch is the epoch of the record that the replica knew; 0 in commands of earlier builds. Conflict if the range has a newer
// epoch: a replica repeats its notice, and a repetition that arrives after the readmission, which begins an epoch, must not
// quarantine the copy that was begun anew.
type QuarantineReplica struct {
	Range rhumb.RangeID
	Node  rhumb.NodeID
	Epoch rhumb.Epoch
}

// ReadmitReplica forgets a quarantine, after the replica has given up its damaged data. The range gets a new epoch: the
// replica has acknowledged, in the same life, entries that it holds no more, and a late word of that must not count.
// Conflict while the replica is in the in-sync set: its place there says that it holds what was acknowledged. Conflict also
// if the range has a newer epoch than Epoch, as for QuarantineReplica: a late repetition must not end a later quarantine.
type ReadmitReplica struct {
	Range rhumb.RangeID
	Node  rhumb.NodeID
	Epoch rhumb.Epoch
}

// RecoverRange accepts the loss of what no live, intact copy of a range holds: an operator asks for it, nothing else. Node
// becomes primary in a new epoch, and the in-sync set is Node and every other live replica that is not quarantined, filled up
// to the class's minimum with nodes that are not live. Node's own quarantine is forgotten; it must have given up its damaged
// data before. Replicas whose nodes are not live are quarantined. The record keeps what was accepted.
//
// Conflict when the record is not at Version, Node is not live, live and intact members of the in-sync set suffice for an
// election, one of them is there and Node is none, or damaged copies of live nodes would be needed for the minimum.
type RecoverRange struct {
	Range   rhumb.RangeID
	Version uint64
	Node    rhumb.NodeID
	// End, EndTime and Known are those of rhumb.Recovery, for the record.
	End     rhumb.Seq
	EndTime rhumb.Timestamp
	Known   rhumb.Seq
}

// SetRegionDead notes that no node of a region has lived for a while, so that names are created in other regions without
// asking it (State.RegionServes). A region with a node that is not fenced is a Conflict. The first node that registers
// there again ends it.
type SetRegionDead struct {
	Region rhumb.RegionID
}

// SetVoters records who votes in the metadata group. The group's driver applies it with each change of membership.
type SetVoters struct {
	Voters []rhumb.NodeID
}

// Batch applies commands in order, in one apply; each has a result of its own, in Result.Items, and a refused one does
// not stop the others. Batches do not nest.
type Batch struct {
	Commands []Command
}

func (SetRegionDead) code() code      { return codeSetRegionDead }
func (Init) code() code               { return codeInit }
func (AddRegion) code() code          { return codeAddRegion }
func (RegisterNode) code() code       { return codeRegisterNode }
func (CreateClass) code() code        { return codeCreateClass }
func (CreateTable) code() code        { return codeCreateTable }
func (EnsureRegionBlocks) code() code { return codeEnsureRegions }
func (OpenSlot) code() code           { return codeOpenSlot }
func (AlterISR) code() code           { return codeAlterISR }
func (Elect) code() code              { return codeElect }
func (FenceNode) code() code          { return codeFenceNode }
func (SetNodeState) code() code       { return codeSetNodeState }
func (SetReplicas) code() code        { return codeSetReplicas }
func (QuarantineReplica) code() code  { return codeQuarantineReplica }
func (ReadmitReplica) code() code     { return codeReadmitReplica }
func (RecoverRange) code() code       { return codeRecoverRange }
func (SetVoters) code() code          { return codeSetVoters }
func (Batch) code() code              { return codeBatch }
