package node

import (
	"context"
	"errors"
	"time"

	grpcmetadata "google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

const opLink rhumb.Op = "node.Link"

// clientLinks serves the links of clients on the main port. A link replaces a call of KV.Stream, and is guarded like one before its first request: by the gate, the handshake, the session, the limits and the authorization.
type clientLinks struct {
	n *Node
	// tap identifies the caller and counts the link as a stream.
	tap  tap.ServerInHandle
	open link.Set
}

// kind returns the kind of link for the port.
func (c *clientLinks) kind() link.Kind {
	return link.Kind{Protocol: link.ClientProtocol, Magic: link.ClientMagic, Serve: func(a link.Accepted) {
		l := link.New(a.Conn, link.ClientConfig)
		c.open.Serve(l, func() { c.serve(l, a) })
	}}
}

// close ends the links once their requests had time to be answered, as the streams of gRPC have. A client learns
// the end of its link by the end of the connection, and sends the requests without an answer again.
func (c *clientLinks) close() {
	for end := time.Now().Add(stopTimeout); c.open.Len() > 0 && time.Now().Before(end); {
		time.Sleep(currentPoll)
	}
	c.open.Close()
}

// serve answers the requests of a link until it ends, and says why it ends it.
func (c *clientLinks) serve(l *link.Conn, a link.Accepted) {
	l.LimitOpening(link.OpenMax)
	// The end of the context returns the memory and the streams that the tap has counted.
	ctx, cancel := context.WithCancel(grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{Addr: a.Raw.RemoteAddr(), LocalAddr: a.Raw.LocalAddr(), AuthInfo: a.Info}))
	defer cancel()
	if err := refusalOf(c.serveCaller(ctx, l)); err != nil {
		l.WriteError(err)
	}
}

// refusalOf returns the error for a client whose link ends, or nil if the connection broke, so that nobody is left to read one.
func refusalOf(err error) error {
	if e, ok := errors.AsType[*rhumb.Error](err); ok {
		return e
	}
	if e, _, remote := api.FromStatus(opLink, err); remote {
		return e
	}
	// The session ended in the middle. Clients take a kind of their own for a promise that nothing was carried out.
	if s, ok := grpcstatus.FromError(err); ok && err != nil {
		return rhumb.E(opLink, rhumb.Unavailable, s.Message())
	}
	return nil
}

// serveCaller logs the caller in, checks its rights, and answers its requests.
func (c *clientLinks) serveCaller(ctx context.Context, l *link.Conn) error {
	h, err := c.receiveHello(ctx, l)
	if err != nil {
		// A login returns a status of gRPC.
		if refusal := refusalOf(err); rhumb.KindOf(refusal) == rhumb.Corrupt {
			c.n.kv.CountDamage(l.RemoteAddr(), refusal)
		}
		return err
	}
	method := rhumbpb.KV_Stream_FullMethodName
	// The tap and the authorization know calls of gRPC only. To them, a link is a call of this method.
	info := &tap.Info{FullMethodName: method}
	if h.Token != "" {
		info.Header = grpcmetadata.Pairs("authorization", "Bearer "+h.Token)
	}
	if ctx, err = c.tap(ctx, info); err != nil {
		return err
	}
	if err := c.n.authorizer.Authorize(ctx, method, nil); err != nil {
		return err
	}
	serve, err := c.n.kv.Greet(h.Hello)
	if err != nil {
		return err
	}
	return c.n.guard.sessions.Serve(ctx, method, func(ctx context.Context) error { return serve(ctx, l) })
}

// receiveHello returns the hello of a caller, who may log in before it. Only one login is accepted: a caller that tries passwords has to connect
// for each of them, and is delayed like one that uses gRPC.
func (c *clientLinks) receiveHello(ctx context.Context, l *link.Conn) (*rhumbpb.LinkHello, error) {
	kind, content, err := l.ReadFrame(link.HelloBytesMax)
	if err != nil {
		return nil, err
	}
	// The caller is nobody until the login succeeds, and the gate bounds the time and the bytes of its connection, as for a login by gRPC.
	if kind == link.KindLogin {
		known, err := c.tap(ctx, &tap.Info{FullMethodName: rhumbpb.Session_Authenticate_FullMethodName})
		if err == nil {
			err = c.n.guard.sessions.LogInOnLink(known, l, content)
		}
		if err == nil {
			kind, content, err = l.ReadFrame(link.HelloBytesMax)
		}
		if err != nil {
			return nil, err
		}
	}
	if kind != link.KindHello {
		return nil, rhumb.Ef(opLink, rhumb.InvalidArgument, "a link begins with a frame of kind %d where a hello is expected", kind)
	}
	h := new(rhumbpb.LinkHello)
	return h, rhumb.WrapKind(opLink, rhumb.InvalidArgument, proto.Unmarshal(content, h))
}
