package login

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/xdg-go/scram"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
)

const (
	// loginTimeout bounds one login. Nodes close connections on which a login takes longer. It is
	// shorter than the time for which nodes tolerate an unauthenticated connection, so that the
	// error is that of the login and not that of a closed connection.
	loginTimeout = 8 * time.Second
	// opensMax is how often a stream is opened again because the connection was replaced after the
	// login. A connection that is replaced more often is broken, and the error of the last attempt
	// is the best description of it.
	opensMax = 3
)

const op rhumb.Op = "login.Conn"

// bearer is what precedes the token in the metadata of calls.
const bearer = "Bearer "

// Options returns the options of one gRPC connection of the account. Each connection needs options of
// its own.
func (a *Account) Options() []grpc.DialOption {
	c := &conn{account: a}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
}

// session is a login on one connection.
//
// The token is worth nothing elsewhere: a node accepts it on this connection only. So it is kept in
// memory without further protection, and closing the connection is the only log-out.
type session struct {
	token string
	// over identifies the TLS connection: gRPC replaces a broken connection on its own.
	over         *identity.Conn
	renew, until time.Time
}

// conn logs one gRPC connection in.
//
// Interceptors do the work and not credentials of gRPC (PerRPCCredentials): a login is a call
// itself, and credentials are asked for a token while a call is being sent.
type conn struct {
	account *Account

	mu      sync.Mutex // guards the fields below
	current *session   // nil before the first login and after it was rejected
	flight  *flight    // the login in progress, nil if there is none
}

// flight is a login that several calls wait for.
//
// The fields are written before done is closed and only read afterwards, so they need no lock.
type flight struct {
	done    chan struct{}
	session *session
	err     error
}

// ready returns a session for a call, and logs in if there is none.
func (c *conn) ready(ctx context.Context, cc *grpc.ClientConn) (*session, error) {
	c.mu.Lock()
	now := time.Now()
	s, f := c.current, c.flight
	if s != nil && now.After(s.until) {
		s, c.current = nil, nil
	}
	// One login at a time, for the first call as for a renewal: a thousand callers that wake up together cause
	// one exchange.
	if f == nil && (s == nil || now.After(s.renew)) {
		f = &flight{done: make(chan struct{})}
		c.flight = f
		// Not under ctx: other calls wait for the same login.
		go c.run(cc, f)
	}
	c.mu.Unlock()
	// While a session is renewed, it remains valid.
	if s != nil {
		return s, nil
	}
	select {
	case <-f.done:
		return f.session, f.err
	case <-ctx.Done():
		return nil, rhumb.WrapKind(op, rhumb.DeadlineExceeded, ctx.Err())
	}
}

// run performs a login and publishes its result.
func (c *conn) run(cc *grpc.ClientConn, f *flight) {
	ctx, cancel := context.WithTimeout(context.Background(), loginTimeout)
	defer cancel()
	f.session, f.err = c.login(ctx, cc)
	c.mu.Lock()
	c.flight = nil
	switch {
	case f.err == nil:
		c.current = f.session
	// The user was disabled or has another password. The node ends the session too, but calls need not wait
	// for that.
	case rhumb.KindOf(f.err) == rhumb.Unauthenticated:
		c.current = nil
	case c.current != nil:
		// The renewal failed for a reason that may pass. Not at every call, though.
		c.current.renew = time.Now().Add(time.Until(c.current.until) / 4)
	}
	c.mu.Unlock()
	close(f.done)
}

// drop forgets a session that the node rejected.
func (c *conn) drop(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Another call may have logged in again meanwhile.
	if c.current == s {
		c.current = nil
	}
}

// login performs one exchange.
func (c *conn) login(ctx context.Context, cc *grpc.ClientConn) (*session, error) {
	client, err := c.account.scram(time.Now())
	if err != nil {
		return nil, err
	}
	s, err := exchange(ctx, cc, client)
	return s, c.account.judge(client, err)
}

// judge records the result of a login, and returns its error as callers get it.
func (a *Account) judge(client *scram.Client, err error) error {
	if err != nil {
		// The origin of the error decides. A local error of the kind Unauthenticated, such as a
		// rejected certificate of the node, must not mark the password as wrong.
		e, _, remote := api.FromStatus(op, err)
		// A node that cannot be reached is reported like that by any other call: the caller knows the
		// address, and looks at the status.
		if remote || status.Code(err) != codes.Unavailable {
			err = e
		}
		// Only the word of a node counts. A connection that broke says nothing about the password.
		if remote && e.Kind == rhumb.Unauthenticated {
			a.ended(client, err, time.Now())
		}
		return err
	}
	a.ended(client, nil, time.Now())
	return nil
}

// exchange performs one exchange of SCRAM. Its error is a status or an *rhumb.Error.
func exchange(ctx context.Context, cc *grpc.ClientConn, client *scram.Client) (*session, error) {
	// The stream ends with this function.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Opened before the conversation, because the channel binding needs the connection that gRPC
	// chooses for the stream.
	stream, err := rhumbpb.NewSessionClient(cc).Authenticate(ctx)
	if err != nil {
		return nil, err
	}
	p, _ := peer.FromContext(stream.Context())
	if p == nil {
		p = &peer.Peer{}
	}
	return exchangeOn(stream, p.AuthInfo, client)
}

// messages are the messages of one exchange.
type messages interface {
	Send(*rhumbpb.AuthenticateRequest) error
	Recv() (*rhumbpb.AuthenticateResponse, error)
}

// exchangeOn performs one exchange on a connection that info identifies.
func exchangeOn(stream messages, info credentials.AuthInfo, client *scram.Client) (*session, error) {
	conv, over, err := converse(info, client)
	if err != nil {
		return nil, err
	}
	s := &session{over: over}
	for challenge := ""; ; {
		text, err := conv.Step(challenge)
		if err != nil {
			// The node proves that it knows the verifier. TLS has identified it already.
			return nil, rhumb.Ef(op, rhumb.Unauthenticated, "the node did not complete the login: %v", err)
		}
		if conv.Done() {
			return s, nil
		}
		// After an error of Send, Recv returns the reason.
		if err := stream.Send(&rhumbpb.AuthenticateRequest{Message: []byte(text)}); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		m, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		challenge = string(m.Message)
		// The message with the token is the last one of the node; the loop then verifies its
		// signature before the session counts.
		if m.Token == "" {
			if err := checkChallenge(challenge); err != nil {
				return nil, err
			}
			continue
		}
		// Renewed at two thirds of its life, as certificates are, which leaves room for a few
		// failed attempts.
		now, life := time.Now(), time.Duration(m.LifetimeSeconds)*time.Second
		s.token, s.renew, s.until = bearer+m.Token, now.Add(life*2/3), now.Add(life)
	}
}

// converse begins the conversation for a connection.
func converse(auth credentials.AuthInfo, client *scram.Client) (*scram.ClientConversation, *identity.Conn, error) {
	info, secure := auth.(identity.AuthInfo)
	// A token must not travel in plain text.
	if !secure {
		return nil, nil, rhumb.E(op, rhumb.InvalidArgument, "a login needs TLS; connect with --ca, or without --user")
	}
	// Bound to this connection: whoever relays the messages to another node logs in nobody.
	binding, err := scram.NewTLSExporterBinding(&info.State)
	if err != nil {
		return nil, nil, rhumb.WrapKind(op, rhumb.Internal, err)
	}
	return client.NewConversationWithChannelBinding(binding), info.Conn, nil
}

// isLogin reports whether a call needs no session.
func isLogin(method string) bool { return method == rhumbpb.Session_Authenticate_FullMethodName }

// isUnauthenticated reports whether a node refused a call because it does not know the caller, so that it did
// not carry it out.
func isUnauthenticated(err error) bool { return status.Code(err) == codes.Unauthenticated }

// withToken returns the context of a call with a session.
func (s *session) withToken(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", s.token)
}

// unary sends a call with a session. A call that the node refused because the session ended is sent
// once more with another session.
func (c *conn) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for try := 1; ; try++ {
		s, err := c.ready(ctx, cc)
		if err != nil {
			return err
		}
		err = invoke(s.withToken(ctx), method, req, reply, cc, opts...)
		// The node rejects such a call before it reads the request, so sending it again is safe even for requests
		// without an ID.
		if !isUnauthenticated(err) {
			return err
		}
		c.drop(s)
		if try > 1 {
			return err
		}
	}
}

// stream opens a stream with a session of the connection that the stream is on.
//
// A stream is not sent again after messages were exchanged, unlike a unary call: only the layer
// above knows which requests were answered.
func (c *conn) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if isLogin(method) {
		return open(ctx, desc, cc, method, opts...)
	}
	for try := 1; ; try++ {
		s, err := c.ready(ctx, cc)
		if err != nil {
			return nil, err
		}
		// A context of its own for each attempt, so that an abandoned stream is released at once
		// and not with the caller's context.
		inner, cancel := context.WithCancel(s.withToken(ctx))
		cs, err := open(inner, desc, cc, method, opts...)
		if err != nil {
			cancel()
			return nil, err
		}
		// The node rejects the token if gRPC has connected again since the login. That must not fail
		// the requests of the stream.
		if p, ok := peer.FromContext(cs.Context()); ok {
			if info, ok := p.AuthInfo.(identity.AuthInfo); ok && info.Conn != s.over && try < opensMax {
				cancel()
				c.drop(s)
				continue
			}
		}
		return &clientStream{ClientStream: cs, conn: c, session: s, cancel: cancel}, nil
	}
}

// clientStream notices that the node rejects the session of a stream.
type clientStream struct {
	grpc.ClientStream
	conn    *conn
	session *session
	cancel  context.CancelFunc
}

// RecvMsg implements grpc.ClientStream.
func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.cancel() // the stream has ended
		if isUnauthenticated(err) {
			s.conn.drop(s.session)
		}
	}
	return err
}
