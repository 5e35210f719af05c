// Package snapshot publishes a node's data in shared memory: it keeps one image (package snapshot/format) that any process
// of the machine may map and read at memory speed, and makes changes visible there within microseconds.
//
// A Publisher owns the directory of an image. A Commit appends new versions of records to the shards of any tables and
// publishes them all with one store of one word. When a shard has no room left, it is rolled: its visible state is written
// into a new file, the root is swung over to it, and the old file is recycled once no reader has it. Load replaces the
// whole content of a table in the same way. The publisher follows no log and knows no node: who drives it decides what is
// published, when, and which log positions and closed timestamp a version stands for.
//
// # Invariants
//
//   - What a version showed once, it shows for as long as somebody has it mapped: records are never overwritten, files
//     never truncated, and a file is written again only under a lock that no reader of it lets through.
//   - A commit is visible wholly or not at all, over all tables and shards, whenever the process dies. Records of a commit
//     that was not finished are marked when the image is opened again, before its version number is given out once more.
//   - A table appears in the root together with its first content, never before.
//   - A roll keeps, for every key, what views at the last closed timestamp need.
//   - A failed commit, roll or load leaves what readers see as it was.
//   - A prev reference is lower than the reference of the record that holds it, so that a chain ends.
//
// # Concurrency
//
// A Publisher has one writer: Table, DropTable, Begin, Load, Roll, Close and the methods of a Commit are called by one
// goroutine at a time. Beat, Stats and the metrics may be called by any.
//
// # Testing
//
// The tests read images back with a reader of their own that follows docs/formats/snapshot.md byte by byte, and compare
// with a map. Child processes are killed in the middle of commits and rolls. The layout of small images is kept in
// testdata.
package snapshot
