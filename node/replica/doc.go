// Package replica is the replication protocol of one range, as a pure state machine: messages, proposals and news go
// in, and Ready says what to write, send, answer and ask. It has no goroutine, no clock, no lock and no I/O, in the
// manner of etcd's raft.RawNode, so that the simulator and the real host run the same code. It implements rules W, A,
// C, R, E, P, L, T and S of docs/replication.md for slack = 0: every in-sync replica must acknowledge.
//
// # Duties of the driver
//
// One goroutine at a time calls a Replica. The driver (node/host) loops:
//
//  1. Feed inputs: Describe, Propose, Step, Persisted, Fetched, Peer, Tick, Activate, and Close every now and then.
//  2. When HasReady, take Ready and carry it out in full, in this order:
//     call lease.Pairs.Exclude when Promised is set; apply one storage batch of {UndoAbove, Append, Promised, Quarantine,
//     Commit, Trim}; send Messages, each Promise with the reading of the node's clock; deliver Answers, Meta and Fetch.
//     The batch must be visible to reads of storage before Ready is called again, and before Activate; it need not be
//     durable yet. Batches become durable in the order of their Readys.
//  3. When the batch is durable, send AfterSync and call Persisted with the number of the Ready. A Ready without MustSync
//     needs neither.
//
// The driver gives time: a monotonic time.Duration since an arbitrary start, and hybrid timestamps that lie above every
// closed timestamp its node has agreed to (lease.Pairs.Passed). NeedsTick tells whether the replica waits for something
// that only time brings; an idle range needs no tick. Every break of the stream to a peer, and every new life of a peer, is
// reported by Peer with connected false, then true, and messages of the earlier stream are dropped after that.
//
// A driver that starts up registers the node's life with metadata first. Durable.Promised of each range is then at least the
// epoch that the record had before (ruling 16a): an older copy of a disk has forgotten promises.
//
// A driver that starts up calls lease.Pairs.Exclude with the promise of every replica it loads, before lease.Pairs
// grants anything: a promise outlives the process.
//
// # When a write is evaluated
//
// Propose decides conditions and merges patches at once, against the newest of Proposal.Base and the overlay: the
// writes of entries that storage may not have. Entries handed out by one Ready leave the overlay when the Ready after
// it is called. So a Base given after a call of Ready must be read from storage that had applied every Ready before
// that call; a Base that is given before it may be one Ready older. An overlay value never hides a newer base.
//
// Several proposals between two calls of Ready become one log entry (within EntryBytesMax), each with its own
// timestamp. An entry is sealed by Ready, never before: a proposal in an unsealed entry certainly had no effect.
//
// # Answers
//
// Each Propose is answered by exactly one Answer. Rule W(6): an answer that reveals the effect of entry k waits until
// commit >= k. A failed condition reads the range without writing; to be linearizable without a clock its answer waits
// for the commit of an entry that was sealed after it was evaluated (a no-op entry is made when none is due anyway), so
// a deposed primary cannot answer from the past. A no-op of IfNewer stands in the log itself. A repeated RequestID
// that is in flight joins the pending answer; one that storage has seen (Proposal.Seen) is answered from there once its
// entry is committed.
//
// # Invariants
//
// I1 one primary per epoch; I2 one content per (epoch, seq); I5 commit never decreases and nothing committed is undone;
// I7 timestamps grow strictly along the log; I8 no in-sync set below min_insync is proposed;
// a primary appends nothing at or below what its Close gave. Where this replica itself would break one it panics. Where
// bytes from disk or a peer contradict one it becomes Quarantined: it keeps its data, acknowledges nothing, and says why.
//
// # Testing
//
// testdata holds transcripts that read as stories; property_test.go plays thousands of seeded schedules of three
// replicas with lost, repeated and reordered messages and crashes that lose unsynced writes.
package replica
