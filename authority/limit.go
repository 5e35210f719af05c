package authority

import (
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
)

// Bounds of failed attempts. A token has 128 secret bits, so the bound protects the log and the
// disk rather than the secret.
const (
	failuresBurst  = 20
	failuresRefill = 10 * time.Second // one attempt is forgiven per interval
	failuresAddrs  = 4096
)

// failureLimit bounds the rate of failed requests of each address.
//
// A table and not a list of blocked addresses: failures are forgiven at a steady rate, so a node
// with a typing error in its token is served again without an operator.
type failureLimit struct {
	mu sync.Mutex
	// addrs holds the addresses that failed recently. An attacker with many addresses pushes out
	// others, and gains their attempts only.
	addrs map[string]*failureCount
}

// failureCount counts the failures of one address that are not forgiven yet.
type failureCount struct {
	n    int
	last time.Time // when n was last reduced
}

// newFailureLimit returns a limit that has seen no failure.
func newFailureLimit() *failureLimit { return &failureLimit{addrs: map[string]*failureCount{}} }

// check refuses an address that failed too often.
func (l *failureLimit) check(addr string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.addrs[addr]
	if c == nil {
		return nil
	}
	c.forgive(now)
	if c.n < failuresBurst {
		return nil
	}
	err := rhumb.Ef("authority.check", rhumb.Overloaded, "too many refused requests from %s; the next one is accepted in %v", addr, failuresRefill)
	err.RetryAfter = failuresRefill
	return err
}

// count records a failed request.
func (l *failureLimit) count(addr string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.addrs[addr]
	if c == nil {
		l.makeRoom(now)
		c = &failureCount{last: now}
		l.addrs[addr] = c
	}
	c.forgive(now)
	c.n++
}

// forgive reduces the count by one for each interval.
func (c *failureCount) forgive(now time.Time) {
	steps := int(now.Sub(c.last) / failuresRefill)
	if steps <= 0 {
		return
	}
	c.n, c.last = max(0, c.n-steps), c.last.Add(time.Duration(steps)*failuresRefill)
}

// makeRoom forgets addresses that were forgiven, or an arbitrary one if there are none.
func (l *failureLimit) makeRoom(now time.Time) {
	if len(l.addrs) < failuresAddrs {
		return
	}
	// The whole table is walked, which is bounded and happens only when it is full. Addresses that
	// have been forgiven are the first to leave.
	any := ""
	for addr, c := range l.addrs {
		any = addr
		if c.forgive(now); c.n == 0 {
			delete(l.addrs, addr)
		}
	}
	if len(l.addrs) >= failuresAddrs {
		delete(l.addrs, any)
	}
}

// limitListener bounds the open connections, in total and of each address. A connection over the
// bound is closed at once, before its handshake.
//
// The bound of each address keeps one machine from taking all places; the bound in total keeps many
// machines from taking all file descriptors, which the ledger needs too.
type limitListener struct {
	net.Listener
	refused *prometheus.CounterVec

	mu sync.Mutex
	// total and addrs count the open connections, in all and by address.
	total int
	addrs map[string]int
}

// newLimitListener returns a listener that accepts the connections of l within the bounds and
// counts the others by the bound that they exceed.
func newLimitListener(l net.Listener, refused *prometheus.CounterVec) *limitListener {
	return &limitListener{Listener: l, refused: refused, addrs: map[string]int{}}
}

// Accept returns the next connection within the bounds.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		if bound := l.enter(host); bound != "" {
			l.refused.WithLabelValues(bound).Inc()
			_ = conn.Close()
			continue
		}
		return &limitedConn{Conn: conn, leave: sync.OnceFunc(func() { l.exit(host) })}, nil
	}
}

// enter counts a connection, or names the bound that it would exceed.
func (l *limitListener) enter(host string) (bound string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.total >= connsMax:
		return "total"
	case l.addrs[host] >= connsPerAddrMax:
		return "address"
	}
	l.total++
	l.addrs[host]++
	return ""
}

// exit forgets a connection that was closed.
func (l *limitListener) exit(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.addrs[host]--; l.addrs[host] == 0 {
		delete(l.addrs, host)
	}
}

// limitedConn is a connection that counts against the bounds until it is closed. Its leave function
// has an effect once, because net/http may close a connection twice.
type limitedConn struct {
	net.Conn
	leave func()
}

// Close closes the connection and makes room for another one.
func (c *limitedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
