// Package model checks the replication protocol of strong ranges by exhaustive search. It
// implements the protocol a second time, as small as possible: one range, three replicas, the
// metadata group as a register with compare-and-set, and an environment as hostile as the design
// allows. Explore visits every state within the bounds of a Config, Walk follows seeded random
// paths beyond them, and both report the first state that breaks an invariant with the path to that
// state. Rules have the letters of docs/replication.md (W, A, C, R, E, L, F, T, S).
//
// A rule belongs in the design only if something breaks without it. Mutations lists, for each rule,
// what to leave out, in which configuration the harm shows, and which invariant must then fail. The
// tests run all of them, which also checks the checker.
//
// # Steps
//
// Messages form a bounded set. A delivery does not remove its message, so each message may arrive
// late, twice or in any order, and a message that is never delivered is lost. A full set drops any
// message. Any node may be suspected at any time, records of elections are read late, and proposals
// to metadata arrive late or never.
//
// A crash loses everything that is not durable. A damaged restart also loses synced data: a suffix
// of the log, with or without the promise, the clock and the stored commit position, or everything
// after an image of the disk. Lease time is one round per holder: the end of a round ends the
// belief of the holder and the obligation of the grantor at one moment, which is the least distance
// that rule L permits. Hybrid time is divided into the intervals between closed timestamps, and a
// primary takes the lowest timestamp that the rules permit.
//
// # Invariants
//
// The constants of type Invariant list the invariants. Reads are not steps: every state is asked
// for the result of a read, so a read may happen anywhere.
//
// # Reduction
//
// States that differ only in the names of replicas count as one (symmetry.go), as do states that
// differ only in information that no node can use any more (normal.go). Visited states are kept as
// 64-bit fingerprints. With n states the probability that two share a fingerprint is below n²/2⁶⁵,
// which is one in 10⁵ for twenty million states.
//
// # Testing
//
// The tests exhaust the short configurations of Presets and catch every mutation, in a minute on
// two cores; -model.long adds the long ones. docs/model.md lists the figures.
//
// # Removals, regions and builds
//
// Removing a copy, learning of the removal and placing a copy again are steps of their own, so a node may learn of the removal when it has joined
// again (rule_removal.go). The replicas of Config.Far are in a second region. A range with Config.Spread keeps its in-sync set in both, and
// every state is asked whether it would survive the loss of either (rule_region.go). The replicas of Config.Older run a build that cannot read
// client writes until they restart (rule_older.go).
//
// # Conformance
//
// Guards are the rules of one replica in terms of an observer. Package sim checks the real replica against them in each step of a run. Their
// test checks them on this model, so that a guard can neither refuse a step of the protocol nor miss the rule that it is named after.
package model
