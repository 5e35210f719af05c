package image

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU gives the processor time of the calling thread, which the caller has locked its goroutine to.
func threadCPU() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// monotonic gives the clock that all processes of the machine share.
func monotonic() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(err) // the clock exists on every Linux
	}
	return time.Duration(t.Nano())
}
