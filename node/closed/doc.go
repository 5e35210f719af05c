// Package closed carries closed timestamps cheaply from the node of a primary to another node. A
// range is closed up to a timestamp if no entry at or below the timestamp will ever be added to its
// log, whatever fails (docs/replication.md#closed). Package replica decides when that
// holds; this package transports the decision. It is pure, and its messages travel in the frames of
// package lease.
//
// # One timestamp for many ranges
//
// A Sender sends one peer the ranges that it covers, each with a position, and one timestamp for
// all of them: every entry with a timestamp up to it has a position up to the range's. An idle
// range keeps its position and costs nothing; a range that moved costs one Cover in the next frame.
// A range whose closed timestamp is far older than the others is left out, so that it does not hold
// them back.
//
// Frames may be lost, repeated and reordered. They are numbered, and each lists every change since
// a frame that the peer is known to have applied (Base). A peer applies a frame if it has applied
// Base and the frame is newer than the last one. Changes that do not fit follow in later frames,
// and frames have no timestamp until every change is sent.
//
// # Invariants
//
//   - A claim that was true stays true even if the receiver is restarted, deposed or elected. Its
//     position was committed when the claim was made, so a log that is committed up to there has
//     the same entries, and none is added below.
//   - A Receiver makes no claim that its Sender was not given.
//
// # Concurrency
//
// A value serves one goroutine at a time. lease.Pairs owns them.
//
// # Testing
//
// A seeded property test loses, repeats and reorders frames and restarts both ends. The simulator
// checks the claims against the resulting logs.
package closed
