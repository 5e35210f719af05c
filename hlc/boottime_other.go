//go:build !linux

package hlc

import "time"

var processStart = time.Now()

// Boottime gives the monotonic time since an arbitrary start that leases are measured with. Here it is Go's monotonic
// clock.
//
// HAZARD: Go's monotonic clock may stop while the machine is suspended. A node that serves lease reads must not be
// suspended on this system; production runs on Linux, where suspended time is counted.
func Boottime() time.Duration { return time.Since(processStart) }
