//go:build !linux

package link

import "net"

// LimitUnacked does nothing where the kernel has no such limit. Probes notice a peer that has stopped.
func LimitUnacked(net.Conn) {}
