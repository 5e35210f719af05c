// Package publish keeps the node's shared-memory image (package snapshot) up to date. It follows
// the committed log of every range that the node holds, as primary or as secondary, and applies the
// log's writes to published tables to the image.
//
// The position of each range is a record in the image, written in the same commit as the entries up
// to that position. So each version states its own coverage, and a restarted node resumes where its
// image ends. If a range's log no longer reaches back to the position, or if a table is new in the
// image, the table is read from storage instead, as of the positions that the same commit writes.
//
// Ranges of other regions would arrive through a change feed. The driver accepts any range of any
// origin that storage holds.
//
// # Invariants
//
//   - A version shows, for each range, exactly the effects of the entries up to the range's
//     position, in every published table.
//   - Only committed entries are published, so nothing that readers saw is undone.
//   - The closed timestamp of a version is the minimum over all ranges of its tables, each as of
//     its position in the version. So the version contains everything up to that timestamp, and no
//     later version adds to it. A range that moves to the node takes part once it is closed on the
//     node.
//   - A failure leaves the image unchanged. Whatever was to be published is kept and retried.
//
// # Concurrency
//
// Any goroutine may call Committed and CatalogChanged, which never block. One goroutine does
// everything else.
package publish
