// Package storage keeps the ranges of a node on its disks: versioned values, the replication log,
// the deduplication window, the state of each replica, and a small store of keys that are local to
// the node. A Store is one disk and one Pebble database. An Engine holds the stores of a node and
// spreads the node's ranges over them.
//
// # Invariants
//
//   - A value is written once, under its versioned key, in the same batch as the log record that
//     lists it: the log is an index. Undoing an entry deletes exactly the versions that the entry
//     lists, and the older versions become the newest again.
//   - An append never rewrites a version that is present. Only collection uses SINGLEDEL, and only
//     for 'd' keys; undo and expiry use DELETE (docs/replication.md#entries).
//   - Trim never passes the commit position, collection never passes the trim position, and the
//     last entry of a log is never deleted. Commit positions on disk are lower bounds.
//   - A version and the tombstone that supersedes it are deleted in one batch, so a deleted record
//     does not reappear.
//   - Bytes that fail their checksum are never served. A read of them returns rhumb.Corrupt and
//     names the file and, where Pebble reports it, the offset.
//   - A store that lost something that it had made durable is short, and says so before anything
//     is changed on disk. It is never repaired by dropping data under the same identity.
//   - A copy that is received from another node takes the place of a range in one step, or not at
//     all (Install). It never ends before the commit position that the range had.
//   - The boot sequence in the STORE file is incremented and synced before Open returns.
//
// # Concurrency
//
// Every method may be called from any goroutine. A range has one writer at a time: its driver
// applies the batches that touch it one after the other. Collect may run concurrently with that
// writer.
//
// Lock order: Store.closeMu, rangeState.collecting, Store.mu, rangeState.mu; Store.headerMu comes
// before Store.mu. No other lock is taken while Engine.mu, damages.mu, manifestMu or syncedFile.mu
// is held. A holder of diskMu only tries to take closeMu (see unflushedBytes). Pebble calls the
// event listener and the file system while it holds locks of its own, so code that runs there never
// calls Pebble.
//
// # Testing
//
// Package storagetest runs every case on a file system that can crash and again after the crash,
// injects faults, flips bits in every kind of file, and compares random operations under random
// Pebble options with a map.
package storage
