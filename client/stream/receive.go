package stream

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// receiveAnswers returns the answers of a stream to their callers until the stream ends.
func (c *Conn) receiveAnswers(s kvStream) {
	for {
		f, err := s.Recv()
		if err != nil {
			c.onStreamEnd(s, err)
			return
		}
		// One lock for all answers of a frame.
		c.mu.Lock()
		for _, answer := range f.Responses {
			c.deliverLocked(answer)
		}
		c.sendHereLocked() // fewer frames are open, and the flow has room
		c.mu.Unlock()
	}
}

// deliverLocked returns one answer to its caller.
func (c *Conn) deliverLocked(answer *rhumbpb.Response) {
	r := c.unanswered[answer.Id]
	if r == nil {
		return // abandoned
	}
	// The flow learns of the answer before the request leaves inflight: it judges the node by the
	// bytes that were in flight.
	now := time.Now()
	if answer.Error.GetKind() == rhumbpb.Kind_KIND_OVERLOADED {
		c.flow.onRefusal(now)
	} else {
		c.flow.onAnswer(now, now.Sub(r.frame.sent), r.Size)
	}
	c.forgetLocked(r)
	if f := r.frame; !f.answered {
		f.answered = true
		if f.generation == c.generation {
			c.openFrames--
		}
	}
	r.answerWith(answer)
}

// onStreamEnd fails all requests that were sent on a stream that ended. The node may have applied
// them, unless it rejected the stream itself.
func (c *Conn) onStreamEnd(s kvStream, cause error) {
	// A node checks the hello of a stream before it carries out a request, so a node that rejects
	// the stream has applied nothing.
	e, _, remote := api.FromStatus(opConn, cause)
	// Nobody knows which requests the node has carried out.
	failure := &Error{Sent: true, Err: rhumb.Ef(opConn, rhumb.Unknown, "the connection to %s broke: %v", c.cfg.Addr, e)}
	if k := rhumb.KindOf(e); remote && (k == rhumb.WrongCluster || k == rhumb.Incompatible || k == rhumb.Unauthenticated) {
		failure = &Error{Rejected: true, Err: e}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Interrupt or Close may have canceled the stream, but only here is it forgotten.
	if c.stream == s {
		c.cancelStream()
		c.stream = nil
		c.cfg.Counters.Broken.Add(1)
	}
	// Every unanswered request was sent on s: the next stream is opened only after this one is
	// forgotten.
	for _, r := range c.unanswered {
		c.forgetLocked(r)
		r.failWith(failure)
	}
	c.openFrames = 0
	c.generation++
	c.signalLocked()
}
