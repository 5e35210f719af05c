//go:build unix

package demo

import (
	"errors"
	"syscall"
)

// running reports whether a process lives.
func running(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
