package probe

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb/cli/doctor"
)

// room is the room on a file system.
type room struct {
	size, free int64
	filesFree  uint64
}

func roomOf(path string) (room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return room{}, err
	}
	return room{int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, st.Ffree}, nil
}

// openFiles returns the limits of open files. The soft one is that of the shell: this program has
// raised its own.
func openFiles() (soft, hard uint64) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0, 0
	}
	return limit.Cur, limit.Max
}

// ClockState reads how the kernel's clock is kept, without changing it.
func ClockState() *doctor.Clock {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return &doctor.Clock{Err: err.Error()}
	}
	return &doctor.Clock{
		Synchronized: state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0,
		MaxError:     time.Duration(t.Maxerror) * time.Microsecond,
	}
}
