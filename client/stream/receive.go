package stream

import (
	"runtime"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// receiveAnswers returns the answers of a carrier to their callers until the carrier ends.
func (c *Conn) receiveAnswers(s *carrier) {
	for {
		f, err := s.Recv()
		if err != nil {
			c.onCarrierEnd(s, err)
			return
		}
		// One lock for all answers of a frame.
		c.mu.Lock()
		for _, answer := range f.Responses {
			c.deliverLocked(answer)
		}
		if len(f.Responses) > 1 {
			c.gatherLocked()
		}
		c.sendHereLocked() // fewer frames are open, and the flow has room
		c.mu.Unlock()
	}
}

// gatherLocked lets the callers of the last answers add their next requests, so that these leave as one frame. The first caller would otherwise send
// its request alone, and the others would wait until that one is answered.
func (c *Conn) gatherLocked() {
	c.gathering = true
	c.mu.Unlock()
	// Callers that run on this processor come before this goroutine. It does not wait for those that do something else.
	runtime.Gosched()
	c.mu.Lock()
	c.gathering = false
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

// onCarrierEnd fails all requests that were sent on a carrier that ended. The node may have applied
// them, unless it rejected the stream itself.
func (c *Conn) onCarrierEnd(s *carrier, cause error) {
	// A node checks the hello of a stream before it carries out a request, so a node that rejects
	// the stream has applied nothing.
	e, unread, remote := refusalOf(cause)
	// Nobody knows which requests the node has carried out.
	failure := &Error{Sent: true, Err: rhumb.Ef(opConn, rhumb.Unknown, "the connection to %s broke: %v", c.cfg.Addr, e)}
	if k := rhumb.KindOf(e); remote && (k == rhumb.WrongCluster || k == rhumb.Incompatible || k == rhumb.Unauthenticated) {
		failure = &Error{Rejected: true, Err: e}
	} else if unread {
		failure = &Error{Err: e} // a node that is joining, for example: other nodes may serve
	}
	// Whatever ended it, its goroutines and its connection have to end too.
	s.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	// Interrupt, Close or the end of its last request may have ended the carrier, but only here is it forgotten.
	delete(c.carriers, s)
	for _, r := range c.unanswered {
		if r.frame.carrier == s {
			c.forgetLocked(r)
			r.failWith(failure)
		}
	}
	if c.carrier == s {
		c.carrier = nil
		c.cfg.Counters.Broken.Add(1)
		c.openFrames = 0
		c.generation++
	}
	c.signalLocked()
}
