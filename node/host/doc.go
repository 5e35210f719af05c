// Package host runs the replicas of one node. It feeds client batches, peer messages, metadata and
// time to the pure replica.Replica of each range, and carries out their decisions on disk and
// network.
//
// # One pass
//
// All events of a node enter one queue. A pass takes the waiting events, steps the replicas,
// collects their writes into one Pebble batch per store, applies the batch (visible, not yet
// durable), sends the messages that may leave at once, and answers callers. The batch is then
// synced outside the pass. Once the batch is durable, a later pass reports that to the replicas and
// sends the messages that had to wait for the disk (acknowledgements).
//
// No goroutine owns the passes. Whoever posts an event to an idle host runs the pass itself, syncs
// itself, and posts the result: a lone writer on a node without secondaries gets its answer without
// a single hand-off. If more events arrive meanwhile, the pass moves to the host's own goroutine,
// so that a caller does not work for others for long. While commitsInFlightMax commits are being
// synced, a pass takes only what does not lead to another commit: acknowledgements of peers and commits that have become
// durable, which answer callers. All other events accumulate into a larger batch, which is the source of group commit.
//
// # Reads
//
// A strong read does not enter the queue. It loads the range's published read state (epoch, commit
// timestamp, and the nodes that must have granted a lease), reads storage at that timestamp, and
// then checks the lease and the epoch. Everything committed when the read began was visible to it,
// and no other node could have acknowledged a write before it ended (rule L). Storage rejects reads
// below the GC threshold; the reader retries at a newer timestamp.
//
// # Concurrency
//
// Replicas and pending calls belong to the pass. Everything else that is shared is atomic or
// guarded by a named mutex. No lock is held across disk or network.
package host
