package peer

import (
	"context"
	"net"

	grpcpeer "google.golang.org/grpc/peer"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Close ends all links and waits until their messages are handled. Later ones are refused.
func (s *Service) Close() { s.links.Close() }

// Links returns the kind of link that other nodes open.
func (s *Service) Links() link.Kind {
	return link.Kind{Protocol: link.PeerProtocol, Magic: link.PeerMagic, Serve: func(a link.Accepted) {
		l := link.New(a.Conn, linkConfig)
		s.links.Serve(l, func() { s.serveLink(l, a) })
	}}
}

// serveLink receives the messages of a peer's replicas until the link ends.
func (s *Service) serveLink(l *link.Conn, a link.Accepted) {
	ctx := grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{Addr: l.RemoteAddr(), AuthInfo: a.Info})
	n, from, err := s.openLink(ctx, l, a.Raw)
	if err == nil {
		err = s.receiveMessages(l, n, from.Node)
	}
	kind := rhumb.KindOf(err)
	if n != nil && kind == rhumb.Corrupt {
		n.m.damaged.Inc()
		n.cfg.Logger.Warn("a frame of a peer was damaged on the way; its link is closed", "from", from.Node, "err", err)
	}
	if kind != rhumb.Other {
		l.WriteError(err) // the peer logs why it is refused
	}
}

// openLink exchanges hellos.
func (s *Service) openLink(ctx context.Context, l *link.Conn, raw net.Conn) (*Network, rhumb.NodeIdentity, error) {
	l.LimitOpening(link.OpenMax)
	n := s.network.Load()
	if n == nil {
		return nil, rhumb.NodeIdentity{}, rhumb.E("peer.Service", rhumb.Unavailable, "the node is not in its cluster yet; retry")
	}
	hello := new(rhumbpb.PeerHello)
	if err := l.ReadProto(link.KindHello, hello); err != nil {
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
	if err := l.WriteProto(link.KindHello, n.newHello()); err != nil {
		return nil, from, err
	}
	return n, from, l.Opened()
}

// receiveMessages passes the messages of a peer on until the link ends.
func (s *Service) receiveMessages(l *link.Conn, n *Network, from rhumb.NodeID) error {
	self := n.cfg.Self().Node
	unknown := func(m replica.Message, err error) {
		n.m.unknown.Inc()
		n.cfg.Logger.Debug("a message of a peer is of a later release", "from", from, "range", m.Range.String(), "err", err)
	}
	for {
		kind, content, err := l.ReadFrame(rhumb.MessageSizeMax + n.cfg.FrameBytesMax)
		if err != nil {
			return err
		}
		// Checked for each frame, not only at the beginning: a link may outlive the life it was
		// opened in.
		if s.network.Load() != n {
			return rhumb.E("peer.Service", rhumb.Unavailable, "the node has begun a new life; open another link")
		}
		switch kind {
		case link.KindPing:
			if err := l.AnswerPing(); err != nil {
				return err
			}
		case link.KindMessages:
			msgs, err := decodeMessages(content, from, self, unknown)
			if err != nil {
				return err
			}
			n.cfg.Handler.Replication(from, msgs)
		}
	}
}
