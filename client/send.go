package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client/stream"
)

// newPause makes a source of pauses between attempts: exponential, with jitter.
func newPause() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: pauseMin, MaxInterval: pauseMax, Multiplier: 2, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
}

// errand is one request on its way to the primary of its range, over as many attempts as it takes.
type errand struct {
	op rhumb.Op
	// id is the range that is asked.
	id rhumb.RangeID
	// at, when not empty, is the node that is asked, and finds the range itself.
	at string
	// message makes the request of one attempt. What it holds is shared between attempts and never changed.
	message func() *rhumbpb.Request
	size    int
	write   bool
	// once says that the request must not be sent again when it may have been applied: it carries no id that would keep
	// it from being applied twice.
	once bool
	// local forbids any node of another region.
	local bool
	// alive fails the errand at once when metadata says that the region is dead: its caller goes on without it.
	alive bool

	deadline  time.Time
	sent      bool  // a write was sent, and nobody said that it was not applied: it may have been
	misses    int   // attempts in a row that did not reach a node
	redirects int   // newer descriptors followed without a pause
	spared    bool  // the attempt before was not sent, because its node refuses requests as overloaded
	last      error // what the attempt before ended with
	pause     *backoff.ExponentialBackOff
}

// moved is the error of an insert that belongs into another range; it was not applied.
type moved struct {
	to  rhumb.RangeID
	err error
}

func (m *moved) Error() string { return m.err.Error() }
func (m *moved) Unwrap() error { return m.err }

// next is what to do after an attempt.
type next int

const (
	fail  next = iota // end with errand.last
	again             // at once: something newer is known
	later             // after a pause
)

// send carries out an errand: it asks the primary of the range, follows it when it changes, and retries what is safe
// within the deadline and the retry budget.
func (c *Client) send(ctx context.Context, e *errand) (*rhumbpb.Response, error) {
	e.deadline = time.Now().Add(c.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok {
		e.deadline = d
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, e.gaveUp(err)
		}
		if e.alive && c.meta.isDead(e.id.Region) {
			return nil, &rhumb.Error{Op: e.op, Kind: rhumb.Unavailable, Range: e.id, Msg: "all nodes of region " + c.meta.regionName(e.id.Region) + " are dead", Err: e.last}
		}
		if e.last != nil && !time.Now().Before(e.deadline) {
			return nil, e.failed(e.last) // which says more than that the time is over
		}
		resp, step := c.attempt(ctx, e)
		switch {
		case resp != nil:
			c.count(resp)
			return resp, nil
		case step == fail:
			return nil, e.failed(e.last)
		case step == again:
			c.m.redirects.Add(1)
		case !c.wait(ctx, e):
			return nil, e.failed(e.last)
		}
		c.m.retries.Add(1)
	}
}

// count notes an answered errand.
func (c *Client) count(resp *rhumbpb.Response) {
	r := resp.GetReceipt()
	if rhumb.RegionID(r.GetRegion()) == c.here.ID {
		c.m.local.Add(1)
	} else {
		c.m.remote.Add(1)
	}
	c.m.hops.Add(uint64(r.GetHops()))
	c.budget.refund()
}

// attempt asks once.
func (c *Client) attempt(ctx context.Context, e *errand) (*rhumbpb.Response, next) {
	conn, asked, hops, err := c.pick(e)
	if err != nil {
		e.last = err
		if rhumb.KindOf(err) == rhumb.Unavailable && !e.local {
			return nil, later
		}
		return nil, fail
	}
	left := time.Until(e.deadline)
	req := e.message()
	req.TimeoutUs = uint64(max(left.Microseconds(), 1))
	req.Hops = hops
	req.LocalOnly = e.local
	c.m.requests.Add(1)
	answer, err := conn.Do(ctx, stream.Request{Message: req, Size: e.size, Timeout: min(left, c.cfg.AttemptTimeout), Resend: e.sent})
	switch failure, failed := errors.AsType[*stream.Error](err); {
	case failed:
		return nil, c.unanswered(ctx, e, failure)
	case answer.Error != nil:
		return nil, c.refused(e, asked, answer)
	}
	return answer, fail
}

// unanswered judges an attempt without an answer.
func (c *Client) unanswered(ctx context.Context, e *errand, failure *stream.Error) next {
	e.last = failure.Err
	e.misses++
	e.spared = false
	e.sent = e.sent || failure.Sent && e.write
	switch {
	case failure.Rejected, ctx.Err() != nil, c.ctx.Err() != nil:
		return fail
	case e.sent && e.once, e.at != "":
		return fail // the caller has other nodes to try
	case rhumb.KindOf(failure.Err) == rhumb.Overloaded:
		e.misses = 0
		e.spared = true
	}
	return later
}

// refused judges a node's refusal.
func (c *Client) refused(e *errand, asked rhumb.NodeID, resp *rhumbpb.Response) next {
	err, hint := api.DecodeError(resp.Error)
	e.last = err
	e.misses = 0
	e.spared = false
	news := c.meta.learn(hint.Newer)
	switch err.Kind {
	case rhumb.NotPrimary:
		if hint.Newer != nil && hint.Newer.ID != e.id && e.write {
			e.last = &moved{hint.Newer.ID, err}
			return fail
		}
		_, primary, ok := c.meta.primary(e.id)
		if (news || ok && primary.ID != asked) && e.redirects < redirectsMax {
			e.redirects++
			return again
		}
		return later
	case rhumb.Unavailable:
		if e.local {
			return fail
		}
		return later
	case rhumb.NotFound:
		// The client's metadata may be newer than the node's: a range is used as soon as it is made.
		if _, _, known := c.meta.primary(e.id); known && err.Range == e.id {
			return later
		}
		return fail
	case rhumb.Overloaded:
		return later
	case rhumb.Unknown, rhumb.DeadlineExceeded:
		e.sent = e.sent || e.write
		if e.sent && e.once {
			return fail
		}
		return later
	case rhumb.Canceled:
		return later // the node stopped, or lost its own connection: this caller did not cancel
	}
	return fail
}

// retryAfterMax bounds the wait that a node asks for.
const retryAfterMax = 5 * time.Second

// jittered spreads a wait that a node asked many callers for over half as much again, so that they do not come back together.
func jittered(d time.Duration) time.Duration {
	if d = min(d, retryAfterMax); d <= 0 {
		return 0
	}
	return d + rand.N(d/2+1)
}

// wait pauses before the next attempt, less long when metadata names another primary meanwhile. It is false when there
// is no time or no budget for another attempt.
func (c *Client) wait(ctx context.Context, e *errand) bool {
	if e.pause == nil {
		e.pause = newPause()
	}
	d := max(e.pause.NextBackOff(), jittered(rhumb.RetryAfterOf(e.last)))
	overloaded := rhumb.KindOf(e.last) == rhumb.Overloaded
	if left := time.Until(e.deadline); left <= d || overloaded && !e.sent && left <= d+stream.SlowWait {
		return false // what a node under overload takes in now would probably be answered too late
	}
	if !e.spared && !c.budget.take() {
		c.m.refused.Add(1)
		if overloaded { // or a caller that asks again at once would never leave the node in peace
			select {
			case <-time.After(d):
			case <-ctx.Done():
			case <-c.ctx.Done():
			}
		}
		e.last = &rhumb.Error{Op: e.op, Kind: rhumb.KindOf(e.last), Range: e.id, Msg: "the retry budget is exhausted", Err: e.last}
		return false
	}
	e.redirects = 0
	before, _, _ := c.meta.primary(e.id)
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		changed := c.meta.next()
		if now, _, _ := c.meta.primary(e.id); now != nil && (before == nil || now.Primary != before.Primary || now.Epoch != before.Epoch) {
			e.pause.Reset() // what it was asked before is over
			return true
		}
		select {
		case <-t.C:
			return true
		case <-changed:
		case <-ctx.Done():
			return true // send sees it
		case <-c.ctx.Done():
			return false
		}
	}
}

// pick chooses the node to ask: the primary; another one, which may pass the request on, when the primary is not known
// or was not reached twice.
func (c *Client) pick(e *errand) (conn *stream.Conn, asked rhumb.NodeID, hops uint32, err error) {
	if e.at != "" {
		conn, err = c.connTo(e.at)
		return conn, rhumb.NoNode, hopsMax, err
	}
	_, n, ok := c.meta.primary(e.id)
	if ok && e.local && n.Region != c.here.ID {
		return nil, 0, 0, &rhumb.Error{Op: e.op, Kind: rhumb.Unavailable, Range: e.id, Node: n.ID, Msg: "the range's primary is in another region, and the call forbids that hop"}
	}
	if ok && (e.local || e.misses < 2 || e.misses%2 == 0) {
		conn, err = c.connTo(n.Addr)
		return conn, n.ID, 0, err
	}
	near := c.nearestFirst()
	for i := range near {
		// A different one each time.
		if a := near[(e.misses/2+i)%len(near)]; a != n.Addr {
			conn, err = c.connTo(a)
			return conn, rhumb.NoNode, hopsMax, err
		}
	}
	conn, err = c.connTo(near[0])
	return conn, rhumb.NoNode, hopsMax, err
}

// gaveUp is the error of an errand whose context ended.
func (e *errand) gaveUp(cause error) error {
	kind := rhumb.Canceled
	if errors.Is(cause, context.DeadlineExceeded) {
		kind = rhumb.DeadlineExceeded
	}
	err := &rhumb.Error{Op: e.op, Kind: kind, Range: e.id, Err: cause}
	if e.last != nil && !errors.Is(e.last, cause) {
		err.Msg = "the last attempt: " + e.last.Error()
	}
	return e.failed(err)
}

// failed gives the error of an errand its final form. After a write may have been applied, only a success or an error
// that holds in every state says what became of it.
func (e *errand) failed(err error) error {
	if m, ok := err.(*moved); ok && !e.sent {
		return m
	}
	kind := rhumb.KindOf(err)
	switch {
	case errors.Is(err, context.Canceled) && kind == rhumb.Other:
		kind = rhumb.Canceled
	case errors.Is(err, context.DeadlineExceeded) && kind == rhumb.Other:
		kind = rhumb.DeadlineExceeded
	}
	if e.sent && stateful(kind) {
		return &rhumb.Error{Op: e.op, Kind: rhumb.Unknown, Range: e.id, Msg: "the write was sent and may have been applied", Err: err}
	}
	return &rhumb.Error{Op: e.op, Kind: kind, Range: e.id, Err: err}
}

// stateful reports whether an attempt that failed with this kind leaves open what an earlier one did.
func stateful(k rhumb.Kind) bool {
	switch k {
	case rhumb.InvalidArgument, rhumb.TooLarge, rhumb.Incompatible, rhumb.WrongCluster, rhumb.Corrupt, rhumb.Internal, rhumb.Expired, rhumb.Other:
		return false
	}
	return true
}
