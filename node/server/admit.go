package server

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// Budgets bound the memory that clients' requests take on a node. Nil ones have no bound.
type Budgets struct {
	// Requests are requests from the moment they are decoded until they are answered, Answers what clients have not taken.
	Requests, Answers *memory.Budget
}

// requestOverhead is about what a request takes besides its names and values, on its way through the node; mutationOverhead is
// that for each record it writes or names.
const (
	requestOverhead  = 512
	mutationOverhead = 64
)

// requestBytes is about what a request takes while it is answered.
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

// admit takes a request in, or says why not: at once, before anything of it is copied. done is then called in place of the
// given one.
func (k *KV) admit(q *rhumbpb.Request, done func(*rhumbpb.Response)) (func(*rhumbpb.Response), error) {
	const op rhumb.Op = "server.KV"
	b := &k.cfg.Budgets
	if q.Write == nil && b.Answers.Full() {
		b.Answers.Refuse()
		return nil, rhumb.Ef(op, rhumb.Overloaded, "%d bytes of answers wait to be taken by clients of this node, the bound is %d; retry later", b.Answers.Used(), b.Answers.Most())
	}
	size := requestBytes(q)
	if !b.Requests.TryAcquire(size) {
		return nil, rhumb.Ef(op, rhumb.Overloaded, "%d bytes of requests are under way on this node, the bound is %d; send less or retry later", b.Requests.Used(), b.Requests.Most())
	}
	return func(resp *rhumbpb.Response) {
		b.Requests.Release(size)
		done(resp)
	}, nil
}

// LimitStreams refuses, as Overloaded, calls of clients beyond those that a budget has room for: each counts as
// memory.StreamReserve from its first byte to its end, whatever it sends. Calls of peers are not refused.
func LimitStreams(b *memory.Budget) grpc.ServerOption {
	const op rhumb.Op = "server.LimitStreams"
	prefix := "/" + rhumbpb.KV_ServiceDesc.ServiceName + "/"
	return grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		if !strings.HasPrefix(info.FullMethodName, prefix) {
			return ctx, nil
		}
		if !b.TryAcquire(memory.StreamReserve) {
			return nil, api.Status(rhumb.Ef(op, rhumb.Overloaded, "clients hold %d streams and calls to this node, which are as many as its memory allows; use one client for many callers, or ask another node",
				b.Used()/memory.StreamReserve), api.Hint{})
		}
		context.AfterFunc(ctx, func() { b.Release(memory.StreamReserve) })
		return ctx, nil
	})
}
