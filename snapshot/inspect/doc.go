// Package inspect looks into images from outside: it lists those of a machine, tells how full their shards are, checks every
// byte that can be checked, copies one version of a live image to a directory or a file, compares two images, and finds
// the processes that keep superseded generations in memory. It is what `rhumb snapshot` and the node's HTTP for debugging are
// made of; programs that read records use snapshot/reader.
//
// # Invariants
//
//   - Nothing is ever written to an image that is looked into.
//   - While an image is open here, the files of its generations are locked as a reader locks them, so that the publisher
//     does not use them for others.
//   - What is checked or copied of a generation is first captured: the links, which change in place, are copied, and then the
//     counters of what they lead to. So all that a captured link leads to is there and whole, whatever is committed meanwhile,
//     and what belongs to later versions than the one captured can be told by its version. What no commit changes any more is
//     read where it lies: no segment is held in memory.
//   - No fault in a file leads out of its bytes: every reference and length is compared before it is followed. A file that is
//     cut short while it is looked at is an error; see guard.
//
// # Testing
//
// Verify is run over images that random operations left, live and stopped, and must find nothing; then every bit of small
// images, among them random ones with aborted commits, is flipped in turn, and what it does not find must lie where
// docs/formats/snapshot.md says that nothing is covered.
// Copies of an image under commits are compared with the version that they claim to be.
package inspect
