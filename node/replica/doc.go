// Package replica implements the replication protocol of one range as a pure state machine.
// Messages, proposals and observations go in; [Ready] lists what the driver must write, send,
// answer and propose. The package has no goroutines, clocks, locks or I/O, in the manner of etcd's
// raft.RawNode, so the simulator and the real host run the same code. It implements rules W, A, C,
// R, E, P, L, T and S of docs/replication.md for slack = 0: every in-sync replica must acknowledge.
//
// # Duties of the driver
//
// One goroutine at a time calls a Replica. The driver (node/host) loops:
//
//  1. Feed inputs: Describe, Propose, Step, Persisted, Fetched, Peer, Tick, Activate, and Close
//     from time to time.
//  2. When HasReady returns true, take a Ready and carry it out in full, in this order:
//     call lease.Pairs.Exclude if Promised is set; apply one storage batch of {UndoAbove, Append,
//     Promised, Quarantine, Commit, Trim}; send Messages, each Promise with the reading of the
//     node's clock; deliver Answers, Meta and Fetch.
//     The batch must be visible to reads of storage before Ready is called again, and before
//     Activate; it need not be durable yet. Batches become durable in the order of their Readys.
//  3. When the batch is durable, send AfterSync and call Persisted with the batch number of the
//     Ready. A Ready without MustSync needs neither.
//
// The driver supplies the time: a monotonic time.Duration since an arbitrary start, and hybrid
// timestamps above every closed timestamp that its node has agreed to (lease.Pairs.Passed).
// NeedsTick reports whether the replica waits for something that only time brings; an idle range
// needs no ticks. If the stream to a peer breaks, or the peer begins a new life, the driver calls
// Peer with connected false and then true, and drops later arrivals of the earlier stream.
//
// At startup, the driver first registers the node's life with metadata. Durable.Promised of each
// range is then at least the epoch that the record had before the registration
// (docs/replication.md#rule-relearn), because an older copy of a disk has forgotten promises.
//
// At startup, the driver also calls lease.Pairs.Exclude with the promise of every replica that it
// loads, before lease.Pairs grants anything: a promise outlives the process.
//
// # When a write is evaluated
//
// Propose checks conditions and merges patches immediately, against the newer of Proposal.Base and
// the overlay. The overlay holds the writes of entries that storage may not have yet. Entries
// handed out by one Ready leave the overlay at the following call of Ready. So a Base supplied
// after a call of Ready must be read from storage that had applied every Ready before that call. A
// Base supplied before the call may be one Ready older. An overlay value never hides a newer base.
//
// Proposals between two calls of Ready share one log entry (up to EntryBytesMax), each with its own
// timestamp. An entry is sealed by Ready, never earlier, so a proposal in an unsealed entry
// certainly had no effect.
//
// # Answers
//
// Each Propose is answered by exactly one Answer. An answer that reveals the effect of entry k waits
// until commit >= k (rule W). A failed condition reads the range without writing; to be
// linearizable without a clock, its answer waits for the commit of an entry that was sealed after
// the condition was evaluated. If no entry is due, a no-op entry is made. A deposed primary
// therefore cannot answer from the past. A no-op of IfNewer is recorded in the log itself. A
// repeated RequestID that is in flight shares the pending answer. One whose result is stored
// (Proposal.Seen) is answered from that result once its entry is committed.
//
// # Invariants
//
// I1: one primary per epoch. I2: one content per (epoch, seq). I5: commit never decreases and no
// committed entry is undone. I7: timestamps grow strictly along the log. I8: no in-sync set below
// min_insync is proposed. A primary appends nothing at or below a timestamp that its Close
// returned. If this replica itself would break an invariant, it panics. If bytes from disk or from
// a peer contradict one, it becomes Quarantined: it keeps its data, acknowledges nothing, and
// reports the reason.
//
// # Testing
//
// testdata contains transcripts that read as stories. property_test.go runs thousands of seeded
// schedules of three replicas with lost, repeated and reordered messages and crashes that lose
// unsynced writes.
package replica
