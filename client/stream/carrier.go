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

const (
	// linkAfter is how many requests a stream carries before a link is opened. A handshake costs as much as about a hundred requests, and a
	// process that sends a few must not wait for one.
	linkAfter = 32
	// linkEvery is the least time between two attempts to open a link. Some middleboxes end connections that they do not know, and requests that are
	// under way at that time have an unknown outcome.
	linkEvery = 10 * time.Second
	// linkDoublings bounds how often linkEvery doubles while attempts fail, as they do at a node of an earlier release.
	linkDoublings = 5
)

// frames is what carries frames. Send and Recv may be called at the same time, and each by one goroutine at a time.
type frames interface {
	Send(*rhumbpb.ClientFrame) error
	Recv() (*rhumbpb.ServerFrame, error)
}

// carrier is an open stream or link to the node.
//
// A Conn sends on one carrier at a time. When a link takes the place of a stream, or of a link whose login expires, the former carrier
// stays open until the requests that it carried are answered: the node has accepted them, and nothing may be asked twice without need.
type carrier struct {
	frames
	cancel func()     // ends it, so that Recv fails
	link   *link.Conn // nil for a stream
	renew  time.Time  // when another link has to take the place of this one; zero for never

	// The fields below are guarded by Conn.mu.
	greeted bool // the hello was sent
	sent    int  // requests
	open    int  // unanswered requests
	retired bool // another carrier has taken its place
}

// linkFrames carries frames on a link.
type linkFrames struct{ l *link.Conn }

// Send implements frames.
func (f linkFrames) Send(out *rhumbpb.ClientFrame) error {
	return f.l.WriteFrame(link.KindMessages, func(b []byte) []byte { return link.AppendRequests(b, out.Requests) })
}

// Recv implements frames.
func (f linkFrames) Recv() (*rhumbpb.ServerFrame, error) {
	for {
		kind, content, err := f.l.NextFrame(link.AnswerBytesMax)
		switch {
		case err != nil:
			return nil, &rhumb.Error{Op: opConn, Kind: rhumb.Unknown, Err: err}
		case kind == link.KindError:
			return nil, link.DecodeError(content)
		case kind == link.KindMessages:
			responses, err := link.DecodeResponses(content)
			return &rhumbpb.ServerFrame{Responses: responses}, err
		}
		// An answer to a ping, whose arrival is all that counts.
	}
}

// pingNode sends pings until the link breaks or ctx ends, so that each side knows that the other one lives while there are no requests.
func pingNode(ctx context.Context, l *link.Conn) {
	ticker := time.NewTicker(link.PingEvery)
	defer ticker.Stop()
	// Also while there are requests: the node may have nothing to answer for as long as a range has no primary.
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if l.WriteFrame(link.KindPing, nil) != nil {
				return
			}
		}
	}
}

// installLocked makes a carrier the one that requests are sent on. The former one ends when its requests are answered.
func (c *Conn) installLocked(s *carrier) {
	// Its requests are not sent again: each of them may have been applied, and its answer is on the way.
	if old := c.carrier; old != nil {
		old.retired = true
		c.settleLocked(old)
	}
	c.carrier = s
	c.carriers[s] = struct{}{}
	c.openFrames = 0
	c.generation++
	c.work.Go(func() { c.receiveAnswers(s) })
}

// settleLocked ends a retired carrier whose requests are answered.
func (c *Conn) settleLocked(s *carrier) {
	if s.retired && s.open == 0 {
		s.cancel()
	}
}

// considerLinkLocked opens a link if the present stream has carried enough requests, or if the login of the present link expires.
func (c *Conn) considerLinkLocked(now time.Time) {
	s := c.carrier
	// A stream is left for a link, and a link for another one only when its login ends: a session cannot be renewed on a link, and the node
	// ends the link with the session.
	wanted := s.sent >= linkAfter
	if s.link != nil {
		wanted = !s.renew.IsZero() && now.After(s.renew)
	}
	if !wanted || c.cfg.Link == nil || c.linking || c.closed || now.Before(c.linkAt) {
		return
	}
	c.linking, c.linkAt = true, now.Add(linkEvery<<min(c.noLinks, linkDoublings))
	c.work.Go(c.openLink)
}

// openLink opens a link and makes it the carrier. The requests use the stream in the meantime, and afterwards if that fails: a node of an
// earlier release does not know links.
func (c *Conn) openLink() {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.ConnectTimeout)
	defer cancel()
	l, renew, err := c.cfg.Link.Open(ctx, c.cfg.Cluster())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.linking = false
	// The reason does not matter: a node that is down, or refuses everybody, reports that on the stream.
	if err != nil {
		c.noLinks++
		c.cfg.Counters.NoLinks.Add(1)
		return
	}
	// Close does not know a carrier that is installed after it.
	if c.closed {
		l.Close()
		return
	}
	c.noLinks = 0
	c.cfg.Counters.Links.Add(1)
	pinging, stop := context.WithCancel(c.ctx)
	c.work.Go(func() { pingNode(pinging, l) })
	c.installLocked(&carrier{frames: linkFrames{l}, link: l, renew: renew, greeted: true, cancel: func() {
		stop()
		l.Close()
	}})
	c.signalLocked()
}

// refusalOf returns the error with which the node ended a carrier, and whether the node says that it
// has read no request. ok is false if the connection broke.
func refusalOf(cause error) (e *rhumb.Error, unread, ok bool) {
	if a, ok := errors.AsType[*link.Answer](cause); ok {
		return a.Err, false, true
	}
	e, h, ok := api.FromStatus(opConn, cause)
	return e, h.Unread, ok
}
