// Package catalog is the agreed state of a cluster: its regions, nodes, classes, tables, blocks of slots and ranges, and
// the commands that change it. It is the state machine of the metadata group, as a value: no clock, no goroutine, no I/O.
//
// A [State] never changes. [State.Apply] gives the next one, which shares all that the command left alone, and says what
// was touched. Every replica that applies the same commands to the same state gets the same state and the same results,
// refusals included; a refused command changes nothing.
//
// # Commands
//
// Whatever changes a range names the version of the record it was decided on and is refused with kind Conflict when the
// record has moved on; the result then carries the newer record. Commands may be repeated without harm: each is either a
// compare-and-set, or recognised as already done.
//
// Decisions of policy (which nodes hold a new range) stand in the command, made by its proposer and only checked here, so
// that a new policy never makes two replicas differ. The one exception is who takes over from a node: [FenceNode],
// [RegisterNode] and [SetNodeState] derive that for all its ranges in one apply, so that the entry stays small and the
// takeover atomic: the nearest live in-sync node by whole metres, then the one with the fewest primaries, then the lowest
// id.
//
// # Invariants
//
// [State.Check] lists them: the primary is in sync, the in-sync set is part of the replicas and never smaller than the
// class's minimum, epochs are never used twice (Allocated only grows), versions only grow, every range lies in a block of
// its class, and every reference leads somewhere.
//
// # Structure
//
// The records lie in persistent B-trees keyed by 64-bit numbers. A change copies the path to one record (three or four
// tree nodes at 10^5 ranges); all that one apply touches is copied once. Records handed out are shared: callers only read
// them.
//
// # Encoding
//
// Commands, results and states are CBOR (RFC 8949, core deterministic) with integer keys, and stand in the Raft log and
// its state transfers. A command of an unknown version, code or field is kind Incompatible: whoever applies must stop, for
// skipping it would make its copy differ.
//
// # Concurrency
//
// A State may be read by any number of goroutines. Apply may be called on one State by several; each gets its own result.
//
// # Testing
//
// Transcripts in testdata replay commands and print what changed; golden vectors fix the bytes; random command sequences
// check the invariants after each step and that a decoded copy goes on exactly as the original; decoders are fuzzed.
package catalog
