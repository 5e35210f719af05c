// Package model checks the replication protocol of strong ranges by exhausting its states. It is the protocol written a
// second time, as small as it can be: one range, three replicas, the metadata group as a register with compare-and-set,
// and everything around them as hostile as the design allows. Explore visits every state within the bounds of a Config,
// Walk takes seeded random paths beyond them, and both report the first state that breaks an invariant with the path
// to it. The rules bear the letters of the replication design (W, A, C, R, E, L, F, T, S).
//
// A rule belongs in the design only if something breaks without it. Mutations lists, for each rule, what to leave out,
// where that shows, and which invariant must then fail; the tests run them all, so that the checker is checked as well.
//
// # What a step may do
//
// Messages stay in a bounded set: a delivery does not remove one, so each may come late, twice or in any order, and one
// that nobody delivers is lost. A full set drops any message. Anybody may be suspected at any time, records of elections
// are read late, proposals to metadata arrive late or never. A crash loses what is not durable. A damaged restart also loses
// synced data: a suffix of the log, with promise, clock and stored commit or without, or all that came after an image of
// the disk. Lease time is a round per holder: its end ends the holder's belief and the grantor's
// obligation at one moment, which is the least distance that rule L permits. Hybrid time is cut into the intervals
// between closed timestamps, and a primary takes the lowest timestamp that the rules permit.
//
// # Invariants
//
// The constants of type Invariant are the list. The ones that speak of reads ask in every state what a read would return
// now, so a read may happen anywhere.
//
// # Reduction
//
// States that differ only in the names of replicas count as one (symmetry.go), as do states that differ in what nobody
// can use any more (normal.go). Visited states are kept as 64-bit fingerprints; with n states the chance that any two
// share one is below n²/2⁶⁵, one in 10⁵ for twenty million.
//
// # Testing
//
// The tests exhaust the configurations of Presets that are marked short and catch every mutation, in a minute of two cores;
// -model.long adds the others. docs/model.md holds the figures.
package model
