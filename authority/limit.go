package authority

import (
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/gate"
)

// Bounds of failed attempts. A token has 128 secret bits, so the bound protects the log and the
// disk rather than the secret.
const (
	failuresBurst  = 20
	failuresRefill = 10 * time.Second // one attempt is forgiven per interval
	failuresAddrs  = 4096
)

// A node renews every few days, at once after a rotation, and again if an answer was lost. With these bounds, a node that was
// broken into, or that loops, adds 144 records a day to the ledger.
const (
	renewalsEvery = 10 * time.Minute
	renewalsBurst = 20
)

// newRenewalPace returns the bound of the renewals of each node.
func newRenewalPace() *gate.Pace {
	return gate.NewPace(renewalsEvery, renewalsBurst, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "rhumb_authority_renewals_paced_total", Help: "Renewals that were refused because their node renews too often.",
	}))
}

// checkRenewal refuses a node that renews too often.
func (a *Authority) checkRenewal(node string) error {
	wait := a.renewals.Take(node, a.wall())
	if wait == 0 {
		return nil
	}
	err := rhumb.Ef("authority.checkRenewal", rhumb.Overloaded, "node %s renews its certificate too often; the next renewal is accepted in %v", node, wait.Round(time.Second))
	err.RetryAfter = wait
	return err
}

// failureLimit bounds the rate of failed requests of each address.
//
// A table and not a list of blocked addresses: failures are forgiven at a steady rate, so a node
// with a typing error in its token is served again without an operator.
type failureLimit struct {
	mu sync.Mutex
	// addrs holds the addresses that failed recently. An attacker with many addresses pushes out
	// others, and gains their attempts only.
	addrs map[netip.Addr]*failureCount
}

// failureCount counts the failures of one address that are not forgiven yet.
type failureCount struct {
	n    int
	last time.Time // when n was last reduced
}

// Bounds of the log lines about refused requests: anybody who reaches the port can cause one.
const (
	refusalsEvery = time.Second
	refusalsBurst = 20
)

// newRefusalPace returns the bound of the lines about refused requests. Metrics count all requests.
func newRefusalPace() *gate.Pace {
	return gate.NewPace(refusalsEvery, refusalsBurst, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "rhumb_authority_refusals_unlogged_total", Help: "Refused requests that the log does not list, because there were many.",
	}))
}

// newFailureLimit returns a limit that has seen no failure.
func newFailureLimit() *failureLimit { return &failureLimit{addrs: map[netip.Addr]*failureCount{}} }

// check refuses an address that failed too often.
func (l *failureLimit) check(addr netip.Addr, now time.Time) error {
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
func (l *failureLimit) count(addr netip.Addr, now time.Time) {
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
	// A clock that was ahead and was set back must not lock the address out until then.
	if now.Before(c.last) {
		c.last = now
	}
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
	var one netip.Addr
	for addr, c := range l.addrs {
		one = addr
		if c.forgive(now); c.n == 0 {
			delete(l.addrs, addr)
		}
	}
	if len(l.addrs) >= failuresAddrs {
		delete(l.addrs, one)
	}
}
