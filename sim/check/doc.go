// Package check decides whether a simulated or real cluster behaved correctly: whether one machine
// could have given the answers that clients saw, whether an acknowledged write was lost, and
// whether replicas broke an invariant of the replication protocol. The package is pure: it reads
// recorded histories and observed states and does not depend on their origin.
//
// # Checks
//
// Linearizable checks the history of each key with Porcupine, against a model of versions,
// conditions and patches. RealTime uses the log positions in the answers (versions, read
// timestamps): an operation that began after another had ended must not precede it in the log of
// the range. RealTime covers a whole range where Linearizable covers one key. Atomic compares
// batches with reads of several keys: a read sees all of a batch or nothing. Lists searches cycles of transactions on several lists. Audit finds every
// acknowledged write in the committed log, exactly once. Monitor checks replicas while they run.
//
// # Invariants
//
// Monitor asserts the invariants I1 to I9 of the protocol (docs/replication.md#invariants): one
// primary per epoch, matching logs, acknowledged entries on all in-sync members and on later
// primaries, no undo of committed entries, no stale lease read, timestamps that grow with the log,
// no in-sync set below its least size, and no two nodes that may serve reads of one range at the
// same time.
//
// # Testing
//
// Each check runs on handmade histories, correct and broken ones; the broken ones must fail.
package check
