package server

import (
	"context"
	"log/slog"
	"net"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// linkStream carries the frames of a client on a link. The code that serves streams of gRPC serves it too: bounds of unanswered requests
// and of answers that the client has not accepted, budgets, deadlines, and the end of a client that accepts nothing are the same for
// both.
type linkStream struct {
	ctx context.Context
	l   *link.Conn
}

// Context implements frameStream.
func (s *linkStream) Context() context.Context { return s.ctx }

// Recv implements frameStream. It answers pings: they ask whether the goroutine that serves the link works, as requests do.
func (s *linkStream) Recv() (*rhumbpb.ClientFrame, error) {
	for {
		kind, content, err := s.l.NextFrame(link.RequestBytesMax)
		switch {
		case err != nil:
			return nil, err
		// An invalid request ends the link, because nobody knows where the next one begins, or for which ID to answer.
		case kind == link.KindMessages:
			requests, err := link.DecodeRequests(content)
			return &rhumbpb.ClientFrame{Requests: requests}, err
		case kind == link.KindPing:
			if err := s.l.AnswerPing(); err != nil {
				return nil, err
			}
		}
		// Other kinds are of later releases, which send nothing that a node must not ignore.
	}
}

// Send implements frameStream.
func (s *linkStream) Send(f *rhumbpb.ServerFrame) error {
	return s.l.WriteFrame(link.KindMessages, func(b []byte) []byte { return link.AppendResponses(b, f.Responses) })
}

// Greet checks the hello of a client and returns what serves its link: serve answers the requests until the link ends. Both return the
// errors of Stream, with which the caller ends the link.
func (s *Service) Greet(h *rhumbpb.Hello) (serve func(context.Context, *link.Conn) error, err error) {
	k, err := s.currentKV()
	if err != nil {
		return nil, err
	}
	if err := k.checkHello(h); err != nil {
		return nil, err
	}
	return func(ctx context.Context, l *link.Conn) error {
		// The node is ready for requests once it has answered the hello. Until then the client sends by gRPC, so a node that is slow to
		// answer delays nothing.
		k.metrics.links.Inc()
		defer k.metrics.links.Dec()
		if err := l.WriteProto(link.KindHello, &rhumbpb.LinkHello{Hello: &rhumbpb.Hello{Protocol: api.Protocol, Cluster: k.cfg.Cluster[:]}}); err != nil {
			return err
		}
		if err := l.Opened(); err != nil {
			return err
		}
		err := k.serveFrames(&linkStream{ctx, l}, true)
		// The checksum of TCP misses some damage, and memory may be faulty at either side. An operator has to learn of it: the link hides it
		// otherwise, because the client repeats its requests.
		if rhumb.KindOf(err) == rhumb.Corrupt {
			k.countDamage(slog.LevelWarn, l.RemoteAddr(), err)
		}
		return err
	}, nil
}

// CountDamage counts a damaged frame from before the hello of a client, with which its link ends. A node that does not serve has no metrics of clients
// to count it in.
func (s *Service) CountDamage(from net.Addr, err error) {
	if k := s.kv.Load(); k != nil {
		// Anybody can send such frames, and must not fill the log of the node.
		k.countDamage(slog.LevelDebug, from, err)
	}
}

// countDamage counts and logs a damaged frame.
func (k *KV) countDamage(level slog.Level, from net.Addr, err error) {
	k.metrics.damaged.Inc()
	k.cfg.Logger.Log(context.Background(), level, "a frame of a client was damaged on the way; its link is closed", "from", from.String(), "err", err)
}
