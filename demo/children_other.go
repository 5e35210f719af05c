//go:build unix && !linux

package demo

import "syscall"

// childAttributes puts a child in a process group of its own, so that Ctrl-C reaches only the demo, which then stops its
// children in order. Only Linux can tie a child's life to the demo's.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
