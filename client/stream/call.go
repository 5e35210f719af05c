package stream

import (
	"context"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Request is one request to the node.
type Request struct {
	// Message is the request. Do sets its ID; the caller must not use the message again.
	Message *rhumbpb.Request
	// Size is the approximate size of Message in bytes.
	Size int
	// Timeout bounds the wait for the answer, except for the time that the request waits for its turn
	// to be sent to a node that works.
	Timeout time.Duration
	// Deadline bounds the whole wait. Zero means that Timeout does. The node gets the time that is
	// left when the request is sent.
	Deadline time.Time
	// Stay reports whether the node is still the right one. It is asked while the request waits for
	// its turn. Nil means yes.
	Stay func() bool
	// Resend says that an earlier attempt was sent and may have been applied. Only an answer shows
	// the caller the outcome, so the request is sent before all others and neither the queue's
	// bounds nor the flow apply. There are never more of them than requests that were sent before.
	Resend bool
}

// Error reports that a request got no answer.
type Error struct {
	// Sent is false if the request certainly did not reach the node.
	Sent bool
	// Rejected says that the node rejected the stream itself, for example because the node belongs
	// to another cluster. Another attempt there would fail in the same way.
	Rejected bool
	// Err is the cause.
	Err error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// call is a Request while its caller waits.
type call struct {
	Request
	// frame is the frame that carried the request, nil before that.
	frame *frame
	// abandoned is set if the caller stopped waiting before the request was sent. The call stays in
	// the queue until takeFrame skips it, because removing it from the middle would cost time
	// proportional to the queue.
	abandoned bool

	// done is closed once answer or err is set. Both are immutable from then on.
	done   chan struct{}
	answer *rhumbpb.Response
	err    error
}

// frame is one sent frame.
type frame struct {
	sent       time.Time
	generation int  // of Conn.openFrames
	answered   bool // at least one request is answered, so the frame does not count in openFrames
}

// answerWith ends the call with the answer of the node.
func (c *call) answerWith(answer *rhumbpb.Response) {
	c.answer = answer
	close(c.done)
}

// failWith ends the call without an answer.
func (c *call) failWith(err *Error) {
	c.err = err
	close(c.done)
}

// Do sends a request and returns the node's answer, which may hold a refusal. An error is an
// *Error.
//
// Part of the timeout is reserved for the flight (flow.flight). A request that is not sent before
// the flight has to begin is not sent at all: its answer would arrive too late, and nobody would
// know what became of it. A request keeps its place in the queue until then, as long as the node
// works. If only its deadline ends the wait, the error says how long an answer takes (RetryAfter).
func (c *Conn) Do(ctx context.Context, req Request) (*rhumbpb.Response, error) {
	r := &call{Request: req, done: make(chan struct{})}
	flight, err := c.submitCall(r)
	if err != nil {
		return nil, &Error{Err: err}
	}
	// The timer fires when somebody has to look whether the request is sent, and when the flight has to
	// be over.
	timer := time.NewTimer(req.Timeout - flight)
	defer timer.Stop()
	for inFlight := false; ; {
		select {
		case <-r.done:
			return r.answer, r.err
		case <-ctx.Done():
			return c.abandonCall(r, ctx.Err())
		case <-timer.C:
		}
		next := flight
		if !inFlight {
			// A request that was sent gets the reserved time. One that is still queued may wait for its
			// turn as long as it can be answered in time.
			if inFlight = c.isSent(r); !inFlight {
				next = c.turnOf(r)
			}
		} else {
			next = 0
		}
		if next <= 0 || !inFlight && req.Stay != nil && !req.Stay() {
			return c.abandonCall(r, rhumb.Ef(opConn, rhumb.DeadlineExceeded, "%s did not answer within %s", c.cfg.Addr, req.Timeout))
		}
		timer.Reset(next)
	}
}

// turnOf returns for how long a request that is not sent may still wait for its turn.
func (c *Conn) turnOf(r *call) time.Duration {
	if r.Deadline.IsZero() {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	return c.flow.turn(now, r.Timeout, r.Deadline.Sub(now))
}

// isSent reports whether a request was sent.
func (c *Conn) isSent(r *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.frame != nil
}

// submitCall sends a request or adds it to the queue, and returns how much of its timeout is for
// the flight.
func (c *Conn) submitCall(r *call) (flight time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, rhumb.Ef(opConn, rhumb.Unavailable, "the connection to %s was closed", c.cfg.Addr)
	case r.Resend:
		flight = r.Timeout / 2 // does not wait for its turn, so the wait in the node is all there is
	case len(c.queue) >= queueRequestsMax || len(c.queue) > 0 && c.queueBytes+r.Size > queueBytesMax:
		err := rhumb.Ef(opConn, rhumb.Overloaded,
			"%d requests (%d bytes) already wait to be sent to %s; at most %d requests or %d bytes may; retry later or send less",
			len(c.queue), c.queueBytes, c.cfg.Addr, queueRequestsMax, queueBytesMax)
		err.RetryAfter = c.flow.fullRetry(c.queueBytes)
		return 0, err
	default:
		flight = c.flow.flight(r.Timeout)
	}
	// IDs are unique among the streams of a Conn, so a late answer cannot meet a later request.
	c.lastID++
	r.Message.Id = c.lastID
	if len(c.unanswered) == 0 && len(c.queue) == 0 {
		c.signalUse()
	}
	if c.stream != nil && !c.sending && len(c.unanswered) == 0 && len(c.queue) == 0 && r.Size <= directBytesMax {
		// The stream is idle: nothing can gather by waiting.
		c.sendFrameLocked([]*call{r})
		return flight, nil
	}
	if r.Resend {
		c.queue = slices.Insert(c.queue, 0, r)
	} else {
		c.queue = append(c.queue, r)
	}
	c.queueBytes += r.Size
	c.signal()
	return flight, nil
}

// abandonCall ends the wait for a request. If the answer arrived in the meantime, abandonCall
// returns that.
func (c *Conn) abandonCall(r *call, cause error) (*rhumbpb.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-r.done: // calls finish under mu, so no answer can arrive from here on
		return r.answer, r.err
	default:
	}
	timedOut := rhumb.KindOf(cause) == rhumb.DeadlineExceeded
	now := time.Now()
	if r.frame != nil {
		if timedOut {
			// Only a request that waited for its whole timeout says something about the node. The
			// context of a caller may end at any time.
			c.flow.onTimeout(now, now.Sub(r.frame.sent))
		}
		c.forgetLocked(r)
		if len(c.queue) > 0 {
			c.signal() // the flow may have room now
		}
		return nil, &Error{Sent: true, Err: cause}
	}
	if timedOut && c.flow.isWorking(now) {
		// The node works, so it was not the network that held the request back.
		err := rhumb.Ef(opConn, rhumb.Overloaded, "%s has more requests than it answers in time; this one waited for its turn and was not sent", c.cfg.Addr)
		if flight := c.flow.flight(r.Timeout); !r.Deadline.IsZero() && r.Deadline.Sub(now) <= flight {
			err.RetryAfter = flight // another attempt before the deadline would only queue after all others
		}
		cause = err
	}
	r.abandoned = true
	c.queueBytes -= r.Size
	return nil, &Error{Err: cause}
}

// failQueueLocked fails all requests that were not sent.
func (c *Conn) failQueueLocked(err *Error) {
	for _, r := range c.queue {
		if !r.abandoned {
			r.failWith(err)
		}
	}
	c.queue, c.queueBytes = nil, 0
}

// forgetLocked removes a sent request from the unanswered ones.
func (c *Conn) forgetLocked(r *call) {
	delete(c.unanswered, r.Message.Id)
	c.flow.inflight -= r.Size
}
