//go:build !linux

package probe

import (
	"errors"
	"syscall"

	"github.com/rhumbdb/rhumb/cli/doctor"
)

// room is the room on a file system.
type room struct {
	size, free int64
	filesFree  uint64
}

func roomOf(string) (room, error) { return room{}, errors.ErrUnsupported }

func openFiles() (soft, hard uint64) {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0, 0
	}
	return limit.Cur, limit.Max
}

// ClockState reads how the kernel's clock is kept.
func ClockState() *doctor.Clock { return &doctor.Clock{Err: "this system does not tell"} }
