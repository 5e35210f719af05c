// Package freeport finds ports of this machine for servers that are started later, perhaps in
// another process, and that keep their port when they are started again.
//
// A server that listens at once needs no such port: it listens on port 0, and the kernel names one.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	"github.com/rhumbdb/rhumb"
)

// The ports that Take chooses from: from first up to end. The kernel takes the ports of the
// ephemeral range for connections, on Linux from 32768 and elsewhere from 49152 on. A port of that
// range may be free now and belong to a connection of any process before the server listens on it.
const (
	first = 10_000
	end   = 32_000
)

// tries bounds the ports that Take looks at for each one that it returns.
const tries = 1000

var (
	mu sync.Mutex
	// taken holds the ports that Take has returned, because nobody may listen on them yet. It is
	// bounded by the range.
	taken = map[int]bool{}
)

// Take returns n loopback addresses, such as 127.0.0.1:12345, on whose ports nobody listens, for TCP
// and for UDP. It returns no address twice in one process. The ports are chosen at random, so that
// two processes hardly ever choose the same one. If it finds no free port, the error has the kind
// rhumb.Unavailable.
func Take(n int) ([]string, error) { return take(n, first, end) }

// take is Take with another range.
func take(n, first, end int) (addrs []string, err error) {
	mu.Lock()
	defer mu.Unlock()
	for left := n * tries; len(addrs) < n; left-- {
		if left == 0 {
			return nil, rhumb.Ef("freeport.Take", rhumb.Unavailable, "found %d of %d free ports from %d to %d; the last error: %v", len(addrs), n, first, end-1, err)
		}
		port := first + rand.N(end-first)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if taken[port] {
			err = errors.New("the port was returned before")
		} else if err = tryListen(addr); err == nil {
			taken[port] = true
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// tryListen returns an error unless an address is free for TCP and UDP.
func tryListen(addr string) error {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	return udp.Close()
}
