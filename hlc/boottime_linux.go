package hlc

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Boottime returns the monotonic time since an arbitrary start, which measures leases. It includes
// the time while the machine is suspended (CLOCK_BOOTTIME), is never stepped, and differs between
// nodes only by its rate.
//
// HAZARD: the time while a hypervisor pauses the machine may be missing; see Watchdog.
func Boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Linux has provided this clock since 2.6.39. Without it no lease can be trusted.
		panic(fmt.Sprintf("hlc.Boottime: CLOCK_BOOTTIME: %v", err))
	}
	return time.Duration(ts.Nano())
}
