// Package storagetest tests package storage across crashes, faults and damage. Run is its
// conformance suite: every case runs on a file system that can crash, and is checked at once, after
// a clean restart, and after crashes that lose any part of the unsynced bytes. Log writes the logs
// and models the answers of a store. World is a store on a disk that can be cut off. Disk is a disk
// for simulators, which decide themselves which bytes of the log a crash takes.
//
// # Testing
//
// The package's own tests run the suite, compare random operations under random Pebble options with
// Log's model, flip bits in every kind of file and cut it, and inject errors of the disk. A seed is
// logged with every failure, and RHUMB_SEED=N repeats it.
package storagetest
