package wan

import (
	"context"
	"net"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Dialer returns a function that dials from a region, or from the region and node of an address.
// Between places without delay it returns the plain connection, unless both ends belong to nodes in
// the file; a cut then only prevents new connections. While a link is cut, a dial waits until the
// link heals or the context ends.
func (n *Network) Dialer(from string) DialFunc {
	// A node without a latency file pays nothing.
	if n == nil {
		var d net.Dialer
		return d.DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		const op rhumb.Op = "wan.Dial"
		r, err := n.findRoute(op, from, addr)
		if err != nil {
			return nil, err
		}
		// The SYN travels there, and the answer back. Both need the link, so a cut in one direction
		// prevents connections, as in a real network.
		if err := waitTransit(ctx, r.there); err != nil {
			return nil, err
		}
		// The real connection takes no time on one machine. All of the delay is simulated around
		// it.
		c, err := n.dial(ctx, network, addr)
		// Also after a failed dial: a refusal travels back like an acceptance.
		if err2 := waitTransit(ctx, r.back); err2 != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil, err2
		}
		// A plain connection is returned as it was dialed, so its throughput and system calls are
		// unchanged.
		if err != nil || r.plain {
			return c, err
		}
		return newConn(c, r.there, r.back, QueueBytesMax), nil
	}
}

// waitTransit waits as long as a packet is in flight on the link.
func waitTransit(ctx context.Context, l *link) error {
	if d := l.sampleDelay(); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// A link may be cut again before this goroutine runs.
	for healed := l.cutChan(); healed != nil; healed = l.cutChan() {
		select {
		case <-healed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}
