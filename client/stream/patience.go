package stream

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// patienceEvery is how often a Conn with unanswered calls looks for those that have waited long enough.
// A call is looked at up to this much late.
const patienceEvery = 10 * time.Millisecond

// patience ends the calls of a Conn that wait for too long. It has one timer for all calls, because a timer for each
// call would almost always be stopped before it fires.
type patience struct {
	timer *time.Timer
	armed bool // guarded by Conn.mu
}

// arm makes the timer fire if it does not run. Conn.mu must be held.
func (p *patience) arm() {
	if !p.armed {
		p.armed = true
		p.timer.Reset(patienceEvery)
	}
}

// onPatience looks at the calls whose time has come.
func (c *Conn) onPatience() {
	now := time.Now()
	for _, r := range c.dueCalls(now) {
		c.lookAt(r, now)
	}
}

// dueCalls returns the calls that have to be looked at, and arms the timer again while calls wait.
func (c *Conn) dueCalls(now time.Time) []*call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patience.armed = false
	if c.closed {
		return nil
	}
	var due []*call
	for _, r := range c.unanswered {
		if now.After(r.look) {
			due = append(due, r)
		}
	}
	for _, r := range c.queue {
		if !r.abandoned && now.After(r.look) {
			due = append(due, r)
		}
	}
	if len(c.unanswered) > 0 || len(c.queue) > 0 {
		c.patience.arm()
	}
	return due
}

// lookAt ends a call that has waited long enough, or sets when to look again. A request that was sent
// gets the time that is reserved for its flight. One that is still queued may wait for its turn as
// long as it can be answered in time and the node is the right one.
func (c *Conn) lookAt(r *call, now time.Time) {
	// Asked without the lock, since the answer needs locks of the caller.
	stays := r.Stay == nil || r.Stay()
	c.mu.Lock()
	defer c.mu.Unlock()
	next := time.Duration(0)
	switch sent := r.frame != nil; {
	case r.flying:
	case sent:
		r.flying = true
		next = r.flight
	case stays && !r.Deadline.IsZero():
		next = c.flow.turn(now, r.Timeout, r.Deadline.Sub(now))
	}
	if next > 0 {
		r.look = now.Add(next)
		return
	}
	c.abandonLocked(r, rhumb.Ef(opConn, rhumb.DeadlineExceeded, "%s did not answer within %s", c.cfg.Addr, r.Timeout))
}
