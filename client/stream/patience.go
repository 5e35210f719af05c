package stream

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// patienceEvery is how often a Conn with unanswered calls looks for those that have waited long
// enough, with patienceEach more for each call. A call is looked at up to this much late. Each look
// holds the lock through which all requests and answers pass, so many calls are looked at less
// often.
const (
	patienceEvery = 10 * time.Millisecond
	patienceEach  = 2 * time.Microsecond
)

const (
	// lookEvery is how often a Conn asks the caller of an unanswered request whether the
	// node is still the right one.
	lookEvery = 250 * time.Millisecond
	// LateAfter is how long after it was sent a request without an answer is late.
	LateAfter = 500 * time.Millisecond
)

// patience ends the calls of a Conn that wait for too long. It has one timer for all
// calls, because a timer for each call would almost always be stopped before it fires.
type patience struct {
	timer *time.Timer
	armed bool // guarded by Conn.mu
}

// armPatience makes the timer fire if it does not run. mu must be held.
func (c *Conn) armPatience() {
	if p := &c.patience; !p.armed {
		p.armed = true
		p.timer.Reset(patienceEvery + time.Duration(len(c.unanswered)+len(c.queue))*patienceEach)
	}
}

// onPatience looks at the calls whose time has come.
func (c *Conn) onPatience() {
	now := time.Now()
	for _, r := range c.dueCalls(now) {
		c.lookAt(r, now)
	}
}

// dueCalls returns the calls that have to be looked at, and arms the timer again while
// calls wait.
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
		c.armPatience()
	}
	return due
}

// waitFor begins a part of the wait of a call.
func (r *call) waitFor(now time.Time, d time.Duration) {
	r.due = now.Add(d)
	r.look = r.due
	if r.Caller != nil {
		r.look = now.Add(min(d, lookEvery))
	}
}

// lookAt ends a call that has waited long enough, or sets when to look again.
func (c *Conn) lookAt(r *call, now time.Time) {
	// Asked without the lock, since the answer needs locks of the caller.
	stays := r.Caller == nil || r.Caller.Stays()
	c.mu.Lock()
	tell := c.judgeLocked(r, now, stays)
	c.mu.Unlock()
	if tell {
		r.Caller.Late()
	}
}

// judgeLocked is lookAt. It reports whether the caller has to learn that the answer is late.
//
// A request that was sent gets the time that is reserved for its flight. One that is
// still queued may wait for its turn as long as it can be answered in time and the node
// is the right one.
func (c *Conn) judgeLocked(r *call, now time.Time, stays bool) (tell bool) {
	sent := r.frame != nil
	if !sent && !stays {
		c.abandonLocked(r, rhumb.Ef(opConn, rhumb.Unavailable, "%s has not been sent the request, and another node has taken its place", c.cfg.Addr))
		return false
	}
	// A former primary that works refuses the request within a round trip. One that does
	// not may never answer.
	if sent && !stays && !r.Once && now.Sub(r.frame.sent) >= lookEvery {
		c.abandonLocked(r, rhumb.Ef(opConn, rhumb.Unknown, "%s did not answer, and another node has taken its place", c.cfg.Addr))
		return false
	}
	tell = sent && r.Caller != nil && now.Sub(r.frame.sent) >= LateAfter
	if now.Before(r.due) {
		r.look = now.Add(min(r.due.Sub(now), lookEvery))
		return tell
	}
	next := time.Duration(0)
	switch {
	case r.flying:
	case sent:
		r.flying = true
		next = r.flight
	case stays && !r.Deadline.IsZero():
		next = c.flow.turn(now, r.Timeout, r.Deadline.Sub(now))
	}
	if next > 0 {
		r.waitFor(now, next)
		return tell
	}
	c.abandonLocked(r, rhumb.Ef(opConn, rhumb.DeadlineExceeded, "%s did not answer within %s", c.cfg.Addr, r.Timeout))
	return tell
}
