// Package transfer copies ranges between nodes. A replica whose log was trimmed away cannot catch up
// by log, so it copies the range as a whole from another replica: it receives a set of tables
// (storage.Export), puts it in the place of its own copy in one step (storage.Install), and then
// follows the log as usual (docs/replication.md#rule-transfer).
//
// # Who asks whom
//
// The node that needs a copy asks. It learns from the primary that its log does not reach far enough
// (Host.CopiesWanted), and chooses the nearest in-sync replica, so that a primary in another region
// is not loaded while a neighbour has the data. Any replica of the range would be safe as a donor:
// only committed entries are final, and a set that is not committed up to the end of the receiver's
// log is rejected.
//
// The donor makes a set in the background. The receiver asks again until the set is made, so that a large
// range at a low rate takes the time that it needs, and the receiver notices a donor that makes no progress.
//
// # Interruptions
//
// A broken transfer continues at the first chunk that the receiver lacks, also after the receiver or the
// donor has restarted. Until then the primary keeps the log that follows, for keptMost. The donor keeps a
// set until it was not read for idleMost, also across its own restarts, or until the receiver gives it up.
// When the set is gone, or the donor does not answer, the receiver begins with another set, from the
// nearest donor that did not fail.
//
// # Bounds
//
// A node receives inMost ranges and sends outMost at a time, those first that have the fewest in-sync
// replicas. Both sides keep to the rate of Config.Rate. Nothing here takes a lock of a replica, and
// the connections are apart from those of heartbeats and of replication, so neither waits.
//
// # Concurrency
//
// Every method may be called from any goroutine. Manager.mu is never held while the disk or the
// network is used.
package transfer
