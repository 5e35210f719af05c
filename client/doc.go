// Package client talks to a Rhumb cluster. It finds the nearest node by measured round trip, keeps the metadata by watch,
// sends each key to the primary of its range, ships the concurrent calls of a process to a node together, and retries
// what is safe.
//
//	c, err := client.Open(ctx, client.Config{Addrs: []string{"127.0.0.1:7600"}, Insecure: true})
//	flights, err := c.Table(ctx, "flights")
//	_, err = flights.Patch(ctx, []byte("SWR8"), record, client.PatchOptions{})
//	got, err := flights.Get(ctx, []byte("SWR8"), client.GetOptions{})
//
// # Homes of named keys
//
// A record is (table, home region, name). Every call may name the home; a call that does not follows these rules, in which
// "here" is the caller's region:
//
//	Put                      writes here, without looking elsewhere
//	Get                      asks here, and on a miss all other regions at once; the first that has it answers
//	Delete, Put and Delete   act on the record that such a search finds; where it finds none, a delete does nothing, and
//	with a condition         a condition on a present record fails
//	Put if absent            asks all regions at once and writes here if none has the record, else its primary refuses
//	Patch                    acts on the record that exists; where no region has one it creates the record in the region
//	                         nearest to its location, else here
//	Batch                    follows the rule of its first mutation; all others go to the same home
//	WriteMany                follows the rule of each mutation
//
// A home that was found is remembered (Config.HomesMax), since homes do not change: a record that somebody deletes is
// created there again by this client's next patch. Local forbids the search: only the record here counts.
// Receipt.Searched tells how many other regions were asked.
//
// Calls that may create a record ask whether one exists, without its value, and the names of concurrent calls share
// requests: a batch of creations takes one round trip to the farthest region before it is written. A region that does not
// answer fails such a call, unless the record is found. WriteMany makes such a batch of one call.
//
// A patch without a condition is first tried in the region that probably has the record: here, or where the last two of its
// table were found. No other region gets the write before that one has said that it did not apply it. Where a name exists
// twice, because it was created while a region was dead, this decides which record is patched.
//
// What is decided at one home is atomic: conditions, patches and batches are decided by one primary, in the order of its
// log. What spans regions is not. Two calls that create one name at the same time and choose different homes, because
// they are made in different regions or carry different locations, both succeed and make two records, each whole; calls
// of one Client do not race in this way, and calls that choose the same home merge into one record. A name must
// therefore be created in one place, or with a location that does not depend on who creates it, where two records would
// harm. A search that finds nothing says that each region, at some moment during the call, did not have the record.
//
// # Outcome of writes
//
// A write carries a request id, so that a retry is applied at most once. An error whose kind is rhumb.Unknown says that
// the write may have been applied, or may yet be. Every other error of a write has a kind that says that it was not
// applied (rhumb.Kind.NotApplied), or that a retry cannot help and nobody knows (rhumb.Corrupt, rhumb.Internal,
// rhumb.Expired, rhumb.Other).
//
// # Concurrency
//
// A Client and its Tables may be used by any number of goroutines at once; that is what fills batches. A context that
// ends abandons its call at once; the call's effect is then Unknown if it was a write that had been sent.
//
// Close ends every goroutine and connection.
//
// # Testing
//
// The tests run against real gRPC servers on loopback that keep their records in memory, and can be told to redirect,
// refuse, lose answers and stop; and against real nodes in the same process, one of which stops under load.
package client
