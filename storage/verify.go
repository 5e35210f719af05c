package storage

import "github.com/cockroachdb/pebble/v2/vfs"

// Fault is something that Verify found wrong.
type Fault struct {
	// File is the path of the file, Offset the first byte that is wrong where that is known, -1 otherwise.
	File   string
	Offset int64
	// What says what is wrong.
	What string
}

// VerifyReport is what Verify looked at and found.
type VerifyReport struct {
	Files  int
	Bytes  int64
	Keys   int64
	Ranges int
	Faults []Fault
}

// Verify reads every file and every key of a store that no process has open, and changes nothing. A nil fs is the
// operating system's. An error means that the store could not be looked at; what is wrong with it stands in the report.
func Verify(dir string, fs vfs.FS) (VerifyReport, error) { panic("not written yet") }
