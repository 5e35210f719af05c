// Package host runs the replicas of one node: it feeds the pure replica.Replica of each range with client batches, peer
// messages, metadata and time, and carries out what they decide on disk and network.
//
// # One pass
//
// All events of a node go through one queue. A pass takes everything that waits, steps the replicas, gathers what they
// are ready to do into one Pebble batch per store, applies it (visible, not yet durable), sends the messages that may go
// at once, and answers callers. The batch is then synced outside the pass; when it is durable the replicas hear of it in
// a later pass, and what had to wait for the disk (acknowledgements) is sent.
//
// There is no goroutine that owns the passes. Whoever posts an event into an idle host runs the pass itself, syncs
// itself, and posts the result: a lone writer on a node without secondaries reaches its answer without one hand-off.
// When more arrives meanwhile, the pass moves to the host's own goroutine, so that a caller never works for others for
// long. While commitsInFlightMax commits are being synced no new pass starts: what arrives gathers into a larger batch,
// which is where group commit comes from.
//
// # Reads
//
// A strong read does not enter the queue. It loads the range's published read state (epoch, commit timestamp, the nodes
// that must have granted a lease), reads storage at that timestamp, and then checks the lease and the epoch: what was
// committed when the read began was visible to it, and nobody else could have acknowledged a write before it ended
// (rule L). Storage refuses a read at a timestamp below what it has collected; such a read starts again at a newer one.
//
// # Concurrency
//
// Replicas and pending calls belong to the pass. Everything else that is shared is atomic or guarded by a named mutex.
// Locks are never held across disk or network.
package host
