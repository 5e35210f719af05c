package wan

import (
	"context"
	"net"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Dialer dials from a region, or from the region and node of an address. Between places without delay it gives the plain
// connection, unless both ends belong to nodes of the file: a cut then only refuses new ones. A cut link lets a dial wait
// until it heals or the context ends.
func (n *Network) Dialer(from string) DialFunc {
	if n == nil {
		var d net.Dialer
		return d.DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		const op rhumb.Op = "wan.Dial"
		r, err := n.route(op, from, addr)
		if err != nil {
			return nil, err
		}
		if err := travel(ctx, r.there); err != nil {
			return nil, err
		}
		c, err := n.dial(ctx, network, addr)
		if err2 := travel(ctx, r.back); err2 != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil, err2
		}
		if err != nil || r.plain {
			return c, err
		}
		return newConn(c, r.there, r.back, QueueBytesMax), nil
	}
}

// travel waits as long as a packet takes over the link.
func travel(ctx context.Context, l *link) error {
	if d := l.delay(); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for healed := l.cut(); healed != nil; healed = l.cut() {
		select {
		case <-healed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}
