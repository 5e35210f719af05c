package session

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/gate"
)

// callKey is the key of a call in a context.
type callKey struct{}

// call is a call of an identified caller.
//
// It exists from the tap to the end of the handler. Two goroutines end it: that of the handler, and
// that of the manager when the user changes. The channel lets the first reason win.
type call struct {
	who   access.Principal
	login bool // identified by a token
	known bool // the user existed when the stream began
	conn  *connState

	once  sync.Once
	ended chan struct{} // closed by end
	why   error         // set before ended is closed
}

// end ends the call.
func (k *call) end(why error) {
	k.once.Do(func() {
		k.why = why
		close(k.ended)
	})
}

// Tap returns a function that identifies the caller of each call before the node reads a message of it, so that
// strangers cost the node nothing. g is the gate of the port. Then next, which may be nil, decides too.
//
// An interceptor would be too late: gRPC has then read headers and may have buffered the first
// message of the stream.
func (m *Manager) Tap(g *gate.Gate, next tap.ServerInHandle) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		ctx, err := m.admit(ctx, g, info)
		if err != nil {
			return nil, api.Status(err, api.Hint{})
		}
		if next != nil {
			return next(ctx, info)
		}
		return ctx, nil
	}
}

// admit identifies the caller of a call.
func (m *Manager) admit(ctx context.Context, g *gate.Gate, info *tap.Info) (context.Context, error) {
	const op rhumb.Op = "session.Tap"
	var gc *gate.Conn
	if p, ok := peer.FromContext(ctx); ok {
		gc = g.Find(p.Addr, p.LocalAddr)
	}
	// Found by the addresses of the connection, since the tap gets only the context of the
	// transport.
	c := m.stateOf(gc)
	// The connection may have ended meanwhile.
	if c == nil {
		return ctx, rhumb.E(op, rhumb.Unavailable, "the connection is closed")
	}
	k := &call{conn: c, ended: make(chan struct{})}
	ctx = context.WithValue(ctx, callKey{}, k)
	// Whoever logs in is nobody yet.
	// The connection remains early, with bounded time and bytes, until the login has succeeded.
	if info.FullMethodName == rhumbpb.Session_Authenticate_FullMethodName && !m.cfg.Insecure {
		return ctx, nil
	}
	var authorization string
	if v := info.Header["authorization"]; len(v) > 0 {
		authorization = v[0]
	}
	var err error
	if k.who, k.login, err = m.identify(ctx, authorization, c); err != nil {
		m.m.rejected.Inc()
		return ctx, err
	}
	// From here on the connection counts among the known ones.
	if !gc.Authenticated() {
		return ctx, errFull
	}
	ctx = access.WithPrincipal(ctx, k.who)
	switch k.who.Kind {
	case access.KindNode:
		// Replication is bounded by budgets of its own.
		if m.cfg.NodeFrom != nil {
			m.cfg.NodeFrom(gc.From())
		}
	case access.KindInsecure:
		ctx = gate.WithAccount(ctx, m.cfg.Limiter.Account("", gc))
	default:
		ctx = gate.WithAccount(ctx, m.cfg.Limiter.Account(k.who.String(), gc))
	}
	return ctx, nil
}

// errFull rejects a caller because the node has too many connections.
var errFull = &rhumb.Error{
	Op: "session.Tap", Kind: rhumb.Overloaded, RetryAfter: retryFull,
	Msg: "the node has as many connections as it accepts; use one client for many callers, or another node",
}

// Stream is the interceptor of streams. It ends the streams of a user when the session ends, whatever the handler is
// waiting for.
func (m *Manager) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return m.Serve(stream.Context(), info.FullMethod, func(ctx context.Context) error {
		k, _ := ctx.Value(callKey{}).(*call)
		if k.who.Kind != access.KindUser {
			return handler(srv, stream)
		}
		return handler(srv, &serverStream{stream, ctx, k})
	})
}

// Serve serves a stream of a method for the caller that the tap has identified, and returns when the session of the caller ends. ctx is the
// context of the tap; the caller of Serve must end the stream afterwards, since serve may still wait for it.
func (m *Manager) Serve(ctx context.Context, method string, serve func(context.Context) error) error {
	k, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return api.Status(access.ErrAnonymous, api.Hint{})
	}
	// Rights of other callers change with their certificate only, which ends the connection.
	if k.who.Kind != access.KindUser {
		return serve(ctx)
	}
	// The session may have ended between the tap and here. From the registration on, recheck finds the call.
	if !k.conn.add(k) {
		return api.Status(errUnknown, api.Hint{})
	}
	defer k.conn.remove(k)
	k.known = k.lostUser(m.cfg.Policy()) == nil
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Buffered, because this function may return before serve does.
	done := make(chan error, 1)
	// serve may wait for a client that does not read. Only the end of this function ends such a
	// wait, so serve runs on a goroutine of its own.
	m.calls.Go(func() { done <- serve(ctx) })
	// The end of this function ends the stream for gRPC, and with it every Send and Recv in the handler.
	select {
	case err := <-done:
		// The end of the session refuses the next answer, which ends serve at the same moment.
		if err != nil && k.isEnded() {
			return endStatus(method, k.why)
		}
		// The authorization looks at the metadata more often than recheck. A caller who lost the user is
		// told that, and not that a right is missing.
		if why := k.lostUser(m.cfg.Policy()); err != nil && why != nil && k.known {
			return endStatus(method, why)
		}
		return err
	case <-k.ended:
		return endStatus(method, k.why)
	}
}

// isEnded reports whether the session of a call has ended.
func (k *call) isEnded() bool {
	select {
	case <-k.ended:
		return true
	default:
		return false
	}
}

// lostUser returns why the user of a call may not continue, or nil.
func (k *call) lostUser(p *access.Policy) error {
	if p == nil {
		return nil
	}
	k.conn.mu.Lock()
	defer k.conn.mu.Unlock()
	credentials := uint64(0)
	if s := k.conn.session; k.login && s != nil && s.user == k.who.Name {
		credentials = s.credentials
	}
	return checkUser(p, k.who.Name, credentials)
}

// endStatus returns the status of a stream that was ended in the middle.
func endStatus(method string, why error) error {
	// Requests on a KV stream may have been carried out. Clients take Unauthenticated for a promise that
	// they were not, so the stream breaks like a connection; the next one is rejected with the reason.
	if method == rhumbpb.KV_Stream_FullMethodName {
		return status.Error(codes.Unavailable, rhumb.Message(why))
	}
	return api.Status(why, api.Hint{})
}

// add registers a call, so that it ends with the session. It reports false if the session has ended already. Calls with a
// certificate are authorized after this, with the newest metadata.
func (c *connState) add(k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.login && (c.session == nil || c.session.user != k.who.Name) {
		return false
	}
	c.calls[k] = struct{}{}
	return true
}

func (c *connState) remove(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, k)
}

// serverStream is a stream of a user.
type serverStream struct {
	grpc.ServerStream
	ctx  context.Context
	call *call
}

// Context implements grpc.ServerStream.
func (s *serverStream) Context() context.Context { return s.ctx }

// SendMsg implements grpc.ServerStream. Nothing is sent after the session has ended.
func (s *serverStream) SendMsg(msg any) error {
	select {
	case <-s.call.ended:
		return api.Status(s.call.why, api.Hint{})
	default:
		return s.ServerStream.SendMsg(msg)
	}
}
