// Package wan simulates a wide-area network on one machine. It delays traffic between addresses in
// different regions by the round trips in a latency file. Connections of nodes, gossip and clients
// all use it, so that a demo or a test with several regions needs neither root nor traffic control.
//
// A program is in one region and dials through a Dialer of that region. The dialing side delays
// both directions by half the round trip each, and the establishment of the connection by a whole
// one; the listening side needs no wrapping. Packets are delayed by half the round trip where they
// are sent.
//
// # Invariants
//
// No byte of a connection arrives before it is due, and none is lost or reordered, unless the
// latency file makes the connection half-open. The number of bytes and packets in flight is bounded
// (QueueBytesMax, PacketsMax). Delay does not reduce throughput: bytes are in flight together.
//
// # Concurrency
//
// All types are safe for concurrent use. A delayed connection has two goroutines, one per
// direction. Both sleep until bytes arrive or are due.
//
// # Testing
//
// The only clock is package time, so that everything runs in testing/synctest bubbles over
// in-memory connections.
package wan
