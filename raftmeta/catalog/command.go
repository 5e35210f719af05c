package catalog

import (
	"github.com/rhumbdb/rhumb"
)

// Command is a change of the catalog. The types in this file and in
// command_access.go and operation.go are the only commands.
type Command interface {
	// wireCode returns the number of the command in stored bytes.
	wireCode() commandCode
	// applyTo executes the command. It checks everything before it changes anything: a refused
	// command must leave t untouched, since a batch continues after it.
	applyTo(t *tx) Result
	// fillWire writes the fields of the command into its stored form. commandDecoders has the way
	// back.
	fillWire(w *wireCommand)
}

// commandCode numbers a command in stored bytes: append only.
type commandCode uint8

const (
	codeInit          commandCode = 1
	codeAddRegion     commandCode = 2
	codeRegisterNode  commandCode = 3
	codeCreateClass   commandCode = 4
	codeCreateTable   commandCode = 5
	codeEnsureRegions commandCode = 6
	codeOpenSlot      commandCode = 7
	codeAlterISR      commandCode = 8
	codeElect         commandCode = 9
	codeFenceNode     commandCode = 10
	codeSetNodeState  commandCode = 11
	codeSetReplicas   commandCode = 12
	codeSetVoters     commandCode = 13
	codeBatch         commandCode = 14

	codeQuarantineReplica commandCode = 15
	codeReadmitReplica    commandCode = 16
	codeSetRegionDead     commandCode = 20
	codeRecoverRange      commandCode = 21

	codeSetTrust          commandCode = 30
	codeRevokeCertificate commandCode = 31
	codeSetGossipKeys     commandCode = 32
	codeForgetNode        commandCode = 33
	codeRevokeBearer      commandCode = 34

	// Above 140, because command_access.go has the codes from 40 on.
	codePrepareHandover   commandCode = 140
	codeAdoptHandover     commandCode = 141
	codeCancelHandover    commandCode = 142
	codeRecordRelapse     commandCode = 143
	codeStartOperation    commandCode = 50
	codeUpdateOperation   commandCode = 51
	codeControlOperation  commandCode = 52
	codeSetLeaving        commandCode = 53
	codeSetSetting        commandCode = 54
	codeRemoveRegion      commandCode = 55
	codeUnpinVotes        commandCode = 80
	codeSetClusterVersion commandCode = 90
)

// BatchMax bounds the commands of one Batch.
const BatchMax = 10_000

// RegionNameSizeMax and AddrSizeMax bound names of regions and zones, and addresses, in bytes.
const (
	RegionNameSizeMax = 64
	AddrSizeMax       = 256
)

// Init creates the cluster and registers its first node as node 1. Repeated with the same cluster
// id and nonce, it has the first result again. A cluster that exists otherwise is AlreadyExists.
type Init struct {
	Cluster rhumb.ClusterID
	First   RegisterNode
	// Gossip holds the first key of gossip. It is empty for an insecure cluster.
	Gossip []rhumb.GossipKey
}

// AddRegion adds a region. A region of that name at the same location is the result; at another
// location it is AlreadyExists.
type AddRegion struct {
	Name     string
	Location rhumb.Point
}

// RegisterNode registers the start of a node, which begins a new life (docs/replication.md#lives).
// Node is NoNode for a node without an id; a known Store gets its old id back. The node becomes
// live. If it had a life before, every range whose primary it was gets a new epoch, and another
// live in-sync node as primary where there is one: a restarted node never continues in its old
// epoch (rule S).
//
// The number of the new life is that of the registered one plus one, or Boot if that is greater: a
// node counts its starts, the catalog counts its lives. The same Nonce again has the first result
// again, or begins another life if Boot is greater: then the node restarted before it learned of
// the first result.
//
// Refusals:
//   - WrongCluster if Cluster or Store differ from the registered ones (an empty replaced disk).
//   - NotFound for an unknown Node.
//   - InvalidArgument for a new region without a location, and for a change of region.
//   - Conflict for the Nonce of an earlier life: a late repetition, or a copy of a disk that had
//     not registered yet. The node draws another nonce.
//   - AlreadyExists for the Name of another registered node.
//   - InvalidArgument for another Name than the bound one, for no Name although one is bound, and for a
//     forgotten node.
type RegisterNode struct {
	// Cluster is the cluster that the node expects to join; zero joins any cluster.
	Cluster rhumb.ClusterID
	Node    rhumb.NodeID
	Store   rhumb.UUID
	Boot    rhumb.BootSeq
	// Nonce is drawn at random once per life. The node stores it before it registers and keeps it
	// over retries.
	Nonce uint64
	// Previous is the nonce of the previous life according to the node's disk, or 0. If the catalog
	// knows a later one, the disk is an older copy, and the new life is marked short.
	Previous uint64
	// Short reports that the node's disks are known to have lost durable data.
	Short bool
	// Region is the name of the node's region. A new name creates a region at Location.
	Region string
	Zone   string
	// Location is the place of the node if HasLocation is set; otherwise the node is at the
	// location of its region.
	Location    rhumb.Point
	HasLocation bool
	// Addr, HeartbeatAddr and AdminAddr are "host:port".
	Addr, HeartbeatAddr, AdminAddr string
	// Binary is the text of the node's rhumb.Build. In Init it decides the version of the new cluster.
	Binary string
	// Name is the name in the node's certificate, which the proposer has verified; "" for an insecure
	// node. The first registration with a name binds the name to the node, also if earlier lives of the
	// node had none.
	Name string
	// Witness makes a new node one that votes in the metadata group and never holds data. It is fixed by the first registration, as the
	// region is. The first node of a cluster cannot be one.
	Witness bool
	// Proof shows that the node itself made the registration. It is nil for an insecure node, and in the log:
	// the metadata leader verifies it before the command enters the log (docs/replication.md#rule-speaker).
	Proof *RegistrationProof
}

// RegistrationProof is the signature of a node under its registration. Package node makes and verifies it.
type RegistrationProof struct {
	// At is the time of the signature, in nanoseconds since 1970.
	At int64
	// Chain is the certificate of the node and those between it and its authority, in DER.
	Chain     [][]byte
	Signature []byte
}

// Registrations returns the registrations in a command.
func Registrations(cmd Command) (out []RegisterNode) {
	switch c := cmd.(type) {
	case RegisterNode:
		return []RegisterNode{c}
	case Batch:
		for _, item := range c.Commands {
			out = append(out, Registrations(item)...)
		}
	}
	return out
}

// Revocations returns the revocations in a command.
func Revocations(cmd Command) (out []rhumb.Revocation) {
	switch c := cmd.(type) {
	case RevokeCertificate:
		return []rhumb.Revocation{c.Revocation}
	case RevokeBearer:
		return []rhumb.Revocation{c.Revocation}
	case Batch:
		for _, item := range c.Commands {
			out = append(out, Revocations(item)...)
		}
	}
	return out
}

// DropProofs returns a command without the proofs of its registrations, which replicas do not need.
func DropProofs(cmd Command) Command {
	switch c := cmd.(type) {
	case RegisterNode:
		c.Proof = nil
		return c
	case Batch:
		if len(Registrations(c)) == 0 {
			return c
		}
		items := make([]Command, len(c.Commands))
		for i, item := range c.Commands {
			items[i] = DropProofs(item)
		}
		return Batch{items}
	}
	return cmd
}

// Placement lists the nodes that hold the ranges of one block of hash slots: for each slot its
// replicas, the primary first. Package raftmeta/place chooses placements.
type Placement struct {
	Region   rhumb.RegionID
	Replicas [][]rhumb.NodeID
}

// CreateClass creates a class with hash slots in all regions of Placements, in one step. If a class
// with equal settings exists, that class is the result. Placements may leave out regions that have
// fewer live nodes than replicas, but not all regions.
type CreateClass struct {
	Settings   rhumb.ClassSettings
	Placements []Placement
}

// CreateTable creates a table, and the class of its settings if there is none, as CreateClass does.
// A table of that name with equal settings is the result; with other settings it is AlreadyExists.
type CreateTable struct {
	Name               string
	Settings           rhumb.ClassSettings
	rhumb.TableOptions // an empty LocationField selects the default
	// Placements are as in CreateClass. They are used only if the class is new.
	Placements []Placement
}

// EnsureRegionBlocks creates the hash slots of a class in regions that joined later or did not have
// enough nodes before. Regions that have slots are left unchanged.
type EnsureRegionBlocks struct {
	Class      rhumb.ClassID
	Placements []Placement
}

// OpenSlot opens the next slot for server-named keys of a node and class. It allocates a new block
// if the last one is used up. Opened is the number of slots that the proposer knows to be open
// (State.ActiveSlot). If more are open already, the newest of them is the result and nothing
// changes.
type OpenSlot struct {
	Node   rhumb.NodeID
	Class  rhumb.ClassID
	Opened uint32
	// Replicas will hold the new range; the first must be Node. Package raftmeta/place chooses
	// them.
	Replicas []rhumb.NodeID
}

// Member is a member of an in-sync set in one of its lives. Vouched reports that the member, in
// this life, holds everything acknowledged to clients; the record then names the life
// (docs/replication.md#rule-one-answer).
type Member struct {
	Node    rhumb.NodeID
	Boot    rhumb.BootSeq
	Vouched bool
}

// AlterISR changes the in-sync set of a range; only its primary proposes it
// (docs/replication.md#record). Epoch and Version must be those of the record. The set must be a
// subset of the replicas with at least the minimum size, and must contain the primary. Each member
// that joins must be live and in the life that the primary saw; a member that stays may be dead or
// draining. The unchanged set is always accepted: it moves the version (rule R) and replaces the
// recorded lives by those that the primary vouches for.
type AlterISR struct {
	Range   rhumb.RangeID
	Epoch   rhumb.Epoch
	Version uint64
	Members []Member
}

// Elect makes a live in-sync node the primary in a new epoch. Without a Node it is the request of
// the present primary to be relieved. The metadata leader then fills in a successor; if it finds
// none, the command is a Conflict.
type Elect struct {
	Range   rhumb.RangeID
	Version uint64
	Node    rhumb.NodeID
	// InSync, if not empty, becomes the in-sync set: a subset of the present one that contains Node
	// and is not below the minimum size.
	InSync []rhumb.NodeID
}

// FenceNode takes every role from a node that was found dead. Each range whose primary it was gets
// a new epoch and the nearest live in-sync node as primary. The node leaves every in-sync set that
// stays at its minimum size. A range without another live in-sync node keeps its record until the
// node registers again. Boot must be the registered one, else Conflict. Fencing a fenced node
// changes nothing.
type FenceNode struct {
	Node rhumb.NodeID
	Boot rhumb.BootSeq
}

// SetNodeState drains a node, or makes a draining node live again. Draining takes the node's roles
// as FenceNode does, but the node stays reachable and keeps its copies. It hands over the ranges whose
// primary it is: their handovers are prepared, and it serves them until then. Boot must be the
// registered one, else Conflict.
type SetNodeState struct {
	Node rhumb.NodeID
	Boot rhumb.BootSeq
	// State is NodeLive or NodeDraining. Fencing needs evidence and a command of its own.
	State rhumb.NodeState
}

// SetReplicas sets the nodes that hold copies of a range, and its preferred primary (NoNode keeps
// the present one). In-sync members must remain replicas. New replicas start as learners; their
// nodes must be live or draining.
type SetReplicas struct {
	Range     rhumb.RangeID
	Version   uint64
	Replicas  []rhumb.NodeID
	Preferred rhumb.NodeID
}

// QuarantineReplica records that a replica has found its data damaged. The replica is not elected
// any more, another in-sync node becomes primary in its place, and it leaves the in-sync set if the
// set stays at its minimum size. Quarantining a quarantined replica changes nothing.
//
// Epoch is the epoch of the record that the replica knew; it is 0 in commands of earlier builds. A
// range in a newer epoch is a Conflict. A replica repeats its notice, and readmission begins an
// epoch, so a repetition that arrives after the readmission must not quarantine the fresh copy.
type QuarantineReplica struct {
	Range rhumb.RangeID
	Node  rhumb.NodeID
	Epoch rhumb.Epoch
}

// ReadmitReplica ends a quarantine after the replica has discarded its damaged data. The range gets
// a new epoch: in the same life, the replica has acknowledged entries that it no longer holds, and
// a delayed acknowledgement must not count.
//
// A member of the in-sync set is a Conflict, because membership promises that the member holds
// every acknowledged entry. A range in a newer epoch than Epoch is a Conflict as well, as for
// QuarantineReplica: a late repetition must not end a later quarantine.
type ReadmitReplica struct {
	Range rhumb.RangeID
	Node  rhumb.NodeID
	Epoch rhumb.Epoch
}

// RecoverRange accepts the loss of data that no live, intact copy of a range holds. Only an
// operator proposes it. Node becomes primary in a new epoch. The in-sync set becomes Node and every
// other live replica that is not quarantined, filled up to the minimum size with nodes that are not
// live. The quarantine of Node ends; Node must have discarded its damaged data before. Replicas on
// nodes that are not live are quarantined. The record keeps the loss that was accepted.
//
// It is a Conflict if the record is not at Version, if Node is not live, if the live and intact
// members of the in-sync set suffice for an election, if such a member exists and Node is not one,
// or if the minimum size would need damaged copies on live nodes.
type RecoverRange struct {
	Range   rhumb.RangeID
	Version uint64
	Node    rhumb.NodeID
	// End, EndTime and Known go into the record; see rhumb.Recovery.
	End     rhumb.Seq
	EndTime rhumb.Timestamp
	Known   rhumb.Seq
}

// SetRegionDead records that a region has had no live node for a while, so that names are created
// in other regions without asking it (State.RegionServes). A node in the region that is not fenced
// makes it a Conflict. The first node that registers there again ends it.
type SetRegionDead struct {
	Region rhumb.RegionID
}

// SetTrust changes which authorities the nodes accept, besides those in their own files. An authority in
// Trust is added; nodes accept it if its proof convinces them. An authority that is there already
// gets another certificate and proof. An authority whose fingerprint is in Distrust is removed, and
// nodes reject it even if it is in their files. This is final: anybody could otherwise repeat the proof of
// an authority whose key was stolen. Repeating the command changes nothing.
type SetTrust struct {
	Trust    []rhumb.Authority
	Distrust []string
}

// RevokeCertificate makes the nodes reject a certificate. Entries that expired rhumb.RevokedKeep before
// Revocation.At are forgotten at the same time. Entries about operators are never forgotten.
// Revoking a revoked certificate keeps the first reason and the later expiry.
type RevokeCertificate struct {
	Revocation rhumb.Revocation
}

// RevokeBearer makes the nodes reject every certificate of a user or operator (Revocation.Name) that was
// issued before Revocation.At. No node has to know the certificates. A later revocation of a user replaces
// an earlier one; those of operators all stay, because the order of the metadata decides which of an
// operator's signatures count.
//
// It has a code of its own: a build that does not know it stops, and never applies it as something else.
type RevokeBearer struct {
	Revocation rhumb.Revocation
}

// SetGossipKeys replaces the keys of gossip. Version is the version that the proposer saw, else Conflict;
// the new keys get the next one.
type SetGossipKeys struct {
	Version uint64
	Keys    []rhumb.GossipKey
}

// ForgetNode removes a fenced node for good: it cannot register again, and another store may register
// with its name. Forgetting a forgotten node changes nothing. Boot must be the registered one, else
// Conflict.
//
// With Empty, the node must hold no copy and no vote, and may be decommissioning instead of fenced: it is
// fenced in the same step. Commands of earlier builds lack Empty.
type ForgetNode struct {
	Node  rhumb.NodeID
	Boot  rhumb.BootSeq
	Empty bool
}

// PrepareHandover reserves an epoch for an in-sync node, to which the primary then hands over the range
// (docs/replication.md#handover). The primary serves on meanwhile. Preparing the same handover again changes
// nothing; a handover to another node is a Conflict until it is cancelled.
type PrepareHandover struct {
	Range   rhumb.RangeID
	Version uint64
	Target  rhumb.NodeID
}

// AdoptHandover makes the target of the prepared handover the primary of the reserved epoch. The target proposes
// it once it has begun the epoch. A repetition changes nothing. It names no version: the epoch is allocated once, and
// changes of the record that leave the handover prepared do not matter. Boot must be the registered life of the target,
// else Conflict: a later life that found itself primary of the epoch would begin it a second time.
type AdoptHandover struct {
	Range rhumb.RangeID
	Epoch rhumb.Epoch
	Boot  rhumb.BootSeq
}

// CancelHandover withdraws a prepared handover. The reserved epoch is never allocated again. If the primary has
// stopped already, it notices and asks for an election.
type CancelHandover struct {
	Range   rhumb.RangeID
	Version uint64
}

// SetVoters records the voters of the metadata group. The driver of the group applies it with each
// change of membership.
type SetVoters struct {
	Voters []rhumb.NodeID
}

// SetClusterVersion raises the active cluster version by one (docs/replication.md#versions). Previous is the
// version on which the decision was made; if another one is active, the command is Conflict. It is refused
// as long as a registered node runs a program that does not support Version. Nodes that an operator forgot do
// not count, and neither do the fenced nodes in Without: these cannot register again until they run a
// program that supports the version.
type SetClusterVersion struct {
	Version, Previous rhumb.ClusterVersion
	Without           []rhumb.NodeID
}

// Batch applies commands in order, in one step. Each has its own result in Result.Items, and a
// refused command does not stop the others. Batches do not nest.
type Batch struct {
	Commands []Command
}

// needs: a number of buckets makes ranges of several slots.
func (c RegisterNode) needs() rhumb.Feature {
	if c.Witness {
		return rhumb.FeatureVoters
	}
	return rhumb.NoFeature
}

func (c CreateClass) needs() rhumb.Feature { return bucketsNeed(c.Settings) }
func (c CreateTable) needs() rhumb.Feature { return bucketsNeed(c.Settings) }

func bucketsNeed(c rhumb.ClassSettings) rhumb.Feature {
	// Both features came with one cluster version, so one of them speaks for both.
	if f := needsOfSettings(c); f != rhumb.NoFeature {
		return f
	}
	if c.Buckets != 0 {
		return rhumb.FeatureSplit
	}
	return rhumb.NoFeature
}

func (SetRegionDead) wireCode() commandCode      { return codeSetRegionDead }
func (Init) wireCode() commandCode               { return codeInit }
func (AddRegion) wireCode() commandCode          { return codeAddRegion }
func (RegisterNode) wireCode() commandCode       { return codeRegisterNode }
func (CreateClass) wireCode() commandCode        { return codeCreateClass }
func (CreateTable) wireCode() commandCode        { return codeCreateTable }
func (EnsureRegionBlocks) wireCode() commandCode { return codeEnsureRegions }
func (OpenSlot) wireCode() commandCode           { return codeOpenSlot }
func (AlterISR) wireCode() commandCode           { return codeAlterISR }
func (Elect) wireCode() commandCode              { return codeElect }
func (FenceNode) wireCode() commandCode          { return codeFenceNode }
func (SetNodeState) wireCode() commandCode       { return codeSetNodeState }
func (SetReplicas) wireCode() commandCode        { return codeSetReplicas }
func (QuarantineReplica) wireCode() commandCode  { return codeQuarantineReplica }
func (ReadmitReplica) wireCode() commandCode     { return codeReadmitReplica }
func (RecoverRange) wireCode() commandCode       { return codeRecoverRange }
func (SetTrust) wireCode() commandCode           { return codeSetTrust }
func (RevokeCertificate) wireCode() commandCode  { return codeRevokeCertificate }
func (RevokeBearer) wireCode() commandCode       { return codeRevokeBearer }
func (SetGossipKeys) wireCode() commandCode      { return codeSetGossipKeys }
func (ForgetNode) wireCode() commandCode         { return codeForgetNode }
func (SetVoters) wireCode() commandCode          { return codeSetVoters }
func (PrepareHandover) wireCode() commandCode    { return codePrepareHandover }
func (AdoptHandover) wireCode() commandCode      { return codeAdoptHandover }
func (CancelHandover) wireCode() commandCode     { return codeCancelHandover }

func (PrepareHandover) needs() rhumb.Feature { return rhumb.FeatureHandover }
func (AdoptHandover) needs() rhumb.Feature   { return rhumb.FeatureHandover }
func (CancelHandover) needs() rhumb.Feature  { return rhumb.FeatureHandover }

func (SetClusterVersion) wireCode() commandCode { return codeSetClusterVersion }
func (Batch) wireCode() commandCode             { return codeBatch }
