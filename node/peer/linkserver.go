package peer

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/replica"
)

// links are the links that other nodes have opened.
type links struct {
	mu     sync.Mutex // guards open and closed
	open   map[*link]struct{}
	closed bool
	work   sync.WaitGroup
}

// serve runs serve in a goroutine with a link that Close ends.
func (s *links) serve(l *link, serve func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		l.close()
		return
	}
	if s.open == nil {
		s.open = map[*link]struct{}{}
	}
	s.open[l] = struct{}{}
	s.work.Go(func() {
		defer func() {
			l.close()
			s.mu.Lock()
			delete(s.open, l)
			s.mu.Unlock()
		}()
		serve()
	})
}

// Close ends all links and waits until their messages are handled. Later ones are refused.
func (s *Service) Close() {
	s.links.mu.Lock()
	s.links.closed = true
	for l := range s.links.open {
		l.close()
	}
	s.links.mu.Unlock()
	s.links.work.Wait()
}

// door are the credentials of a gRPC server on whose port other nodes open links too.
type door struct {
	credentials.TransportCredentials
	s *Service
}

// Admit returns the credentials of a gRPC server that serves links on the same port.
// creds accept LinkProtocol beside the protocol of gRPC, or are without TLS.
func (s *Service) Admit(creds api.Credentials) api.Credentials { return door{creds, s} }

// Clone implements credentials.TransportCredentials.
func (d door) Clone() credentials.TransportCredentials {
	return door{d.TransportCredentials.Clone(), d.s}
}

// ServerHandshake implements credentials.TransportCredentials. gRPC calls it in a
// goroutine of the connection, with a deadline for reads.
func (d door) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := d.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	a, secure := info.(identity.AuthInfo)
	if secure && a.State.NegotiatedProtocol != LinkProtocol {
		return conn, info, nil
	}
	// The preface of HTTP/2 is longer, and its client sends it at once.
	begin := make([]byte, len(linkMagic))
	if _, err := io.ReadFull(conn, begin); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	if string(begin) != linkMagic {
		// Negotiated as a link, so it cannot be HTTP/2.
		if secure {
			_ = conn.Close()
			return nil, nil, rhumb.Ef("peer.ServerHandshake", rhumb.InvalidArgument, "a link from %s does not begin with its magic", raw.RemoteAddr())
		}
		return &begunConn{Conn: conn, begin: begin}, info, nil
	}
	l := newLink(conn)
	d.s.links.serve(l, func() { d.s.serveLink(l, raw, info) })
	return nil, nil, credentials.ErrConnDispatched
}

// begunConn is a connection whose first bytes were read.
type begunConn struct {
	net.Conn
	begin []byte
}

// Read implements net.Conn.
func (c *begunConn) Read(b []byte) (int, error) {
	if len(c.begin) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.begin)
	c.begin = c.begin[n:]
	return n, nil
}

// serveLink receives the messages of a peer's replicas until the link ends. raw is the
// connection below TLS.
func (s *Service) serveLink(l *link, raw net.Conn, info credentials.AuthInfo) {
	ctx := grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{Addr: l.conn.RemoteAddr(), AuthInfo: info})
	n, from, err := s.openLink(ctx, l, raw)
	if err == nil {
		err = s.receiveMessages(l, n, from.Node)
	}
	if kind := rhumb.KindOf(err); kind != rhumb.Other {
		// The peer logs why it is refused. It may not read, and this goroutine must end.
		_ = l.conn.SetWriteDeadline(time.Now().Add(linkOpenMax))
		_ = l.writeProto(frameError, api.EncodeError(err, api.Hint{}))
	}
}

// openLink exchanges hellos.
func (s *Service) openLink(ctx context.Context, l *link, raw net.Conn) (*Network, rhumb.NodeIdentity, error) {
	_ = l.conn.SetDeadline(time.Now().Add(linkOpenMax))
	n := s.network.Load()
	if n == nil {
		return nil, rhumb.NodeIdentity{}, rhumb.E("peer.Service", rhumb.Unavailable, "the node is not in its cluster yet; retry")
	}
	hello := new(rhumbpb.PeerHello)
	if err := l.readProto(frameHello, hello); err != nil {
		return nil, rhumb.NodeIdentity{}, err
	}
	// The peer waits for the answering hello before it sends anything, so nothing of an
	// unverified peer is ever processed.
	from, err := n.verifyPeer(ctx, hello)
	if err != nil {
		return nil, from, err
	}
	// Without TLS the gate does not know the caller before.
	if g, ok := raw.(interface{ Authenticated() bool }); ok && !g.Authenticated() {
		return nil, from, rhumb.E("peer.Service", rhumb.Overloaded, "the node has too many connections")
	}
	if err := l.writeProto(frameHello, n.newHello()); err != nil {
		return nil, from, err
	}
	l.watched = true
	return n, from, l.conn.SetDeadline(time.Time{})
}

// receiveMessages passes the messages of a peer on until the link ends.
func (s *Service) receiveMessages(l *link, n *Network, from rhumb.NodeID) error {
	self := n.cfg.Self().Node
	unknown := func(m replica.Message, err error) {
		n.m.unknown.Inc()
		n.cfg.Logger.Debug("a message of a peer is of a later release", "from", from, "range", m.Range.String(), "err", err)
	}
	for {
		kind, content, err := l.readFrame(rhumb.MessageSizeMax + n.cfg.FrameBytesMax)
		if err != nil {
			return err
		}
		// Checked for each frame, not only at the beginning: a link may outlive the life it was
		// opened in.
		if s.network.Load() != n {
			return rhumb.E("peer.Service", rhumb.Unavailable, "the node has begun a new life; open another link")
		}
		switch kind {
		case framePing:
			_ = l.conn.SetWriteDeadline(time.Now().Add(linkSilentMax))
			if err := l.writeFrame(framePing, nil); err != nil {
				return err
			}
		case frameMessages:
			msgs, err := decodeMessages(content, from, self, unknown)
			if err != nil {
				n.cfg.Logger.Warn("cannot decode a message of a peer; closing its link", "from", from, "err", err)
				return err
			}
			n.cfg.Handler.Replication(from, msgs)
		}
	}
}
