package server

import (
	"context"
	"strings"

	"google.golang.org/grpc/tap"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/gate"
	"github.com/rhumbdb/rhumb/node/memory"
)

// Budgets bound the memory that requests of clients use on a node. A nil budget has no bound.
type Budgets struct {
	// Requests counts requests from decoding to the answer, Answers the answers that clients have not
	// received.
	Requests, Answers *memory.Budget
}

// requestOverhead approximates the memory of a request besides its names and values on its way
// through the node, mutationOverhead that of each record it writes or names. Without the latter, a
// locate of 1,024 names of 4 KiB once counted as 512 bytes.
const (
	requestOverhead  = 512
	mutationOverhead = 64
)

// requestBytes returns the approximate memory that a request uses until it is answered. Only names
// and values vary much.
func requestBytes(q *rhumbpb.Request) int64 {
	size := requestOverhead
	if w := q.Write; w != nil {
		for _, m := range w.Mutations {
			size += mutationOverhead + len(m.GetName()) + len(m.GetValue())
		}
	}
	if r := q.Read; r != nil {
		for _, n := range r.Names {
			size += mutationOverhead + len(n)
		}
	}
	if l := q.Locate; l != nil {
		for _, n := range l.Names {
			size += mutationOverhead + len(n)
		}
	}
	return int64(size)
}

// admitRequest counts a request against the budgets of the node, or rejects it before anything of
// it is copied. The caller must use the returned done, which releases the budget, in place of the
// given one.
func (k *KV) admitRequest(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) (func(*rhumbpb.Response), error) {
	const op rhumb.Op = "server.KV"
	b := &k.cfg.Budgets
	// Answers to reads may be large, so a full budget rejects reads. Answers to writes are small.
	if q.Write == nil && b.Answers.Full() {
		b.Answers.Refuse()
		return nil, rhumb.Ef(op, rhumb.Overloaded, "clients of this node have not received %d bytes of answers, and %d is the bound; retry later", b.Answers.Used(), b.Answers.Most())
	}
	// From the decoded request, which is the memory that it occupies until done.
	size := requestBytes(q)
	account := gate.AccountFrom(ctx)
	if err := account.Acquire(size); err != nil {
		return nil, err
	}
	if !b.Requests.TryAcquire(size) {
		account.Release(size)
		return nil, rhumb.Ef(op, rhumb.Overloaded, "%d bytes of requests are unanswered on this node, and %d is the bound; send less or retry later", b.Requests.Used(), b.Requests.Most())
	}
	// Released before the answer is queued: its bytes are counted by the budget of answers.
	return func(resp *rhumbpb.Response) {
		b.Requests.Release(size)
		account.Release(size)
		if account.CountsBytes() {
			account.Answered(int64(responseSize(resp)))
		}
		done(resp)
	}, nil
}

// LimitStreams returns a tap that rejects calls of clients beyond the number that a budget has
// room for. Each call counts as memory.StreamReserve from its first byte to its end, whatever it
// sends, because the transport buffers bytes before any request is decoded. The account of the caller bounds its share, so
// that one user cannot take all of them. Calls of peers are not limited.
func LimitStreams(b *memory.Budget) tap.ServerInHandle {
	const op rhumb.Op = "server.LimitStreams"
	prefix := "/" + rhumbpb.KV_ServiceDesc.ServiceName + "/"
	// A tap runs before the transport creates the stream, so a rejected call uses no memory.
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		// Only the key-value service: operators and peers must get through to an overloaded node.
		if !strings.HasPrefix(info.FullMethodName, prefix) {
			return ctx, nil
		}
		// The share first, so that a refusal names the limit that the caller can do something about.
		account := gate.AccountFrom(ctx)
		if err := account.OpenStream(); err != nil {
			return nil, api.Status(err, api.Hint{})
		}
		// Rejected, not queued: a client that waits here could not use another node.
		if !b.TryAcquire(memory.StreamReserve) {
			account.CloseStream()
			return nil, api.Status(rhumb.Ef(op, rhumb.Overloaded, "clients have %d streams and calls open to this node, as many as its memory allows; use one client for many callers, or another node",
				b.Used()/memory.StreamReserve), api.Hint{})
		}
		// The context of a call ends with the call, however it ends.
		context.AfterFunc(ctx, func() {
			b.Release(memory.StreamReserve)
			account.CloseStream()
		})
		return ctx, nil
	}
}
