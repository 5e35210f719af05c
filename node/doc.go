// Package node runs one node: it opens the disks, listens, finds its cluster, and connects the
// parts that never import each other. Package host serves the ranges of the node, raftmeta its copy
// of the metadata, peer its connections to other nodes, and server its clients.
//
// # Life
//
// Start opens the stores and listens. A node whose stores belong to no cluster waits for Init,
// which makes it the first node of a new cluster, or until gossip finds a member, which registers
// the node. A node that belongs to a cluster registers a new life (see docs/replication.md#lives)
// and serves ranges once its own copy of the metadata shows that life.
//
// A node that was fenced while alive begins a new life in place: a new [member] replaces the old
// one, and the process, its ports and its stores remain. So everything that belongs to one life is
// a field of member, and everything that outlives it a field of Node.
//
// # Identity
//
// A node has a certificate unless it is started with --insecure. The certificate names the cluster and the
// node, and both are fixed before the cluster exists: the founder creates the cluster of its certificate,
// and a node joins no other. The name is bound to the node's number and store when the node registers.
//
// The node takes its trust from its files and from its copy of the metadata, and applies each change
// of the metadata at once, also before it is registered: a certificate that is revoked must not help to
// join. Gossip is encrypted with keys from the metadata. A node that has none, because it is new, or that
// missed a rotation, gets them from another node over TLS (contact.go).
//
// Init over the network needs the certificate of an operator. Everything else that operators do is checked
// by package server against the users, roles and grants in the metadata.
//
// # Stopping
//
// Drain moves all primaries to other nodes before Close, so that no peer has to detect a failure.
package node
