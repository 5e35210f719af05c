// Package segment reads and writes the bytes of a generation: one file that holds the visible state
// of a shard at one version and the records that were appended since. The format is in
// docs/formats/snapshot.md and package snapshot/format.
//
// A generation has a base, which Builder writes once, followed by an append area, which commits
// fill:
//
//	heap     0            Head.BaseUnits        done           raised         tail          end of heap
//	         | base        | committed records   | complete     | being written | free        |
//
// A record goes through four steps, which happen in this order and are never swapped:
//
//  1. Append writes the bytes at tail. Nothing refers to the record yet.
//  2. Publish stores the tail in the file. From here on recovery knows the record and can mark it
//     as aborted.
//  3. Batch.Link makes the record the newest version of its key in the index, and adds it to the
//     spatial and the ordered delta. Readers now pass the record and skip it, since its version is
//     not committed.
//  4. SettleCommit stores the end of the committed records, after the root shows the version.
//
// # Invariants
//
//   - BaseUnits <= done <= raised <= tail. The index leads to no record at or above raised.
//   - A record refers only to records before it, so that every chain of versions ends.
//   - The publisher changes nothing of a record that a view can show. It changes the version of an
//     aborted record, and links and checksums before the record is reachable.
//   - A counter in the file is stored before the link that makes a reader use the counted entry.
//
// # Concurrency
//
// A Segment has one writer and any number of readers in other processes. The writer stores every
// word that leads a reader anywhere atomically. Methods of a Segment, a Builder and a Batch are
// called by one goroutine at a time.
//
// # Testing
//
// The tests of this package compare the index, the chains and the order with maps and sorted
// slices, and every encoded record with package format. Whole images are tested in package
// snapshot.
package segment
