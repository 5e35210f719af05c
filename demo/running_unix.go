//go:build unix

package demo

import (
	"errors"
	"syscall"
)

// isRunning reports whether a process runs.
func isRunning(pid int) bool {
	if pid <= 0 {
		return false
	}
	// Signal 0 only checks. EPERM means that the process exists and belongs to another user.
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
