package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Detection of dead connections. TCP and gRPC's keepalive need 10 s and more, and neither a stopped
// process nor a firewall that lost the connection sends an error.
const (
	// probeEvery is the interval between two probes of a connection whose callers expect an answer,
	// probeRarely of one whose callers wait for news.
	probeEvery  = 400 * time.Millisecond
	probeRarely = 2 * time.Second
	// probeTimeout is the minimum time in which a probe must be answered. On a slow connection it
	// is probeFactor times the usual time.
	probeTimeout = time.Second
	probeFactor  = 6
)

// Conn is a connection to a node. When the node stops answering, the connection is replaced, and
// all calls on the old one fail at once, as if the node had closed it.
type Conn struct {
	addr  string
	dial  DialFunc
	creds Credentials
	// login returns the options that log one gRPC connection in, nil without a login.
	login func() []grpc.DialOption

	mu     sync.Mutex // guards cc, usual and closed
	cc     *grpc.ClientConn
	usual  time.Duration // smoothed time of an answer
	closed bool
}

// NewConn returns a connection to "host:port". The connection is established by the first call. login returns the options
// that log one gRPC connection in; it is called for each, and may be nil.
func NewConn(addr string, dial DialFunc, creds Credentials, login func() []grpc.DialOption) (*Conn, error) {
	c := &Conn{addr: addr, dial: dial, creds: creds, login: login}
	var err error
	if c.cc, err = c.connect(); err != nil {
		return nil, err
	}
	return c, nil
}

// connect returns a new gRPC connection.
func (c *Conn) connect() (*grpc.ClientConn, error) {
	if c.login == nil {
		return Connect(c.addr, c.dial, c.creds)
	}
	return Connect(c.addr, c.dial, c.creds, c.login()...)
}

// Client returns the current connection. Callers must not keep it, because it may be replaced
// before their next call.
func (c *Conn) Client() *grpc.ClientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cc
}

// Close closes the connection permanently.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	_ = c.cc.Close() // fails only if it was closed before
}

// Use is what depends on a connection, which decides how often it is probed.
type Use int

// The uses. An idle client would cause constant traffic, so a connection without calls is not probed. Calls
// that wait for news only, such as a watch over the metadata, are nearly idle: in a process with 500 clients,
// probes as often as those of other calls took an eighth of the processor time.
const (
	Unused  Use = iota
	Held        // by calls that may wait for long
	Awaited     // by calls that expect an answer
)

// interval returns the interval of probes, 0 for none.
func (u Use) interval() time.Duration {
	switch u {
	case Unused:
		return 0
	case Held:
		return probeRarely
	}
	return probeEvery
}

// Watch probes the connection as its use demands, and replaces it if a probe is not answered. It returns when
// ctx ends. Unless renewed is nil, Watch calls it after each replacement.
//
// begun, with room for one value, receives one when the use may have become greater. It spares the timers
// of unused connections: a process may have thousands.
func (c *Conn) Watch(ctx context.Context, begun <-chan struct{}, use func() Use, renewed func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		every := use().interval()
		wake := begun
		// Otherwise a caller that makes one call after the other would postpone the probe forever.
		if every == probeEvery {
			wake = nil
		}
		timer.Stop()
		if every > 0 {
			timer.Reset(every)
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
			continue
		case <-timer.C:
		}
		if use() != Unused && !c.probeNode(ctx) && c.replaceConn() && renewed != nil {
			renewed()
		}
	}
}

// probeNode sends a Ping and reports whether the node answered in time. An error from the node is
// an answer too.
//
// A connection that is not established is left alone: gRPC bounds each attempt to connect. When a
// thousand clients return to a node at once, handshakes take longer than a probe, and clients that
// abandoned them and began again would keep the node busy with handshakes that nobody finishes.
func (c *Conn) probeNode(ctx context.Context) bool {
	c.mu.Lock()
	cc, most := c.cc, max(probeTimeout, probeFactor*c.usual)
	c.mu.Unlock()
	if cc.GetState() != connectivity.Ready {
		return true
	}
	// The lock is released during the probe: calls need it to get the connection.
	probing, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	start := time.Now()
	_, err := rhumbpb.NewClusterClient(cc).Ping(probing, &rhumbpb.PingRequest{})
	if err != nil && status.Code(err) == codes.DeadlineExceeded && probing.Err() != nil {
		// If ctx ended, the probe proves nothing, and the connection must not be replaced. If the
		// connection broke meanwhile, the probe waited for the next one.
		return ctx.Err() != nil || cc.GetState() != connectivity.Ready
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The same smoothing as that of TCP for its round-trip time: one slow answer changes little.
	c.usual += (time.Since(start) - c.usual) / 8
	return true
}

// replaceConn replaces the connection. It reports false if the Conn was closed in the meantime.
func (c *Conn) replaceConn() bool {
	// Created before the lock is taken. Creating it does not connect, so a node that is still
	// silent does not block here.
	cc, err := c.connect()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || c.closed {
		if err == nil {
			_ = cc.Close()
		}
		return false
	}
	// Closing the old connection ends all its calls, which would otherwise wait for the silent node
	// until their deadlines.
	old := c.cc
	c.cc = cc
	_ = old.Close()
	return true
}
