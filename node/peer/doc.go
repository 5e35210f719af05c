// Package peer connects one node to the others: memberlist for finding them and their labels (Gossip), and gRPC
// connections for everything that matters (Network): replication, heartbeats, Raft, forwarded requests.
//
// Gossip is a hint and never evidence (ruling 11): who is dead is decided by heartbeats between pairs of
// nodes, which have a connection and a server port of their own so that a snapshot or a large append never stands in
// front of them.
//
// # Concurrency
//
// Network.Send and its like never block: each peer has a bounded queue per kind of traffic, and what does not fit is
// dropped and counted. Every protocol above tolerates loss: replicas and Raft retransmit, heartbeats repeat.
package peer
