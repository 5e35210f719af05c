// Package node is one running node: it opens the disks, listens, finds its cluster, and wires the parts that never import
// each other. package host serves its ranges, raftmeta its copy of the metadata, peer its connections, server its clients.
//
// # Life
//
// Start opens the stores and listens. A node whose store belongs to no cluster waits: for Init, which makes it the first of
// a new cluster, or for gossip to find a member, which it asks to be registered. A node that belongs to a cluster registers
// its new life (boot sequence) and takes part once its own copy of the metadata shows it. A node that is alive and was
// fenced by mistake begins a new life in place (ruling 11 of the replication design).
//
// Drain gives up all primaries before Close, so that nobody has to notice the absence first.
package node
