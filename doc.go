// Package rhumb is the vocabulary of Rhumb, a geo-partitioned key-value database: ids, keys,
// timestamps, descriptors, tables, batches, errors and bounds. It holds data only and imports only
// the standard library; every other package imports it. Newcomers should read it first.
//
// # Glossary
//
// One word has one meaning, in code, flags, metrics and documents:
//
//	region > zone > node   geography. Not "data centre", "site" or "location"
//	home                   the region and slot in a key's prefix; it never changes. Not where the key is served now
//	slot, range            the number in the key; the replicated unit (region, slot). Not "shard" or "partition"
//	primary, secondary     who orders a range's writes; who copies them. "Leader" is only the metadata group's
//	learner, follower      the states of a secondary: outside of the in-sync set; a member of it
//	in-sync                a secondary that the primary must wait for. Not merely "caught up"
//	epoch                  the fencing number of a range; it grows with every change of primary
//	lease                  a node's right to act as primary for a bounded time
//	link                   a connection with frames of our own, between nodes or of a client. A "stream" is gRPC's
//	log                    the replication log of a range. Diagnostics are "events"
//	snapshot               the shared-memory image, and only that. Pebble's is a "view", Raft's a "state transfer"
//	generation             one published snapshot's number. Not the version of a record
//	location               latitude and longitude of a record. Not a region
//	partition              a network fault, in tests. Placing data is "placement"
//	index                  a secondary or spatial index. A position in the log is a Seq
//	receipt                what an answer says about itself: age, epoch, who served it, hops
//	tally                  the acknowledgements of a frame between nodes, in one item
//
// # The life of a Put
//
// The functions that a Put passes, in order. docs/architecture.md explains the path.
//
//	client/write.go             Table.Put             encodes the value
//	client/write.go             plan.writeToHome      finds the region of the record
//	client/send.go              Client.send           retries until the deadline, under one request ID
//	client/stream/call.go       Conn.Do               adds the request to the next frame for that node
//	node/server/kv.go           KV.serve              decodes the request
//	node/server/kv.go           KV.propose            forwards the request if another node is primary
//	node/host/propose.go        Host.Propose          admits the batch, or refuses it as overloaded
//	node/host/pass.go           Host.pass             takes all waiting events into one pass
//	node/host/propose.go        Host.proposal         reads the values that a patch or a condition needs
//	node/replica/propose.go     Replica.Propose       orders the batch: condition, merge, timestamp, position in the log
//	node/host/carry.go          Host.carryOut         writes the entry to storage and sends it to the secondaries
//	node/host/pass.go           Host.sync             makes the commits of the pass durable
//	node/replica/append.go      Replica.stepAppend    a secondary accepts the entry and acknowledges it once it is durable
//	node/replica/send.go        Replica.stepAck       the primary counts the acknowledgement
//	node/replica/propose.go     Replica.release       the entry is committed: answers the caller
//
// # The life of a Get
//
//	client/read.go              Table.Get             checks the name
//	client/read.go              Table.findRecord      asks the likely region, then all others at once
//	client/send.go              Client.send           retries until the deadline
//	node/server/kv.go           KV.read               decodes the request
//	node/server/kv.go           KV.serveRange         forwards the request if another node is primary
//	node/host/read.go           Host.Get              reads storage at the commit timestamp
//	node/host/read.go           Host.authorised       checks the lease, after the read
package rhumb
