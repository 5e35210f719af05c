// Package inspect looks into images from outside. It lists the images of a machine, reports how full their shards are,
// checks every byte that can be checked, copies one version of a live image to a directory or a file, compares two images,
// and finds the processes that keep superseded generations in memory. `rhumb snapshot` and the node's debugging pages are
// built on it. Programs that read records use snapshot/reader.
//
// # Invariants
//
//   - Nothing is ever written to an image that is inspected.
//   - While an image is open here, the files of its generations are locked as a reader locks them, so that the publisher
//     does not use them for others.
//   - A generation is captured before it is checked or copied: the links, which change in place, are copied, and then the
//     counters of what they lead to. So everything that a captured link leads to is there and whole, whatever is committed
//     meanwhile, and the version of a record shows whether it belongs to a later commit. What no commit changes any more is
//     read where it lies: no segment is held in memory.
//   - No fault in a file leads out of its bytes: every reference and length is compared before it is followed. A file that
//     is truncated while it is read becomes an error; see guardFaults.
//
// # Testing
//
// Verify runs over images that random operations left, live and stopped, and must find nothing. Then every bit of small
// images is flipped in turn, among them random ones with aborted commits, and what Verify does not find must be where
// docs/formats/snapshot.md says that nothing is covered. Copies of an image under commits are compared with the version
// that they claim to be.
package inspect
