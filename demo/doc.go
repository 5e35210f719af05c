// Package demo runs a cluster on one machine: regions of nodes, each node a process with a
// directory of its own, with simulated latency between the regions. It writes a live feed of
// flights to the cluster and shows figures about it. It is a demonstration and not a benchmark: all
// nodes share the processors and the disk of one machine.
//
// # Concurrency
//
// One goroutine, locked to its thread, starts all children, because the kernel ties the death
// signal of a child to the thread that started it. Another goroutine waits for each child. The feed
// has one client and a bounded number of goroutines per region.
//
// # Testing
//
// Layout, flights and figures are tested here. Processes are tested in cmd/rhumb, which has the
// binary.
package demo
