package image

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU returns the processor time of the calling thread. The caller must have locked its
// goroutine to it.
func threadCPU() time.Duration { return readClock(unix.CLOCK_THREAD_CPUTIME_ID) }

// monotonicNow returns the monotonic clock, which all processes of the machine share: workers on
// one machine can compare their times.
func monotonicNow() time.Duration { return readClock(unix.CLOCK_MONOTONIC) }

// readClock reads a clock of the system.
func readClock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		// The clock exists on every Linux.
		panic(err)
	}
	return time.Duration(t.Nano())
}
