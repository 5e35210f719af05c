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
	// Caller is asked while the request waits. Nil means that the node stays the right one.
	Caller Caller
	// Once keeps a request that was sent waiting for its answer although the node is not the right one any more, because its
	// caller may not send it again.
	Once bool
	// Resend says that an earlier attempt was sent and may have been applied. Only an answer shows
	// the caller the outcome, so the request is sent before all others and neither the queue's
	// bounds nor the flow apply. There are never more of them than requests that were sent before.
	Resend bool
}

// Caller is who sent a request. Its methods are called without a lock of the Conn, on a goroutine of the Conn.
type Caller interface {
	// Stays reports whether the node is still the right one.
	Stays() bool
	// Late says that the node has not answered for LateAfter. It is called again, a few times a second, while that lasts.
	Late()
}

// Error reports that a request got no answer.
type Error struct {
	// Sent is false if the request certainly did not reach the node.
	Sent bool
	// Rejected says that the node rejected the stream itself, for example because the node belongs
	// to another cluster. Another attempt there would fail in the same way.
	Rejected bool
	// Silent says that the request waited for its whole timeout after it was sent, and that the node answered nobody meanwhile.
	Silent bool
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
	// look is when patience looks at the call next, due when the present part of Timeout is over, flight the part that is
	// reserved for the flight, and flying says that the flight has begun at due.
	look   time.Time
	due    time.Time
	flight time.Duration
	flying bool

	// done is closed once answer or err is set. Both are immutable from then on.
	done   chan struct{}
	answer *rhumbpb.Response
	err    error
}

// frame is one sent frame.
type frame struct {
	carrier    *carrier
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
// A timeout is noticed up to patienceEvery late. The end of ctx is noticed at once. A request ends early if its
// caller says that the node is not the right one any more: with kind Unknown if it was sent.
func (c *Conn) Do(ctx context.Context, req Request) (*rhumbpb.Response, error) {
	r := &call{Request: req, done: make(chan struct{})}
	if err := c.submitCall(r); err != nil {
		return nil, &Error{Err: err}
	}
	// A plain receive costs less than a select, and a timer for each call more than both: see patience.
	if ctx.Done() == nil {
		<-r.done
		return r.answer, r.err
	}
	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
		c.mu.Lock()
		c.abandonLocked(r, ctx.Err())
		c.mu.Unlock()
		return r.answer, r.err
	}
}

// submitCall sends a request or adds it to the queue.
func (c *Conn) submitCall(r *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return rhumb.Ef(opConn, rhumb.Unavailable, "the connection to %s was closed", c.cfg.Addr)
	case r.Resend:
		r.flight = r.Timeout / 2 // does not wait for its turn, so the wait in the node is all there is
	case len(c.queue) >= queueRequestsMax || len(c.queue) > 0 && c.queueBytes+r.Size > queueBytesMax:
		err := rhumb.Ef(opConn, rhumb.Overloaded,
			"%d requests (%d bytes) already wait to be sent to %s; at most %d requests or %d bytes may; retry later or send less",
			len(c.queue), c.queueBytes, c.cfg.Addr, queueRequestsMax, queueBytesMax)
		err.RetryAfter = c.flow.fullRetry(c.queueBytes)
		return err
	default:
		r.flight = c.flow.flight(r.Timeout)
	}
	r.waitFor(time.Now(), r.Timeout-r.flight)
	c.armPatience()
	// IDs are unique among the streams of a Conn, so a late answer cannot meet a later request.
	c.lastID++
	r.Message.Id = c.lastID
	if len(c.unanswered) == 0 && len(c.queue) == 0 {
		c.signalUse()
	}
	if r.Resend {
		c.queue = slices.Insert(c.queue, 0, r)
	} else {
		c.queue = append(c.queue, r)
	}
	c.queueBytes += r.Size
	c.sendHereLocked()
	return nil
}

// abandonLocked ends the wait for a call, unless it has ended already.
func (c *Conn) abandonLocked(r *call, cause error) {
	select {
	case <-r.done: // calls finish under mu, so no answer can arrive from here on
		return
	default:
	}
	timedOut := rhumb.KindOf(cause) == rhumb.DeadlineExceeded
	now := time.Now()
	if r.frame != nil {
		silent := timedOut && !c.flow.heard.After(r.frame.sent)
		if timedOut {
			// Only a request that waited for its whole timeout says something about the node. The
			// context of a caller may end at any time.
			c.flow.onTimeout(now, now.Sub(r.frame.sent))
		}
		c.forgetLocked(r)
		c.signalLocked() // the flow may have room now
		r.failWith(&Error{Sent: true, Silent: silent, Err: cause})
		return
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
	r.failWith(&Error{Err: cause})
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
	r.frame.carrier.open--
	c.settleLocked(r.frame.carrier)
}
