// Package closed is how a primary's node tells another node, cheaply, how far ranges are closed. A range is closed up to a
// timestamp when nothing at or below it will ever be added to its log, whatever fails (ruling 6 of the replication design).
// Package replica decides that; this package carries what it decided. It is pure, and it travels in the frames of package
// lease.
//
// # One timestamp for many ranges
//
// A Sender tells one peer which ranges it covers, with a position of each, and one timestamp for all of them: every entry
// with a timestamp up to it lies at a position up to the range's. An idle range keeps its position, so it costs nothing;
// a range that moved costs one Cover in the next frame. A range whose closed timestamp lags far behind the others is left
// out, so that it does not hold them up.
//
// Frames may be lost, repeated and overtaken. Frames are numbered; each lists every change since the frame that the peer
// is known to have taken (Base), so a peer takes any frame whose Base it has passed and that is newer than what it has
// taken, and no other. What does not fit into a frame is told by later ones, and there is no timestamp until all is told.
//
// # Invariants
//
//   - A claim that was true stays true: the receiver may be restarted, deposed or elected meanwhile. Its position was
//     committed when it was made, so a log that is committed up to there has the same entries, and none is added below.
//   - A Receiver makes no claim that its Sender has not been given.
//
// # Concurrency
//
// Values are used by one goroutine at a time; lease.Pairs owns them.
//
// # Testing
//
// A seeded property test loses, repeats and reorders frames and restarts both ends. The simulator checks the claims
// against the logs that come of it.
package closed
