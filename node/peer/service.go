package peer

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Service implements the service that peers call. It is registered on the main server and on the
// heartbeat server before the node belongs to a cluster, and rejects all calls until Open.
type Service struct {
	rhumbpb.UnimplementedPeerServer
	network atomic.Pointer[Network]
	links   link.Set
}

// Register registers the service on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { rhumbpb.RegisterPeerServer(r, s) }

// Open makes the service answer on behalf of n. With nil, the service rejects all calls again.
func (s *Service) Open(n *Network) { s.network.Store(n) }

// requireNetwork returns the open network, or an error.
func (s *Service) requireNetwork() (*Network, error) {
	if n := s.network.Load(); n != nil {
		return n, nil
	}
	return nil, api.Status(rhumb.E("peer.Service", rhumb.Unavailable, "the node is not in its cluster yet; retry"), api.Hint{})
}

// checkOpen returns an error if the network of a stream has been closed or replaced, because the
// node began a new life while the stream was open. The peer then opens another stream and learns
// the new life from its hello; messages for the old life must not reach replicas of the new one.
func (s *Service) checkOpen(n *Network) error {
	if s.network.Load() == n {
		return nil
	}
	return api.Status(rhumb.E("peer.Service", rhumb.Unavailable, "the node has begun a new life; open another stream"), api.Hint{})
}

// verifyPeer checks the hello of a peer, including its registration and its certificate.
func (n *Network) verifyPeer(ctx context.Context, h *rhumbpb.PeerHello) (rhumb.NodeIdentity, error) {
	id, err := n.sameCluster(h)
	if err == nil {
		err = n.cfg.Handler.Verify(id)
	}
	if err == nil {
		err = n.checkBearer(ctx, id.Node, false)
	}
	return id, err
}

// sameCluster checks a hello without the registration. Messages of the metadata group need only
// this check, because they must get through before the catalog here shows the sender.
func (n *Network) sameCluster(h *rhumbpb.PeerHello) (rhumb.NodeIdentity, error) {
	const op rhumb.Op = "peer.meet"
	switch {
	case h == nil:
		return rhumb.NodeIdentity{}, rhumb.E(op, rhumb.InvalidArgument, "the first frame has no hello")
	case string(h.Cluster) != string(n.cfg.Cluster[:]):
		return rhumb.NodeIdentity{}, rhumb.Ef(op, rhumb.WrongCluster, "the peer belongs to cluster %x, this node to %s", h.Cluster, n.cfg.Cluster)
	}
	if err := api.CheckProtocol(h.Protocol); err != nil {
		return rhumb.NodeIdentity{}, err
	}
	return api.DecodeIdentity(h.Identity)
}

// openStream exchanges hellos: the first frame in each direction carries one. from is the verified
// identity of the peer.
func openStream[F any, P interface {
	*F
	GetHello() *rhumbpb.PeerHello
}](s *Service, stream grpc.BidiStreamingServer[F, F], frame func(*rhumbpb.PeerHello) P) (n *Network, from rhumb.NodeIdentity, err error) {
	if n, err = s.requireNetwork(); err != nil {
		return nil, from, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, from, err
	}
	// The peer waits for the answering hello before it sends anything, so nothing of an unverified
	// peer is ever processed.
	if from, err = n.verifyPeer(stream.Context(), P(first).GetHello()); err != nil {
		return nil, from, api.Status(err, api.Hint{})
	}
	return n, from, stream.Send(frame(n.newHello()))
}

// Replicate receives the messages of a peer's replicas.
func (s *Service) Replicate(stream grpc.BidiStreamingServer[rhumbpb.ReplicaFrame, rhumbpb.ReplicaFrame]) error {
	n, from, err := openStream(s, stream, func(h *rhumbpb.PeerHello) *rhumbpb.ReplicaFrame { return &rhumbpb.ReplicaFrame{Hello: h} })
	if err != nil {
		return err
	}
	self := n.cfg.Self().Node
	for {
		f, err := stream.Recv()
		if err == nil {
			err = s.checkOpen(n)
		}
		// Checked for each frame, not only at the beginning: a stream may outlive the life it was
		// opened in.
		if err != nil {
			return err
		}
		msgs := make([]replica.Message, 0, len(f.Messages))
		for _, p := range f.Messages {
			m, err := messageFromPB(p, from.Node, self)
			if m.Unknown || rhumb.KindOf(err) == rhumb.Incompatible {
				n.m.unknown.Inc()
			}
			// Such a message is lost, like one on a bad link. The stream carries all ranges of both nodes, and only the range of
			// this message has to wait.
			if rhumb.KindOf(err) == rhumb.Incompatible {
				n.cfg.Logger.Debug("a message of a peer has an entry of a later release", "from", from.Node, "range", m.Range.String(), "err", err)
				continue
			}
			if err != nil {
				n.cfg.Logger.Warn("cannot decode a message of a peer; closing its stream", "from", from.Node, "err", err)
				return api.Status(err, api.Hint{})
			}
			msgs = append(msgs, m)
		}
		n.cfg.Handler.Replication(from.Node, msgs)
	}
}

// Heartbeat receives the lease frames of a peer.
func (s *Service) Heartbeat(stream grpc.BidiStreamingServer[rhumbpb.HeartbeatFrame, rhumbpb.HeartbeatFrame]) error {
	n, from, err := openStream(s, stream, func(h *rhumbpb.PeerHello) *rhumbpb.HeartbeatFrame { return &rhumbpb.HeartbeatFrame{Hello: h} })
	if err != nil {
		return err
	}
	var last time.Time // of a heartbeat on this stream
	for {
		p, err := stream.Recv()
		if err == nil {
			err = s.checkOpen(n)
		}
		if err != nil {
			return err
		}
		// Replies come when this node asks, so their gaps say nothing about the peer.
		if now := time.Now(); !p.Reply {
			if !last.IsZero() {
				n.m.gaps.Observe(now.Sub(last).Seconds())
			}
			last = now
		}
		// The frame is passed on at once. Its arrival starts the time that this node owes for a
		// grant (rule L).
		n.cfg.Handler.Heartbeat(from, frameFromPB(p))
		if p.Load != nil {
			n.cfg.Handler.Load(from.Node, loadFromPB(p.Load))
		}
	}
}

// Raft receives messages of the metadata group. Unlike Replicate, it passes each frame to the
// network that is open at that moment: the metadata copy of a new life needs these messages before
// it can be registered, and only then do peers learn of the life and open new streams.
func (s *Service) Raft(stream grpc.ClientStreamingServer[rhumbpb.RaftFrame, rhumbpb.RaftSummary]) error {
	n, err := s.requireNetwork()
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	// Not verifyPeer: a node that registers its first life is not in any catalog, but its copy of
	// the metadata already takes part.
	from, err := n.sameCluster(first.Hello)
	if err != nil {
		return api.Status(err, api.Hint{})
	}
	for {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		if n, err = s.requireNetwork(); err != nil {
			return err
		}
		// Checked for each frame: a node that was unknown when the stream began may be registered since,
		// with the certificate of somebody else.
		if err := n.checkBearer(stream.Context(), from.Node, true); err != nil {
			return api.Status(err, api.Hint{})
		}
		n.takeRaft(from.Node, f)
	}
}

// Metadata answers a request for the metadata group, or relays it.
func (s *Service) Metadata(ctx context.Context, q *rhumbpb.MetadataRequest) (*rhumbpb.MetadataResponse, error) {
	n, err := s.requireNetwork()
	if err != nil {
		return nil, err
	}
	from, err := n.sameCluster(q.Hello)
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	relayed := q.Proof != nil && rhumb.NodeID(q.To) == rhumb.NoNode
	if relayed {
		// The certificate is that of the relay.
		if err = n.checkMember(ctx); err == nil {
			err = n.checkProof(proofRequest, q.Proof, from.Node, q.Group, q.Request)
		}
	} else {
		err = n.checkBearer(ctx, from.Node, true)
	}
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	// A relayed request has no further To, so it is answered or rejected by its receiver.
	if to := rhumb.NodeID(q.To); to != rhumb.NoNode && to != n.cfg.Self().Node {
		resp, err := n.relayRequest(ctx, q)
		if err != nil {
			return nil, api.Status(err, api.Hint{})
		}
		return resp, nil
	}
	response, err := n.cfg.Handler.Metadata(ctx, from.Node, q.Group, q.Request)
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	resp := &rhumbpb.MetadataResponse{Response: response}
	if relayed {
		if resp.Proof, err = n.signProof(proofResponse, from.Node, q.Group, q.Proof.Signature, response); err != nil {
			return nil, api.Status(err, api.Hint{})
		}
	}
	return resp, nil
}

// Forward answers a request of a client that another node forwarded.
func (s *Service) Forward(ctx context.Context, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	n, err := s.requireMember(ctx)
	if err != nil {
		return nil, err
	}
	// The error of a request is part of its response. An error of this call would mean that the
	// request was not handled.
	return n.cfg.Handler.Forward(ctx, q), nil
}

// DescribeReplica describes this node's replica of a range.
func (s *Service) DescribeReplica(ctx context.Context, q *rhumbpb.DescribeReplicaRequest) (*rhumbpb.DescribeReplicaResponse, error) {
	n, err := s.requireMember(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := n.cfg.Handler.DescribeReplica(ctx, api.DecodeRangeID(q.Range))
	return resp, api.Status(err, api.Hint{})
}

// DiscardReplica discards this node's damaged copy of a range.
func (s *Service) DiscardReplica(ctx context.Context, q *rhumbpb.DiscardReplicaRequest) (*rhumbpb.DiscardReplicaResponse, error) {
	n, err := s.requireMember(ctx)
	if err != nil {
		return nil, err
	}
	if err := n.cfg.Handler.DiscardReplica(ctx, api.DecodeRangeID(q.Range), q.AcceptLoss); err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	return &rhumbpb.DiscardReplicaResponse{}, nil
}
