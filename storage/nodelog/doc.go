// Package nodelog is the write-ahead log of a node: records of bytes, appended one after the other and synced in groups, for all ranges
// together. It replaces the log of a database where the cost of a sync decides.
//
// # Why a format of its own
//
// A sync of a file that grows also writes its size and the place of its new blocks: 170 to 220 µs on the disk where this was measured, against
// 105 to 125 µs for a sync that only overwrites blocks. So all files of a log, its segments, are filled with zeros when the log is created, and
// written over from then on. Nothing in the steady state allocates, renames, grows or shrinks a file.
//
// # Laps
//
// The segments form a ring. One segment after the other is filled with records, and each filling of a segment is a lap. Lap n uses the same file as
// the laps n-k, n-2k and so on of a ring of k files. A record holds the number of its lap, which distinguishes it from the remains
// of earlier laps. No record crosses the end of a segment.
//
// # Recovery
//
// The file system does not know where the log ends: after the last record follow records of an earlier lap, zeros, or parts of writes that a power
// loss interrupted. Every record therefore holds two numbers: up to which record the log was synced when this one was written, and up to which
// it was trimmed. Both remain true whatever happens to the record. Recovery collects them from every valid record, follows the records
// from the first that was not trimmed, and stops at the first gap. If a record up to the greatest synced number is missing, it was durable
// once, and the log is damaged: Open fails and names the file and the offset. Otherwise no sync that includes the record was reported, and the
// record is discarded. A record that is valid but for one bit is damage too, because no interrupted write leaves that.
//
// A valid record after a gap alone proves nothing: a disk writes the sectors of one sync in any order.
//
// Valid records may remain after a discarded one. They never return, although they have the right lap and number: each record holds the
// boot that wrote it, and boots never decrease along the log.
//
// One loss is not noticed: more than one wrong bit in the last sync before a power loss. It looks like an interrupted write.
//
// # Invariants
//
//   - Records begin at sectors, so a disk that tears a sector tears no record of an earlier sync.
//   - A segment is synced before the next lap begins. So only the newest lap has records that are not durable.
//   - A segment is written over only if a synced record says that its records were trimmed. If it were not durable, a power loss could
//     leave a log that misses records which it still seems to need.
//   - Only synced numbers are trimmed. If a lost number were trimmed, the next record of that number would count as trimmed.
//   - The last sector of a segment is kept for a mark, a record without content, so that a trim position can be made durable when the
//     segment is full otherwise.
//   - A write or sync that failed is the last one. A second fdatasync may succeed although the pages of the first were dropped.
//
// # Structure
//
// record.go encodes and decodes, scan.go reads one segment, and judge.go decides about the whole log; none of them performs I/O. log.go,
// open.go and replay.go do.
package nodelog
