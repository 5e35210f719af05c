// Package sched decides where and when the work of a node runs: its clock, timers, goroutines and
// disk waits. [System] uses those of the machine. The simulator has a [Runtime] that runs
// everything on one goroutine in an order determined by a seed, so node/host and raftmeta are the
// same code in both.
//
// A package that takes a Runtime must not start goroutines or read clocks itself, or a seed would
// not determine its behaviour.
package sched
