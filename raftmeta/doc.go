// Package raftmeta is the metadata group: replicas of the catalog, which Raft (etcd-io/raft) keeps
// identical. A few nodes are voters and every other node is a learner, so each node has a current
// copy and no read has to ask another region.
//
// A [Group] is one node's replica of one group. It drives raft.RawNode in a single goroutine.
// Messages, proposals, reads and ticks go in. The driver writes to a [KV] whatever has to be
// durable, then sends messages through a [Transport] and applies committed commands to the catalog.
// There is one group so far, number 0, but nothing in this package assumes that.
//
// # Use
//
// The founder of a cluster calls [Bootstrap] once. Every node calls [Open]. A new node is
// registered first: catalog.RegisterNode, proposed through any member, assigns its id. The node
// then opens with an empty store, and the leader's controller makes it a learner. [Group.Propose]
// may be called on any node. It finds the leader, and when it returns, State on the same node
// includes the change. The leader fills in placements that a proposal leaves open (raftmeta/place).
//
// # Outcomes
//
// If Propose does not learn the outcome of a command, for instance because the leader died, it
// proposes the command again: every command is a compare-and-set or recognises that it is already
// done. A Conflict may therefore be the echo of the caller's own success; the record in the result
// shows whether it is. If the context ends first, the error is Unavailable if the command certainly
// was not applied, and Unknown otherwise.
//
// # Controller
//
// The leader's controller (controller.go) makes every registered node a learner, keeps the voters
// that raftmeta/place wants, fences nodes on evidence, and moves replicas and primaries. Each of
// its actions is an ordinary command. A command is decided on the present state and harmless when
// repeated, so a change of leader needs no special care.
//
// # Starting
//
// A replica that starts is silent until it has proved its log (proof.go): it accepts entries, but
// neither votes nor acknowledges. The leader removes a replica that lost entries and readmits it as
// a new one. [Recover] is for the loss of most voters.
//
// # Invariants
//
// Entries, votes and terms are durable before any message that depends on them is sent. A command
// that cannot be decoded stops the replica: skipping it would make its copy differ. Pending
// proposals, waiting reads, the inbox, each watch and the log have named bounds.
//
// # Concurrency
//
// Any number of goroutines may call any method. State never blocks. The driver's goroutine alone
// touches Raft and the log; other goroutines reach it through channels and see its results through
// atomic pointers.
//
// # Testing
//
// The tests run groups of several nodes in one process under testing/synctest, over a network that
// loses, delays and partitions, so waiting takes no real time. The storage of the log is tested
// against a map and on the real store.
package raftmeta
