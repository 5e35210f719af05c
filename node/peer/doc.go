// Package peer connects a node to the other nodes. Gossip finds nodes and spreads their labels,
// with memberlist. Network holds gRPC connections for replication, heartbeats, Raft and forwarded
// requests.
//
// Gossip is a hint and never evidence (docs/replication.md#failure-detection). Whether a node is
// dead is decided by heartbeats between pairs of nodes. Heartbeats have a connection and a server
// port of their own, so that they never wait for a large append or a state transfer.
//
// # Concurrency
//
// Network.Send and similar methods never block. Each peer has a bounded queue per kind of traffic,
// and a message that does not fit is dropped and counted. Every protocol on top tolerates loss:
// replicas and Raft retransmit, heartbeats repeat.
package peer
