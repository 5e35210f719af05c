// Package publish keeps the node's shared-memory image (package snapshot) up to date: it follows the committed log of every
// range that the node holds, primary or not, and puts what the log did to published tables into the image.
//
// The position of each range stands in the image as a record of its own, written in the same commit as the entries up to
// there. So what a version covers is read from the version, and a node that starts again goes on where its image ends. A
// range whose log no longer reaches back to the position, and a table that is new in the image, are read from storage
// instead, as of the positions that the same commit writes.
//
// Ranges of other regions would come from a change feed; Follow takes any range of any origin that storage holds, and is
// the place for it.
//
// # Invariants
//
//   - A version shows of each range exactly the effects of the entries up to its position there, in every published table.
//   - Only committed entries are published, so nothing that readers saw is undone.
//   - The closed timestamp of a version is the least of all ranges of its tables, each as of its position there, so in the version
//     is everything up to it, and no later one adds to that. A range that comes to the node joins when it is closed here.
//   - A failure leaves the image as it was; what was to be published is kept and tried again.
//
// # Concurrency
//
// Committed and CatalogChanged may be called by any goroutine and never block. One goroutine does all the rest.
package publish
