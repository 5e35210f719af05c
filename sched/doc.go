// Package sched says where and when the work of a node runs: its clock, its timers, its goroutines and its waits for the
// disk. [System] uses the machine's. The simulator has a [Runtime] of its own that runs everything on one goroutine, in the
// order that a seed decides: node/host and raftmeta are the same code in both.
//
// A package that takes a Runtime starts no goroutine and reads no clock by itself, or a seed would not decide what it does.
package sched
