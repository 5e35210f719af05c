// Package storage keeps the ranges of a node on its disks: versioned values, the replication log, the deduplication
// window, the state of each replica, and a small store of keys that are local to the node. One Store is one disk and
// one Pebble database; an Engine is the stores of a node with its ranges spread over them.
//
// # Invariants
//
//   - A value is written once, under its versioned key, in the same batch as the log record that lists it (log as
//     index). Undoing an entry deletes exactly the versions that it lists; older versions reappear by themselves.
//   - An append never rewrites a version that is present. SINGLEDEL is used by collection only, and only for 'd' keys;
//     undo and expiry use DELETE (ruling 3 of the replication design).
//   - Trim never passes the commit position, collection never passes the trim position, and the last entry of a log is
//     never deleted. Commit positions on disk are lower bounds.
//   - Superseded versions go no later than the tombstone that hides them, so nothing deleted comes back.
//   - What fails its checksum is never served: a read returns rhumb.Corrupt and names the file and, where Pebble tells
//     it, the offset. A store that does not open is never repaired by dropping data under the same identity.
//   - The boot sequence in the STORE file grows, synced, before Open returns.
//
// # Concurrency
//
// Every method may be called from any goroutine. One range has one writer at a time: batches that touch it are applied
// one after the other by its driver. Collect may run beside that writer. Lock order: Engine.mu, Store.mu,
// rangeState.collecting, rangeState.mu.
//
// # Testing
//
// Package storagetest runs every case on a crashable file system and again after the crash, injects faults, flips bits
// in every kind of file, and compares random operations under random Pebble options with a map.
package storage
