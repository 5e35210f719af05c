// Package format defines the bytes of the shared-memory image that a node publishes: one file root,
// and one segment file per shard. The publisher (package snapshot) and the Go reader
// (snapshot/reader) share it; the C reader follows docs/formats/snapshot.md. The package holds
// offsets, codecs of headers, hashing and checks. It maps no memory, opens no file and knows no
// clock.
//
// # Image
//
// An image is a directory <shm>/rhumb/<cluster>/<node>/ with the file root and files
// seg.<shard>.<generation>. The root names the tables and, for each shard of each table, the
// generation that is live. One 64-bit word in the root, committed, is the version of everything: a
// reader that has loaded it sees all records with a version at or below it, in every shard.
//
// # Segment
//
// A segment is a generation of one shard: hashed buckets over a heap of records. The heap begins
// with the base, which was written when the generation was built, and continues with the append
// area, which holds every version written since. Nothing in a generation is overwritten except the
// words marked mutable. So a reader that has mapped a generation can read an old version
// indefinitely, without coordination with the publisher.
//
// # Invariants
//
//   - A record is complete before anything refers to it; append_tail is raised before the record is
//     linked.
//   - A version is committed by one store of committed, after all its records in all shards are
//     linked.
//   - The version numbers of a key's chain never rise from newest to oldest, and each previous
//     reference is lower than the reference of the record that holds it; AbortedVersion is never
//     visible.
//   - Slots of a bucket are filled and never emptied within a generation.
//   - A generation number is never used twice in an image, even if a file is recycled.
//   - All integers are little-endian and naturally aligned.
package format
