package peer

import (
	"context"
	"log/slog"
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
	n, from, frames, err := s.openLink(ctx, l, a.Raw)
	if err == nil {
		err = s.receiveMessages(l, n, from.Node, frames)
		n.forgetTaken(from.Node, frames)
	}
	kind := rhumb.KindOf(err)
	if n != nil && kind == rhumb.Corrupt {
		n.m.damaged.Inc()
		// Anybody can send a frame in the place of a hello, and must not fill the log of the node.
		level := slog.LevelWarn
		if from.Node == rhumb.NoNode {
			level = slog.LevelDebug
		}
		n.cfg.Logger.Log(ctx, level, "a frame of a peer was damaged on the way; its link is closed", "from", from.Node, "addr", l.RemoteAddr().String(), "err", err)
	}
	if kind != rhumb.Other {
		l.WriteError(err) // the peer logs why it is refused
	}
}

// openLink exchanges hellos. It returns the list of the frames of the link, for tallies, or nil if the peer takes none. The network is not nil, also with an
// error, if the hello could not be read: the metrics of the network count damaged ones.
func (s *Service) openLink(ctx context.Context, l *link.Conn, raw net.Conn) (*Network, rhumb.NodeIdentity, *takenFrames, error) {
	l.LimitOpening(link.OpenMax)
	n := s.network.Load()
	if n == nil {
		return nil, rhumb.NodeIdentity{}, nil, rhumb.E("peer.Service", rhumb.Unavailable, "the node is not in its cluster yet; retry")
	}
	hello := new(rhumbpb.PeerHello)
	if err := l.ReadProto(link.KindHello, hello); err != nil {
		return n, rhumb.NodeIdentity{}, nil, err
	}
	// The peer waits for the answering hello before it sends anything, so nothing of an
	// unverified peer is ever processed.
	from, err := n.verifyPeer(ctx, hello)
	if err != nil {
		return nil, from, nil, err
	}
	// Without TLS the gate does not know the caller before.
	if g, ok := raw.(interface{ Authenticated() bool }); ok && !g.Authenticated() {
		return nil, from, nil, rhumb.E("peer.Service", rhumb.Overloaded, "the node has too many connections")
	}
	answer := n.newHello()
	frames := newTakenFrames(n.cfg.Self(), from, hello.Stream)
	answer.Tallies = frames != nil
	if err := l.WriteProto(link.KindHello, answer); err != nil {
		return nil, from, nil, err
	}
	return n, from, frames, l.Opened()
}

// receiveMessages passes the messages of a peer on until the link ends.
func (s *Service) receiveMessages(l *link.Conn, n *Network, from rhumb.NodeID, frames *takenFrames) error {
	self := n.cfg.Self().Node
	whole := true // whether everything in the present frame was understood
	unknown := func(m replica.Message, err error) {
		whole = false
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
			whole = true
			msgs, tallies, err := decodeMessages(content, from, self, unknown)
			if err != nil {
				return err
			}
			// Before the replicas take the Appends, which they may acknowledge at once.
			n.noteTaken(from, frames, msgs, whole)
			n.cfg.Handler.Replication(from, n.expandTallies(from, msgs, tallies))
		}
	}
}
