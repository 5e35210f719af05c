package session

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// linkLogin is one login on a link. It is a stream of the service Session for the code that decides.
type linkLogin struct {
	grpc.ServerStream // nil: a login uses nothing else of it
	ctx               context.Context
	l                 *link.Conn
	first             []byte // the first message of the client, until it is received
}

// LogInOnLink performs one login on a link, whose first frame has been read: first is its content. ctx is that of the tap.
func (m *Manager) LogInOnLink(ctx context.Context, l *link.Conn, first []byte) error {
	return (&Service{m: m}).Authenticate(&linkLogin{ctx: ctx, l: l, first: first})
}

// Context implements grpc.ServerStream.
func (s *linkLogin) Context() context.Context { return s.ctx }

// Recv implements grpc.BidiStreamingServer.
func (s *linkLogin) Recv() (*rhumbpb.AuthenticateRequest, error) {
	q := new(rhumbpb.AuthenticateRequest)
	if s.first == nil {
		return q, s.l.ReadProto(link.KindLogin, q)
	}
	// The node had to read it to learn that the caller logs in.
	first := s.first
	s.first = nil
	return q, rhumb.WrapKind("session.login", rhumb.InvalidArgument, proto.Unmarshal(first, q))
}

// Send implements grpc.BidiStreamingServer.
func (s *linkLogin) Send(r *rhumbpb.AuthenticateResponse) error {
	return s.l.WriteProto(link.KindLogin, r)
}
