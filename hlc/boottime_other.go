//go:build !linux

package hlc

import "time"

var processStart = time.Now()

// Boottime returns the monotonic time since an arbitrary start, which measures leases. On this
// system it is Go's monotonic clock.
//
// HAZARD: Go's monotonic clock may stop while the machine is suspended. A node that serves lease
// reads must not be suspended on this system. Production runs on Linux, which counts suspended
// time.
func Boottime() time.Duration { return time.Since(processStart) }
