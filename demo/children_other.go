//go:build unix && !linux

package demo

import "syscall"

// childAttributes puts a child into a process group of its own, so that Ctrl-C reaches only the
// demo, which then stops its children in order. Only Linux can also tie the life of a child to the
// demo.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
