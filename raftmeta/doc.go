// Package raftmeta is the metadata group: the replicas of the catalog, kept alike by Raft (etcd-io/raft), with a few voters
// and every other node as a learner, so that each node has a current copy and no read path asks another region.
//
// A [Group] is this node's replica of one group. It drives raft.RawNode in one goroutine: messages, proposals, reads and
// ticks go in; what must be kept is written to a [KV], then messages leave through a [Transport] and committed commands
// are applied to the catalog. There is one group now, number 0; nothing here assumes that there is only one.
//
// # Use
//
// The founder of a cluster calls [Bootstrap] once. Every node calls [Open]; a node that is new has been registered first
// (any member's Propose of catalog.RegisterNode gives it its id), opens with an empty store, and is made a learner by the
// leader's controller. [Group.Propose] may be called on any node; it finds the leader, and when it returns, State on the
// same node includes the change. Proposals that leave placements open are completed by the leader (raftmeta/place).
//
// # Outcomes
//
// Propose repeats a command whose fate it does not know, for instance when the leader died: every command is a
// compare-and-set or recognises that it is done. So a Conflict may be the echo of one's own success; the record in the
// result says. When the context ends first, the error is Unavailable if the command certainly was not applied, else
// Unknown.
//
// # Controller
//
// The leader's controller (controller.go) makes every registered node a learner, keeps the voters as raftmeta/place wants them,
// fences nodes on evidence, and moves replicas and primaries. Each of its acts is an ordinary command, decided on the
// present state and harmless when repeated, so that a change of leader in the middle needs no care.
//
// # Starting
//
// A replica that starts is silent until it has proved its log (proof.go): it takes entries, and neither votes nor acknowledges.
// The leader removes a replica that lost entries and takes it in anew. Recover is for the loss of most voters.
//
// # Invariants
//
// Entries, votes and terms are durable before any message that promises them leaves. A command that cannot be decoded
// stops the replica: skipping it would make its copy differ. Pending proposals, waiting reads, the inbox, each watch and
// the log have named bounds.
//
// # Concurrency
//
// All methods may be called by any number of goroutines. State never blocks.
//
// # Testing
//
// The tests run groups of several nodes in one process over a network that loses, delays and cuts, under testing/synctest,
// so that time costs nothing; and the log's storage against a map and the real store.
package raftmeta
