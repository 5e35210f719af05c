package link

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// LimitUnacked makes the kernel close a connection when the other side acknowledges nothing for unackedMax. Without it, TCP repeats
// segments for a quarter of an hour.
func LimitUnacked(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedMax.Milliseconds()))
		})
	}
}
