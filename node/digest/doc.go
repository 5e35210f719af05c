// Package digest compares the replicas of ranges with each other. Checksums show that a disk changed bytes.
// They do not show that a program wrote wrong bytes, that memory changed them before they were written, or that
// a write never reached the disk. Such a copy is found only by comparison
// (docs/decisions/0037-what-a-digest-trusts.md).
//
// # One comparison
//
// The primary of a range takes its commit position and the timestamp there. No entry will ever be at or below
// that timestamp except those up to the position, so every replica that has them holds the same records as of
// it. Each replica waits until it has committed the position, reads its records as of the timestamp at the rate of
// Config.Rate, and answers with a digest for each table (storage.Digest). Judge, which is pure, says which
// replicas differ and which are trusted. A difference counts only if a second comparison, at a later
// position, finds it again. Then the replicas that differ quarantine themselves, and are replaced by a copy
// from another node (docs/replication.md#rule-heal).
//
// # Why a committed position and not a clock
//
// A digest as of a time of the clock would have to wait until the range is closed up to that time, which needs
// the agreement of all members. The timestamp of a committed entry is closed at once: timestamps grow strictly
// along the log, and committed entries are never undone. An idle range has such a timestamp, too, and the
// answer of a replica that lags comes as soon as it has the entry.
//
// # What may go wrong without harm
//
// A replica that cannot answer is silent, and silence does not count as a difference. A replica that has collected versions as
// of the timestamp is silent as well: it is asked again with the next comparison. A false difference would need
// the same wrong answer twice, at two positions. Even then a replica is only quarantined if the
// minimum of in-sync replicas stays without it, and its tables are kept.
//
// # When
//
// Every range is compared once per Config.Interval, one after the other, and whenever an operator asks. The
// plan is a pure value. Nothing about comparisons is stored: a node that starts compares all ranges within an interval.
//
// # Concurrency
//
// Every method may be called from any goroutine. Manager.mu is never held while the disk or the network is used.
package digest
