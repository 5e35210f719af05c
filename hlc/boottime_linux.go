package hlc

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Boottime gives the monotonic time since an arbitrary start that leases are measured with. It counts the time for which
// the machine is suspended (CLOCK_BOOTTIME), is not stepped, and differs between nodes only by its rate.
//
// HAZARD: time for which a hypervisor stops the machine may be missing; see Watchdog.
func Boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Linux has had this clock since 2.6.39; without it no lease can be trusted.
		panic(fmt.Sprintf("hlc.Boottime: CLOCK_BOOTTIME: %v", err))
	}
	return time.Duration(ts.Nano())
}
