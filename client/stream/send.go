package stream

import (
	"context"
	"errors"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// signal wakes run. One token is enough, since run looks at everything.
func (c *Conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// signalLocked wakes run if it could send something. Otherwise requests gather: the answer to a frame, or the
// stall timer, sends them.
func (c *Conn) signalLocked() {
	switch {
	case len(c.queue) == 0 || c.sending || c.gathering || c.closed:
	case c.carrier != nil && c.openFrames >= c.flow.frames():
		if !c.stallSet {
			c.stallSet = true
			c.stall.Reset(stallMax)
		}
	default:
		c.signal()
	}
}

// sendHereLocked sends the queue on the goroutine of the caller, if that can not block it, or has run send it. A
// switch to another goroutine takes longer than to send a few small requests.
func (c *Conn) sendHereLocked() {
	if c.gathering {
		return // receiveAnswers sends
	}
	if c.carrier == nil || c.sending || c.closed || len(c.queue) == 0 || c.openFrames >= c.flow.frames() ||
		c.queueBytes > directBytesMax || c.flow.inflight > directBytesMax {
		c.signalLocked()
		return
	}
	if calls := c.takeFrameLocked(); len(calls) > 0 {
		c.sendFrameLocked(calls)
	}
}

// run sends queued requests until the Conn is closed.
func (c *Conn) run() {
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
		for c.sendQueued() {
		}
	}
}

// sendQueued sends one frame of queued requests, or opens the stream that they need, and reports
// whether another call may find work. Whoever changes a condition under which it returns false must
// call signalLocked.
func (c *Conn) sendQueued() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.sending || len(c.queue) == 0 || c.closed:
		return false
	case c.carrier == nil:
		// Opened by the first request and not by New, so that a client has no streams to nodes that it
		// does not use.
		c.openStreamLocked()
		return true
	case c.openFrames >= c.flow.frames():
		c.signalLocked()
		return false
	}
	calls := c.takeFrameLocked()
	if len(calls) > 0 {
		c.sendFrameLocked(calls)
	}
	return len(calls) > 0
}

// takeFrameLocked removes the requests of the next frame from the queue, in its order, until the
// frame is full or the flow has no room for the next one.
func (c *Conn) takeFrameLocked() []*call {
	calls := make([]*call, 0, min(len(c.queue), frameRequestsMax))
	n, size := 0, 0
	for n < len(c.queue) && len(calls) < frameRequestsMax && (len(calls) == 0 || size+c.queue[n].Size <= frameBytesMax) {
		if r := c.queue[n]; !r.abandoned {
			// The frame ends here, although a smaller request after this one might fit: requests
			// leave in order, so a large one cannot starve.
			if !r.Resend && (!c.flow.hasRoom(r.Size, size) || len(c.unanswered)+len(calls) >= link.RequestsMax) {
				break
			}
			size += r.Size
			calls = append(calls, r)
		}
		n++
	}
	c.queue = c.queue[n:]
	if len(c.queue) == 0 {
		c.queue = nil // or the array would keep the sent requests in memory
	}
	c.queueBytes -= size
	return calls
}

// sendFrameLocked sends requests as one frame. It releases the lock while it writes; sending keeps
// other writers away.
func (c *Conn) sendFrameLocked(calls []*call) {
	s := c.carrier // may be replaced while the lock is released
	f := &frame{carrier: s, generation: c.generation, sent: time.Now()}
	out := &rhumbpb.ClientFrame{Requests: make([]*rhumbpb.Request, len(calls))}
	// The requests count as sent before Send: an answer may arrive before Send returns, and if Send
	// fails nobody knows how much reached the node.
	for i, r := range calls {
		r.frame = f
		// It may have waited for its turn since the caller set the time.
		if !r.Deadline.IsZero() {
			r.Message.TimeoutUs = uint64(max(r.Deadline.Sub(f.sent).Microseconds(), 1)) // 0 would leave the timeout to the node
		}
		c.unanswered[r.Message.Id] = r
		c.flow.inflight += r.Size
		out.Requests[i] = r.Message
	}
	s.open += len(calls)
	s.sent += len(calls)
	if !s.greeted {
		s.greeted = true
		out.Hello = &rhumbpb.Hello{Protocol: api.Protocol, Cluster: api.EncodeUUID(c.cfg.Cluster())}
	}
	c.openFrames++
	c.sending = true
	c.considerLinkLocked(f.sent)
	c.mu.Unlock()
	c.cfg.Counters.Frames.Add(1)
	c.cfg.Counters.Sent.Add(uint64(len(calls)))
	err := s.Send(out)
	c.mu.Lock()
	c.sending = false
	if err != nil {
		s.cancel() // Recv returns the cause, and receiveAnswers fails the requests with it
	}
	c.signalLocked() // nobody could send while sending was set
}

// openStreamLocked opens the stream, and connects if necessary. It releases the lock in the
// meantime. On failure it fails all queued requests: none of them was sent, so their callers may
// try another node.
func (c *Conn) openStreamLocked() {
	c.sending = true
	// sending keeps other goroutines from opening a second stream.
	ctx, cancel := context.WithCancel(c.ctx)
	c.cancelOpen = cancel
	c.mu.Unlock()
	// The context must outlive this function, because it ends the stream, so the timeout is a timer
	// of its own.
	timer := time.AfterFunc(c.cfg.ConnectTimeout, cancel)
	s, err := rhumbpb.NewKVClient(c.conn.Client()).Stream(ctx)
	// A timer that has fired has canceled ctx, which ends the stream even if it was opened just in
	// time.
	late := !timer.Stop()
	c.mu.Lock()
	c.sending, c.cancelOpen = false, nil
	if err == nil && !late && !c.closed && c.carrier == nil {
		c.installLocked(&carrier{frames: s, cancel: cancel})
		return
	}
	cancel()
	// A link that was being opened when the former stream broke came first.
	if c.carrier != nil {
		return
	}
	// The error of a login is the answer of the node: another attempt, or another node, would not do
	// better. Only a wait that the node asks for helps.
	if e, ok := errors.AsType[*rhumb.Error](err); ok && !late {
		c.failQueueLocked(&Error{Rejected: e.Kind != rhumb.Overloaded && e.Kind != rhumb.Unavailable && e.Kind != rhumb.DeadlineExceeded, Err: e})
		return
	}
	msg := "cannot connect to " + c.cfg.Addr
	if late {
		msg += " within " + c.cfg.ConnectTimeout.String()
	}
	// A node that refuses the certificate of this process, or the lack of one, decides as all others would. A
	// certificate that this process refuses is a fault of that node only.
	if refusal, ok := api.RefusalOf(err); ok && refusal.Own && !late {
		e, _, _ := api.FromStatus(opConn, err)
		c.failQueueLocked(&Error{Rejected: true, Err: rhumb.Ef(opConn, refusal.Kind, "%s: %s", msg, rhumb.Message(e))})
		return
	}
	c.failQueueLocked(&Error{Err: &rhumb.Error{Op: opConn, Kind: rhumb.Unavailable, Msg: msg, Err: err}})
}

// onStall lets more frames be sent although none of the earlier ones is answered.
func (c *Conn) onStall() {
	c.mu.Lock()
	c.stallSet = false
	c.openFrames = 0
	c.generation++
	c.mu.Unlock()
	c.signal()
}
