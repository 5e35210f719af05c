// Package check judges what a simulated or a real cluster did: whether the answers that clients saw could have come from
// one machine, whether a write that was acknowledged was lost, and whether the replicas ever broke an invariant of the
// replication protocol. It is pure: it reads recorded histories and observed states, and knows nothing of how they came
// about.
//
// # Judges
//
// Linearizable gives each key's history to Porcupine, with the semantics of versions, conditions and patches.
// RealTime uses the positions that the answers carry (versions, read timestamps): an operation that began after another
// had ended must not come before it in the range's log. It covers a whole range, where Linearizable covers one key.
// Atomic compares batches with reads of several keys: all of a batch is seen, or nothing. Audit finds every
// acknowledged write in the committed log, exactly once. Monitor watches replicas while they run.
//
// # Invariants
//
// Monitor asserts I1 to I9 of the protocol: one primary per epoch, log matching, in-sync members hold what was
// acknowledged, a later primary holds it too, nothing committed is undone, a lease read is never stale, timestamps grow
// with the log, an in-sync set is never too small, and no two nodes may serve reads of one range at a time.
//
// # Testing
//
// Each judge is tried on histories made by hand, good and bad; the bad ones are canaries that must fail.
package check
