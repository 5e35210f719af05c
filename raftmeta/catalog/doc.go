// Package catalog holds the agreed state of a cluster (its regions, nodes, classes, tables, blocks
// of slots and ranges) and the commands that change it. It is the state machine of the metadata
// group, as a value: it has no clock, goroutine or I/O.
//
// A [State] never changes. [State.Apply] returns the next state, which shares every unchanged
// record, and the records that were touched. Replicas that apply the same commands to the same
// state reach the same state and the same results, refusals included. A refused command changes
// nothing.
//
// # Commands
//
// A command that changes a range names the version of the record on which it was decided. If the
// record has changed since, the command is refused with kind Conflict, and the result carries the
// newer record. Commands may be repeated without harm: each is a compare-and-set or recognises that
// it is already done.
//
// Decisions of policy, such as the nodes that hold a new range, are part of the command. Its
// proposer makes them, and apply only checks them, so a new policy never makes two replicas differ.
// The one exception is the successor of a node: [FenceNode], [RegisterNode] and [SetNodeState]
// choose a successor for each of its ranges while they are applied, so that the entry stays small
// and the takeover is atomic. They choose the live in-sync node nearest to the preferred primary
// ([State.HeirWithout]); nodes that are equally near take turns by range. Who fails first makes no
// difference, so that a plan of a failover can ask the same rule.
//
// # Identities
//
// A node that registers over TLS brings the name in its certificate, which the proposer has verified. The
// first registration with a name binds the name to the node. From then on the node registers with this
// name only, and no other node registers with the name: peers decide by it who may speak for the node
// ([State.MaySpeak]). An operator frees the name of a node whose disk is lost with [ForgetNode]. The
// number of the node is not reused, and the node cannot return, so that two disks never share an identity.
//
// [Security] lists authorities that are trusted besides those in files, authorities and certificates that
// are rejected, and the keys of gossip. Lists are bounded (rhumb.AuthoritiesMax, rhumb.RevokedMax,
// rhumb.GossipKeysMax). Certificates are opaque here: what a parser accepts may differ between builds, and
// replicas must not differ. Whoever proposes them has parsed them.
//
// Time enters only through commands. [RevokeCertificate] carries the time of its proposer, and forgets
// entries that expired long before it. A wrong clock that is ahead by less than rhumb.RevokedKeep loses no
// entry that matters.
//
// # Regions and operations
//
// The number of a region is part of keys and is never assigned twice. A region that is removed keeps its record, which names
// the region whose nodes have its ranges ([State.HostRegion]), and loses its name.
//
// Long operations are records too ([StartOperation]). They say what an operator wants and how far that is; commands about ranges
// and nodes carry it out. Marks on nodes, ranges and regions (Leaving, Into) show everybody else the state of the change, so that
// nobody has to read operations to decide something. Ending an operation takes its marks back in the same step.
//
// # Invariants
//
// [State.Check] verifies them: the primary is in sync; the in-sync set is a subset of the replicas
// and never smaller than the minimum of the class; epochs are never reused (Allocated only grows)
// and versions only grow; every range is in a block of its class; every reference resolves.
//
// # Structure
//
// Records are kept in persistent B-trees with 64-bit keys. A change copies the path to one record,
// which is three or four tree nodes at 10^5 ranges. A tree node that one apply touches several
// times is copied once. Records returned to callers are shared and must not be modified.
//
// # Encoding
//
// Commands, results and states are encoded as CBOR (RFC 8949, core deterministic) with integer
// keys. Commands are part of the Raft log and states of its state transfers. A command with an
// unknown version, code or field is kind Incompatible: a replica that meets one must stop, because
// skipping it would make its state differ.
//
// # Concurrency
//
// Any number of goroutines may read a State, and may call Apply on it. Each call returns its own
// result.
//
// # Testing
//
// Transcripts in testdata replay commands and print what changed. Golden vectors fix the bytes.
// Random command sequences check the invariants after each step, and that a decoded copy continues
// exactly as the original. Decoders are fuzzed.
package catalog
