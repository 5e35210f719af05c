package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// How fast a connection is found dead. TCP and gRPC's keepalive need 10 s and more, and a process that is stopped, or a
// firewall that forgot the connection, sends no error.
const (
	// probeEvery is the pause between two probes of a connection that is in use.
	probeEvery = 400 * time.Millisecond
	// probeTimeout is how long an answer may take, at least; over a slow way it is probeFactor usual answers.
	probeTimeout = time.Second
	probeFactor  = 6
)

// Conn is a connection to a node that is made anew when the node stops answering. All calls of the old one then fail at
// once, as if the node had closed it.
type Conn struct {
	addr string
	dial DialFunc

	mu     sync.Mutex // guards the three below
	cc     *grpc.ClientConn
	usual  time.Duration // how long an answer takes, smoothed
	closed bool
}

// NewConn makes a connection to "host:port". It does not wait for it: the first call does.
func NewConn(addr string, dial DialFunc) (*Conn, error) {
	cc, err := Connect(addr, dial)
	if err != nil {
		return nil, err
	}
	return &Conn{addr: addr, dial: dial, cc: cc}, nil
}

// Client returns the present connection. A caller must not keep it: the next call may need another.
func (c *Conn) Client() *grpc.ClientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cc
}

// Close ends the connection for good.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	_ = c.cc.Close() // it fails only when it was closed before
}

// Watch probes the connection while inUse is true, and renews it when an answer does not come, until ctx ends. It calls
// renewed, if not nil, after each renewal.
func (c *Conn) Watch(ctx context.Context, inUse func() bool, renewed func()) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if inUse() && !c.probe(ctx) && c.renew() && renewed != nil {
			renewed()
		}
	}
}

// probe asks the node for a sign of life. It is false when none came in time; a refusal is one.
func (c *Conn) probe(ctx context.Context) bool {
	c.mu.Lock()
	cc, most := c.cc, max(probeTimeout, probeFactor*c.usual)
	c.mu.Unlock()
	probing, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	start := time.Now()
	_, err := rhumbpb.NewClusterClient(cc).Ping(probing, &rhumbpb.PingRequest{})
	if err != nil && status.Code(err) == codes.DeadlineExceeded && probing.Err() != nil {
		return ctx.Err() != nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.usual += (time.Since(start) - c.usual) / 8
	return true
}

// renew replaces the connection. It is false when it was closed meanwhile.
func (c *Conn) renew() bool {
	cc, err := Connect(c.addr, c.dial)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || c.closed {
		if err == nil {
			_ = cc.Close()
		}
		return false
	}
	old := c.cc
	c.cc = cc
	_ = old.Close()
	return true
}
