// Package rhumb is the vocabulary of Rhumb, a geo-partitioned key-value database: ids, keys, timestamps,
// descriptors, tables, batches, errors and bounds. It holds data only, imports only the standard library, and every
// other package speaks it. A newcomer reads it first.
//
// # Glossary
//
// One word has one meaning, in code, flags, metrics and documents:
//
//	region > zone > node   geography. Not "data centre", "site" or "location"
//	home                   the region and slot in a key's prefix; it never changes. Not where the key is served now
//	slot, range            the number in the key; the replicated unit (region, slot). Not "shard" or "partition"
//	primary, secondary     who orders a range's writes; who copies them. "Leader" is only the metadata group's
//	in-sync                a secondary that the primary must wait for. Not merely "caught up"
//	epoch                  the fencing number of a range; it grows with every change of primary
//	lease                  a node's right to act as primary for a bounded time
//	log                    the replication log of a range. Diagnostics are "events"
//	snapshot               the shared-memory image, and only that. Pebble's is a "view", Raft's a "state transfer"
//	generation             one published snapshot's number. Not the version of a record
//	location               latitude and longitude of a record. Not a region
//	partition              a network fault, in tests. Placing data is "placement"
//	index                  a secondary or spatial index. A position in the log is a Seq
//	receipt                what an answer says about itself: age, epoch, who served it, hops
package rhumb
