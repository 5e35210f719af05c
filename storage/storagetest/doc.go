// Package storagetest tests package storage across crashes, faults and damage. Run is its conformance suite: every case
// runs on a crashable file system and is checked at once, after a clean restart, and after crashes that lose any part of
// what was not synced. Log builds the logs and knows what a store must answer; World is a disk that can be cut off.
//
// # Testing
//
// The package's own tests run the suite, compare random operations under random Pebble options with Log's model, flip
// bits in and cut every kind of file, and inject errors of the disk. A seed is printed with every failure;
// RHUMB_SEED=N repeats it.
package storagetest
