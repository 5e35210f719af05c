package client

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
)

// deaf swallows what is written to one address once it is told to, as the kernel of a stopped
// process does.
type deaf struct {
	net.Conn
	off *atomic.Bool
}

func (d deaf) Write(b []byte) (int, error) {
	if d.off.Load() {
		return len(b), nil
	}
	return d.Conn.Write(b)
}

// TestStoppedNode guards that a client which follows the metadata at a node that stops, and writes
// through it, notices and goes on with another one, although neither TCP nor gRPC reports an error.
func TestStoppedNode(t *testing.T) {
	w := newWorld(t, 1, 2)
	var off atomic.Bool
	c := w.open("", func(cfg *Config) {
		cfg.Addrs = []string{w.node(1).addr}
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil && addr == w.node(1).addr {
				return deaf{conn, &off}, nil
			}
			return conn, err
		}
	})
	tab := w.table(c, "plain")
	var key []byte
	for i := byte(0); ; i++ { // one whose primary is the node that stops
		key = []byte{'k', 'a' + i}
		put, err := tab.Put(t.Context(), key, nil, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if put.Receipt.Node == 1 {
			break
		}
	}
	off.Store(true)
	await(t, "the watch to begin at another node", func() bool {
		m := c.Metrics()
		return m.Silent > 0 && m.Watches > 1
	})
	w.fence(1, 2)
	if put, err := tab.Put(t.Context(), key, nil, PutOptions{}); err != nil || put.Receipt.Node != 2 {
		t.Fatalf("%+v: %v", put, err)
	}
}
