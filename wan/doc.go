// Package wan imitates a wide-area network on one machine: it delays what passes between the addresses of different
// regions by the round trips of a latency file. Peers, memberlist's transport and clients share it, so that a demo or a
// test with regions needs no root and no traffic control.
//
// A program stands in one region and dials through a Dialer of that region. The dialling side delays both directions by
// half the round trip each, and the set-up of the connection by a whole one; the listening side takes the connection as
// it is. Packets are delayed by half the round trip where they are sent.
//
// # Invariants
//
// No byte arrives before it is due, none is lost or reordered, and how many may be on their way at once is bounded
// (QueueBytesMax, PacketsMax). Delay costs no throughput: bytes travel at the same time, not one after the other.
//
// # Concurrency
//
// All types may be used by several goroutines at once. A delayed connection has two goroutines, one per direction; both
// sleep until bytes arrive or are due.
//
// # Testing
//
// Only package time is asked for the time, so that everything runs in a testing/synctest bubble over in-memory
// connections.
package wan
