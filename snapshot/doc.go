// Package snapshot publishes a node's data in shared memory. It keeps one image (package
// snapshot/format), which any process of the machine can map and read at memory speed, and makes
// changes visible there within microseconds.
//
// A Publisher owns the directory of an image. A Commit appends new versions of records to the
// shards of any tables and publishes all of them with one store of one word. A shard that has no
// room left is rolled: its visible state goes into a new file, the root is switched to that file,
// and the old file is recycled once no reader has it mapped. Load replaces the whole content of a
// table in the same way. The publisher follows no log and knows no node: its driver decides which
// records are published and when, and which log positions and closed timestamp each version
// represents.
//
// # Where to look
//
//	commit.go              Put, Delete, Publish: the way of a record into the image
//	roll.go                when a shard is rolled; package roll decides how
//	load.go, staging.go    replacing a whole table
//	table.go               tables and their shards
//	open.go, recover.go    opening an image, and repairing one whose publisher died
//	files.go               the files of the image, their budget and their reuse
//	root.go                the words that readers start from
//	segment                the bytes of one generation: records, index, deltas, checks
//	roll                   the plan of the next generation
//	shm                    files mapped for writing
//
// # Invariants
//
//   - A version never changes while a reader has it mapped: records are never overwritten, files
//     are never truncated, and a file is reused only under a write lock, which a reader of the file
//     blocks.
//   - A commit is visible entirely or not at all, across all tables and shards, whenever the
//     process dies. Records of an unfinished commit are marked when the image is opened again,
//     before their version number is used again.
//   - A table appears in the root together with its first content, never before.
//   - A roll keeps, for every key, the versions that views at the last closed timestamp need.
//   - A failed commit, roll or load does not change what readers see.
//   - A reference to the version before is lower than the reference of the record that holds it, so
//     that a chain ends.
//
// # Concurrency
//
// A Publisher has one writer: one goroutine at a time calls Table, DropTable, Begin, Load, Roll,
// Close and the methods of a Commit. Any goroutine may call Beat and Stats and collect the metrics.
//
// # Testing
//
// The tests read images back with a reader of their own that follows docs/formats/snapshot.md byte
// by byte, and compare with a map. Child processes are killed in the middle of commits and rolls.
// The layout of small images is kept in testdata.
package snapshot
