// Package snapshot publishes a node's data in shared memory. It keeps one image (package snapshot/format), which any
// process of the machine may map and read at memory speed, and makes changes visible there within microseconds.
//
// A Publisher owns the directory of an image. A Commit appends new versions of records to the shards of any tables and
// publishes all of them with one store of one word. A shard that has no room left is rolled: its visible state goes into a
// new file, the root is swung over to that file, and the old file is recycled when no reader has it any more. Load replaces
// the whole content of a table in the same way. The publisher follows no log and knows no node: its driver decides what is
// published and when, and which log positions and closed timestamp a version stands for.
//
// # Where to look
//
//	commit.go              Put, Delete, Publish: the way of a record into the image
//	roll.go                when a shard is rolled; package roll decides how
//	load.go, staging.go    replacing a whole table
//	table.go               tables and their shards
//	open.go, recover.go    opening an image, and repairing what a dead publisher left
//	files.go               the files of the image, their budget and their reuse
//	root.go                the words that readers start from
//	segment                the bytes of one generation: records, index, deltas, checks
//	roll                   the plan of the next generation
//	shm                    files mapped for writing
//
// # Invariants
//
//   - What a version showed once, it shows for as long as somebody has it mapped: records are never overwritten, files never
//     truncated, and a file is written again only under a lock that no reader of it lets through.
//   - A commit is visible wholly or not at all, over all tables and shards, whenever the process dies. Records of an
//     unfinished commit are marked when the image is opened again, before their version number is used again.
//   - A table appears in the root together with its first content, never before.
//   - A roll keeps, for every key, what views at the last closed timestamp need.
//   - A failed commit, roll or load leaves what readers see as it was.
//   - A reference to the version before is lower than the reference of the record that holds it, so that a chain ends.
//
// # Concurrency
//
// A Publisher has one writer: one goroutine at a time calls Table, DropTable, Begin, Load, Roll, Close and the methods of a
// Commit. Any goroutine may call Beat and Stats and collect the metrics.
//
// # Testing
//
// The tests read images back with a reader of their own that follows docs/formats/snapshot.md byte by byte, and compare
// with a map. Child processes are killed in the middle of commits and rolls. The layout of small images is kept in
// testdata.
package snapshot
