//go:build !linux

package peer

import "net"

// limitUnacked does nothing where the kernel has no such limit. Probes notice a peer that has stopped.
func limitUnacked(net.Conn) {}
