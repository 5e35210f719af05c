// Package format is the byte layout of the shared-memory image that a node publishes: one file root and one segment file
// per shard. It is shared by the publisher (package snapshot), the Go reader (snapshot/reader) and, through
// docs/formats/snapshot.md, by the C reader. The package holds offsets, codecs of headers, hashing and checks; it maps no
// memory, opens no file and knows no clock.
//
// # Image
//
// An image is a directory <shm>/rhumb/<cluster>/<node>/ with the file root and files seg.<shard>.<generation>. The root
// names the tables, and for each shard of each table the generation that is live. One 64-bit word in the root, committed,
// is the version of everything: whoever has read it sees all records with a version at or below it, in every shard.
//
// # Segment
//
// A segment is a generation of one shard: hashed buckets over a heap of records. The heap begins with the base, written
// when the generation was built and in spatial order, and goes on with the append area, which holds every version written
// since. Nothing in a generation is overwritten but the words named mutable: whoever has mapped it can read an old version
// for as long as it likes, without telling anybody.
//
// # Invariants
//
//   - A record is complete before anything refers to it; append_tail is raised before the record is linked.
//   - A version is committed by one store of committed, after all its records in all shards are linked.
//   - The version numbers of a key's chain never rise from newest to oldest, and each previous reference is lower than that
//     of the record that holds it; AbortedVersion is never visible.
//   - Slots of a bucket are taken and never given back within a generation.
//   - A generation number is never used twice in an image, also when a file is recycled.
//   - All integers are little-endian and naturally aligned.
package format
