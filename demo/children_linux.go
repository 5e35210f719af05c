package demo

import "syscall"

// childAttributes puts a child into a process group of its own, so that Ctrl-C reaches only the
// demo, which then stops its children in order. The kernel kills a child when the demo dies, so
// that no orphan remains.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
