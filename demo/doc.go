// Package demo runs a whole cluster on one machine: regions of nodes, each node a process of its own with a directory
// of its own, with the distances between the regions imitated; plays a live feed of flights into it; and shows how it
// fares. It is a demonstration and not a benchmark: all nodes share one machine's processors and disk.
//
// # Concurrency
//
// One goroutine, bound to its thread, starts all children, because the kernel ties a child's death signal to the thread
// that started it; one more waits for each child. The feed has one client and a bounded set of goroutines per region.
//
// # Testing
//
// Layout, flights and figures are tested here. Processes are tested from cmd/rhumb, which has the binary.
package demo
