// Package client is the Go client of a Rhumb cluster. It finds the nearest node by measured round
// trips, keeps a copy of the metadata up to date, sends each request to the primary of its range,
// sends concurrent requests to one node together, and retries where a retry is safe.
//
//	c, err := client.Open(ctx, client.Config{Addrs: []string{"127.0.0.1:7600"}, Insecure: true})
//	flights, err := c.Table(ctx, "flights")
//	_, err = flights.Patch(ctx, []byte("SWR8"), record, client.PatchOptions{})
//	got, err := flights.Get(ctx, []byte("SWR8"), client.GetOptions{})
//
// # Homes of named keys
//
// A record is identified by table, home region and name. Every call may name the home. A call that
// does not follows these rules, in which "here" is the caller's region:
//
//	Put                      writes here and asks no other region
//	Get                      asks here, and after a miss all other regions at once; the first one with the record answers
//	Delete, Put and Delete   apply to the record that such a search finds; without one, a delete does nothing, and a
//	with a condition         condition on a present record fails
//	Put if absent            asks all regions at once and writes here if none has the record; otherwise its primary refuses
//	Patch                    applies to the existing record; if no region has one, it creates the record in the region
//	                         nearest to its location, or here if it has no location
//	Batch                    follows the rule of its first mutation; all others are written to the same home
//	WriteMany                follows the rule of each mutation
//
// A region may be removed. Its records keep their home, and nodes of another region serve them, so nothing changes for a
// program except the distance. A client whose region was removed still begins its searches there, because its records are
// there; a record that is placed by location is created in a region that stays. Config.From may hold the former name as long as no
// other region has it.
//
// The client caches the homes it finds (Config.HomesMax), because homes do not change: after
// somebody deletes a record, the next patch of this client creates it there again. Local forbids
// the search: only a record here counts. Receipt.Searched is the number of other regions that were
// asked.
//
// A call that may create a record asks whether one exists, without its value, and concurrent calls
// share these requests: a batch of creations takes one round trip to the farthest region before it
// is written. Such a call fails if a region does not answer, unless another one has the record.
// WriteMany turns one call into such a batch.
//
// A patch without a condition first tries the region that probably has the record: the caller's
// own, or the one in which the last two searches of the table ended. No other region receives the
// write before that one has answered that it did not apply it. If a name exists twice, because it
// was created while a region was dead, this order decides which record is patched.
//
// Everything decided at one home is atomic: one primary decides conditions, patches and batches in
// the order of its log. What spans regions is not atomic. Two calls that create one name at the
// same time and choose different homes, because they are made in different regions or carry
// different locations, both succeed and create two whole records. Concurrent calls of one Client do
// not race in this way, and calls that choose the same home merge into one record. Where two
// records would do harm, a name must therefore be created in one place only, or with a location
// that does not depend on who creates it. A search without a result means that each region, at some
// moment during the call, did not have the record.
//
// # Outcome of writes
//
// A write carries a request ID, so a retry is applied at most once. The error kind rhumb.Unknown
// means that the write may have been applied, or may still be. Every other error of a write has a
// kind that means that the write was not applied (rhumb.Kind.NotApplied), or that a retry cannot
// help and the outcome cannot be determined (rhumb.Corrupt, rhumb.Internal, rhumb.Expired,
// rhumb.Other).
//
// # Concurrency
//
// Any number of goroutines may use a Client and its Tables at once. Concurrency is what fills
// batches. When a context ends, its call returns at once; if the call is a write that had been
// sent, its outcome is Unknown.
//
// Close ends every goroutine and connection.
//
// # Testing
//
// The tests run against real gRPC servers on loopback that keep their records in memory and
// redirect, refuse, lose answers or stop on request, and against real nodes in the same process,
// where one stops under load.
package client
