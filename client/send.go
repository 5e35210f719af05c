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

// newPause returns the pauses between attempts: exponential, with jitter.
func newPause() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: pauseMin, MaxInterval: pauseMax, Multiplier: 2, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
}

// request is one request to the primary of a range, over as many attempts as needed. The
// fields up to alive are set by the caller of Client.send, the others hold the state of
// the attempts.
type request struct {
	op rhumb.Op
	// id is a home in the range that is asked: that of the key, or the first of the
	// range. The range of the home may change between attempts.
	id rhumb.RangeID
	// at, if not empty, is the address of the only node that is asked. That node finds the range
	// itself.
	at string
	// message returns the message of one attempt. Attempts share the memory that it points to,
	// which must not change.
	message func() *rhumbpb.Request
	size    int
	write   bool
	// once forbids sending the request again after it may have been applied, because it
	// carries no request ID that would keep it from being applied twice.
	once bool
	// insert is set for inserts into a known range.
	insert bool
	// local forbids nodes of other regions.
	local bool
	// alive makes the request fail at once when the metadata says that the region is
	// dead, because its caller can do without the answer.
	alive bool

	asked    rhumb.NodeID // the primary that the present attempt asks, or NoNode
	to       string       // the address of the node of the present attempt
	deadline time.Time
	// sent is set once a write may have been applied: an attempt was sent, and no node answered
	// that it was not applied. From then on only an answer shows the outcome (see finalError).
	sent      bool
	misses    int   // attempts in a row that reached no primary which serves
	silent    bool  // the node of the last attempt answered nobody
	redirects int   // newer descriptors followed without a pause
	spared    bool  // the last attempt was not sent, because its node refuses requests as overloaded
	last      error // of the last attempt
	pause     *backoff.ExponentialBackOff
}

// movedError is the error of an insert that belongs to another range. The insert was not applied.
type movedError struct {
	to  rhumb.RangeID
	err error
}

func (m *movedError) Error() string { return m.err.Error() }
func (m *movedError) Unwrap() error { return m.err }

// step is what follows an attempt without a result.
type step int

const (
	fail       step = iota // end with request.last
	retryNow               // because of newer metadata
	retryLater             // after a pause
)

// send sends a request to the primary of its range, follows changes of the primary, and retries
// where that is safe, within the deadline and the retry budget. Its error has the final form that
// callers return.
func (c *Client) send(ctx context.Context, r *request) (*rhumbpb.Response, error) {
	r.deadline = time.Now().Add(c.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok {
		r.deadline = d
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, r.contextError(err)
		}
		// Checked before every attempt, since the metadata may learn of the death during a pause.
		if r.alive && c.meta.isHomeDead(r.id) {
			return nil, &rhumb.Error{Op: r.op, Kind: rhumb.Unavailable, Range: r.id, Msg: "all nodes of region " + c.meta.regionName(r.id.Region) + " are dead", Err: r.last}
		}
		// ctx may have no deadline, and the timeout of the client applies to it as well.
		if r.last != nil && !time.Now().Before(r.deadline) {
			return nil, r.finalError(r.last) // says more than that the time is over
		}
		resp, next := c.attempt(ctx, r)
		switch {
		case resp != nil:
			c.countAnswer(resp)
			return resp, nil
		case next == fail:
			return nil, r.finalError(r.last)
		case next == retryNow:
			c.m.redirects.Add(1)
		case !c.waitBeforeRetry(ctx, r):
			return nil, r.finalError(r.last)
		}
		c.m.retries.Add(1)
	}
}

// countAnswer counts an answered request and pays into the retry budget.
func (c *Client) countAnswer(resp *rhumbpb.Response) {
	r := resp.GetReceipt()
	if rhumb.RegionID(r.GetRegion()) == c.here.ID {
		c.m.local.Add(1)
	} else {
		c.m.remote.Add(1)
	}
	// Only answers pay in, so the budget shrinks while nothing succeeds.
	c.m.hops.Add(uint64(r.GetHops()))
	c.budget.payIn()
}

// attempt sends the request once. It returns the response, or nil and the next step.
func (c *Client) attempt(ctx context.Context, r *request) (*rhumbpb.Response, step) {
	conn, hops, err := c.pickNode(r)
	if err != nil {
		r.last = err
		if rhumb.KindOf(err) == rhumb.Unavailable && !r.local {
			return nil, retryLater
		}
		return nil, fail
	}
	left := time.Until(r.deadline)
	// Every attempt has a message of its own, because the timeout and hops differ and the
	// previous one may still be on its way.
	req := r.message()
	req.TimeoutUs = uint64(max(left.Microseconds(), 1)) // 0 would leave the timeout to the node
	req.Hops = hops
	req.LocalOnly = r.local
	req.Again = r.sent
	req.Revision = c.meta.seen.Load()
	c.m.requests.Add(1)
	out := stream.Request{Message: req, Size: r.size, Timeout: min(left, c.cfg.AttemptTimeout), Resend: r.sent, Caller: &asker{c, r.id, r.asked, r.to}, Once: r.once}
	if r.asked != rhumb.NoNode {
		// No other node could do better than the primary, so the request may wait there
		// for its turn.
		out.Deadline = r.deadline
	}
	answer, err := conn.Do(ctx, out)
	if receipt := answer.GetReceipt(); receipt != nil {
		c.meta.noteEpoch(r.id, rhumb.Epoch(receipt.Epoch))
	}
	switch failure, failed := errors.AsType[*stream.Error](err); {
	case failed:
		return nil, c.afterFailure(ctx, r, failure)
	case answer.Error != nil:
		return nil, c.afterRefusal(r, answer)
	}
	return answer, fail
}

// asker is one attempt of a request, as the connection knows it. It never changes: the connection may look at it while the request is
// already at its next attempt.
type asker struct {
	client *Client
	id     rhumb.RangeID
	asked  rhumb.NodeID
	to     string
}

// Stays reports whether the node that is asked is still the primary, or is asked as any
// other node would be.
func (a *asker) Stays() bool {
	if a.asked == rhumb.NoNode {
		return true
	}
	_, n, ok := a.client.meta.primaryOf(a.id)
	return ok && n.ID == a.asked
}

// Late makes the client ask other nodes for news: a node whose disk or links have
// stopped may neither answer nor learn who has taken its place.
func (a *asker) Late() { a.client.checkWatch(a.to) }

// afterFailure returns the next step after an attempt that got no answer.
func (c *Client) afterFailure(ctx context.Context, r *request, failure *stream.Error) step {
	r.last = failure.Err
	r.misses++
	r.spared = false
	r.sent = r.sent || failure.Sent && r.write
	r.silent = failure.Silent
	switch {
	case failure.Rejected, ctx.Err() != nil, c.ctx.Err() != nil:
		return fail
	case r.sent && r.once, r.at != "":
		return fail // the caller has other nodes to try
	case rhumb.KindOf(failure.Err) == rhumb.Overloaded:
		// The node is reachable, and the request waited in this process only, so the retry costs
		// the node nothing.
		r.misses = 0
		r.spared = true
	}
	return retryLater
}

// afterRefusal returns the next step after a node refused the request.
func (c *Client) afterRefusal(r *request, resp *rhumbpb.Response) step {
	// The node answered, so the way to it works, and the hint may hold a newer descriptor
	// than the metadata.
	err, hint := api.DecodeError(resp.Error)
	r.last = err
	r.spared, r.silent = false, false
	news := c.meta.learnRange(hint.Newer)
	if err.Kind == rhumb.Unavailable {
		// The node may be cut off from all others, and the client's metadata may come
		// from it. Another node knows the new primary.
		r.misses++
	} else {
		r.misses = 0
	}
	switch err.Kind {
	case rhumb.NotPrimary:
		if hint.Newer != nil && !hint.Newer.Holds(r.id) && r.write {
			// An insert that the node redirects to another range.
			r.last = &movedError{hint.Newer.ID, err}
			return fail
		}
		// If the metadata names another node by now, no pause is needed. The bound on redirects
		// ends a loop between two nodes that name each other.
		_, primary, ok := c.meta.primaryOf(r.id)
		if (news || ok && primary.ID != r.asked) && r.redirects < redirectsMax {
			r.redirects++
			return retryNow
		}
		return retryLater
	case rhumb.Unavailable:
		if r.local {
			return fail
		}
		return retryLater
	case rhumb.NotFound:
		// The node's metadata may be older than the client's: ranges are used as soon as they
		// exist.
		if _, _, known := c.meta.primaryOf(r.id); known && err.Range == r.id {
			return retryLater
		}
		return fail
	case rhumb.Overloaded:
		return retryLater
	case rhumb.Unknown, rhumb.DeadlineExceeded:
		// The node may have applied the write. A retry carries the same request ID, so the node
		// recognizes it.
		r.sent = r.sent || r.write
		if r.sent && r.once {
			return fail
		}
		return retryLater
	case rhumb.Canceled:
		return retryLater // the node stopped, or lost its own connection: this caller did not cancel
	}
	return fail
}

// retryAfterMax bounds the wait that a node asks for.
const retryAfterMax = 5 * time.Second

// withJitter lengthens a wait by up to half. A node asks many callers for the same wait, and they
// must not return together.
func withJitter(d time.Duration) time.Duration {
	if d = min(d, retryAfterMax); d <= 0 {
		return 0
	}
	return d + rand.N(d/2+1)
}

// waitBeforeRetry pauses before the next attempt, or until the metadata names another primary. It
// returns false if the deadline or the budget forbids another attempt.
func (c *Client) waitBeforeRetry(ctx context.Context, r *request) bool {
	// Made by the first retry: most requests need none.
	if r.pause == nil {
		r.pause = newPause()
	}
	// The node knows its load, so its own estimate is the lower bound.
	d := max(r.pause.NextBackOff(), withJitter(rhumb.RetryAfterOf(r.last)))
	overloaded := rhumb.KindOf(r.last) == rhumb.Overloaded
	// An earlier attempt that may have been applied is worth any chance to learn its outcome.
	if left := time.Until(r.deadline); left <= d || overloaded && !r.sent && left <= d+stream.SlowWait {
		return false // an overloaded node would probably answer a request that it takes now too late
	}
	// A request that was never sent costs the node nothing, so it needs no token.
	if !r.spared && !c.budget.takeToken() {
		c.m.refused.Add(1)
		if overloaded {
			// The call fails only after the pause. A caller that repeats failed calls at
			// once would otherwise keep the node overloaded.
			select {
			case <-time.After(d):
			case <-ctx.Done():
			case <-c.ctx.Done():
			}
		}
		r.last = &rhumb.Error{Op: r.op, Kind: rhumb.KindOf(r.last), Range: r.id, Msg: "the retry budget is exhausted", Err: r.last}
		return false
	}
	r.redirects = 0
	return c.pauseUntilChange(ctx, r, d)
}

// pauseUntilChange waits for d, or until the range has another primary or epoch. It returns false
// if the client is closed.
func (c *Client) pauseUntilChange(ctx context.Context, r *request, d time.Duration) bool {
	// A new primary is worth an attempt at once, whatever the pause.
	before, _, _ := c.meta.primaryOf(r.id)
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		// The channel is taken before the look, so that a change in between is not missed.
		changed := c.meta.nextChange()
		if now, _, _ := c.meta.primaryOf(r.id); now != nil && (before == nil || now.Primary != before.Primary || now.Epoch != before.Epoch) {
			r.pause.Reset() // the pauses grew because of the previous primary
			return true
		}
		select {
		case <-t.C:
			return true
		case <-changed:
		case <-ctx.Done():
			return true // send checks ctx
		case <-c.ctx.Done():
			return false
		}
	}
}

// pickNode returns the connection to the node for the next attempt, and how often the
// request may be forwarded. It sets r.asked if the node is the primary.
//
// It picks the primary. If the primary is unknown or was silent, and for every second
// attempt after two that did not reach one that serves, it picks another node, a
// different one each time, which may forward the request: the client may be cut off from
// the primary while other nodes are not.
func (c *Client) pickNode(r *request) (conn *stream.Conn, hops uint32, err error) {
	r.asked = rhumb.NoNode
	if r.at != "" {
		r.to = r.at
		conn, err = c.connTo(r.at)
		return conn, hopsMax, err
	}
	_, n, ok := c.meta.primaryOf(r.id)
	// Known before anything is sent, so the call fails at once.
	if ok && r.local && n.Region != c.here.ID {
		return nil, 0, &rhumb.Error{Op: r.op, Kind: rhumb.Unavailable, Range: r.id, Node: n.ID, Msg: "the primary of the range is in another region, and the call must not leave this one"}
	}
	if ok && (r.local || !r.silent && (r.misses < 2 || r.misses%2 == 0)) {
		r.asked, r.to = n.ID, n.Addr
		conn, err = c.connTo(n.Addr)
		return conn, 0, err
	}
	r.to = otherThan(n.Addr, c.nearestFirst(), r.misses/2)
	conn, err = c.connTo(r.to)
	return conn, hopsMax, err
}

// otherThan returns an address other than that of the primary, a different one for each
// turn. The addresses are never empty: Config.Addrs has at least one.
func otherThan(primary string, near []string, turn int) string {
	for i := range near {
		if a := near[(turn+i)%len(near)]; a != primary {
			return a
		}
	}
	return near[0]
}

// contextError returns the error of a request whose context ended, with the error of the last
// attempt as the likely reason.
func (r *request) contextError(cause error) error {
	kind := rhumb.Canceled
	if errors.Is(cause, context.DeadlineExceeded) {
		kind = rhumb.DeadlineExceeded
	}
	err := &rhumb.Error{Op: r.op, Kind: kind, Range: r.id, Err: cause}
	if r.last != nil && !errors.Is(r.last, cause) {
		err.Msg = "the last attempt: " + rhumb.Message(r.last)
	}
	return r.finalError(err)
}

// finalError returns the error of a request in the form that callers return. After a
// write may have been applied, a refusal of a later attempt says nothing about the
// earlier one, so the kind is Unknown unless the error would be the same in any state.
func (r *request) finalError(err error) error {
	// The caller follows the redirect, unless an earlier attempt may have been applied: then a
	// second insert would be a second record.
	if m, ok := err.(*movedError); ok {
		if !r.sent {
			return m
		}
		// Without the wrapper: a caller that searches the chain of errors must not find a
		// redirect.
		err = m.err
	}
	kind := rhumb.KindOf(err)
	switch {
	case errors.Is(err, context.Canceled) && kind == rhumb.Other:
		kind = rhumb.Canceled
	case errors.Is(err, context.DeadlineExceeded) && kind == rhumb.Other:
		kind = rhumb.DeadlineExceeded
	}
	// A read that no node answered changed nothing: only its answer is unknown.
	if !r.write && kind == rhumb.Unknown {
		kind = rhumb.Unavailable
	}
	// The last attempt was refused, or the time was over, but an earlier one may have
	// been applied. Nodes of release 0.13 answer invalid_argument to an insert that is
	// sent again, if its range is full and they find no place for another one.
	if r.sent && (dependsOnState(kind) || r.insert && kind == rhumb.InvalidArgument) {
		return &rhumb.Error{Op: r.op, Kind: rhumb.Unknown, Range: r.id, Msg: "the write was sent and may have been applied", Err: err}
	}
	return &rhumb.Error{Op: r.op, Kind: kind, Range: r.id, Err: err}
}

// dependsOnState reports whether an error of a kind may follow an earlier attempt that
// was applied. Errors of the other kinds are wrong requests, which no attempt applied, or
// leave the outcome open anyway. WrongCluster and Incompatible say something about the process that listens at the
// address now, which may not be the one that got the earlier attempt.
func dependsOnState(k rhumb.Kind) bool {
	switch k {
	case rhumb.InvalidArgument, rhumb.TooLarge, rhumb.Corrupt, rhumb.Internal, rhumb.Expired, rhumb.Other:
		return false
	}
	return true
}
