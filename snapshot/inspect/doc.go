// Package inspect examines images from outside. It lists the images of a machine, reports how full
// their shards are, checks every byte that can be checked, copies one version of a live image to a
// directory or a file, compares two images, and finds the processes that keep superseded
// generations in memory. `rhumb snapshot` and the node's debugging pages are built on it. Programs
// that read records use snapshot/reader.
//
// # Invariants
//
//   - Nothing is ever written to an image that is inspected.
//   - While an image is open here, the files of its generations are locked as a reader locks them,
//     so that the publisher does not use them for others.
//   - A generation is captured before it is checked or copied: the links, which change in place,
//     are copied, and then the counters of their targets. So the target of every captured link is
//     present and complete, whatever is committed meanwhile, and the version of a record shows
//     whether it belongs to a later commit. Bytes that no commit changes are read from the mapping:
//     no segment is copied to memory as a whole.
//   - Damage never leads outside the file: every reference and length is compared with its bounds
//     before it is followed. A file that is truncated while it is read becomes an error; see
//     guardFaults.
//
// # Testing
//
// Verify runs over images that random operations left, live and stopped, and must find nothing.
// Then every bit of small images is flipped in turn, among them random ones with aborted commits,
// and every flip that Verify misses must be in a place that docs/formats/snapshot.md lists as not
// covered. Copies of an image under commits are compared with the version that they claim to be.
package inspect
