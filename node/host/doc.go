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
// # How copies end
//
// A slot that is gone takes no part any more; forgetSlot takes it out of the host. Different words say
// why, here and in the metadata:
//
//	what happened                                     in the metadata        here
//	the range does not exist any more: its table was  no record              DropRanges, dropRangesEvent, dropCopyEvent;
//	dropped, or it was merged, or a split cancelled                          slot.dropped if it happens during an install
//	the record lists other nodes as replicas          Range.Removed, until   moveAway, stepDownEvent, movedAwayEvent
//	                                                  the next epoch
//	the copy is damaged and begins again, empty       Range.Quarantined      discardEvent, dropEvent, discardedEvent
//	a whole copy takes its place                      nothing                installEvent, installedEvent, replaceSlot
//	another range of this node has its slots          Range.Merged           unite, retireSlot
//	the node was given up for good                    Node.Forgotten         nothing: the process ends
//	the region was removed; its ranges stay           Region.Removed         nothing
//
// # Concurrency
//
// Replicas and pending calls belong to the pass. Everything else that is shared is atomic or
// guarded by a named mutex. No lock is held across disk or network.
package host
