// Package peer connects a node to the other nodes. Gossip finds nodes and
// spreads their labels, with memberlist. Network holds links for the
// messages of replicas (docs/formats/link.md), and gRPC connections for
// heartbeats, Raft and forwarded requests.
//
// Gossip is a hint and never evidence
// (docs/replication.md#failure-detection). Whether a node is dead is decided
// by heartbeats between pairs of nodes. Heartbeats have a connection and a
// server port of their own, so that they never wait for a large append or a
// state transfer. Transfers have a connection of their own too.
//
// # Who speaks
//
// With TLS, a node is the name in its certificate. The catalog binds the name
// to a node number when the node first registers, and every message names a
// number. So each receiver compares three things: the certificate of the
// connection, the name that the catalog binds to the number, and the number
// in the hello or in the message.
//
//   - A link, Replicate and Heartbeat carry messages of registered nodes only. The name must be the bound one.
//   - Raft and Metadata are also for nodes that are about to register: the copy of the metadata of a new
//     node takes part in the group before it can show the registration. Such a node may use a number and
//     a name that nobody else has, and no other.
//   - Forward, DescribeReplica, DiscardReplica, VerifyReplicas and DescribeIdentity name no sender. The caller must be
//     some registered node.
//   - A node that dials expects the bound name at the other side, so that an old address, or one that
//     gossip made up, leads nowhere.
//
// A third node may relay Raft and Metadata. Its certificate proves nothing
// about the origin, so the origin signs the message, together with the
// cluster, its own number, the number of the destination and the time. The
// answer to a relayed request is signed as well, together with the signature
// of the request. A relay can still drop messages, as any network can, and
// repeat it for proofAgeMax, which Raft and the commands of the catalog
// tolerate from any network.
//
// A node may still lie about itself. The protocols assume that registered
// nodes follow the rules (docs/replication.md#assumptions). A certificate
// that was stolen is revoked in the metadata. The Source in package identity
// then ends its connections on all nodes.
//
// Without TLS nothing proves who a message is from, which is why such nodes
// bind loopback addresses only.
//
// # Keys of gossip
//
// With TLS, memberlist encrypts gossip with AES-256-GCM and rejects
// everything else. The keys are in the metadata, so that a node that restarts
// has them on its disk. A node that has none yet begins with a random key of
// its own, which makes it deaf instead of open, and asks another node for the
// keys over TLS (Cluster.Contact). Gossip decides nothing, so a leaked key
// reveals addresses and labels of nodes, and lets its holder invent nodes
// that nobody can connect to.
//
// # Concurrency
//
// Network.Send and similar methods never block. Each peer has a bounded queue
// per kind of traffic, and a message that does not fit is dropped and
// counted. Every protocol on top tolerates loss: replicas and Raft
// retransmit, heartbeats repeat.
package peer
