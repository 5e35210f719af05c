package demo

import "syscall"

// childAttributes puts a child in a process group of its own, so that Ctrl-C reaches only the demo, which then stops its
// children in order; and has the kernel kill it when the demo dies, so that no orphan is left.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
