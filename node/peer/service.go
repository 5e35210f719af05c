package peer

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Service answers what other nodes ask. It is registered on the main server and on the heartbeat server before the node
// belongs to a cluster, and refuses everything until Open.
type Service struct {
	rhumbpb.UnimplementedPeerServer
	network atomic.Pointer[Network]
}

// Register offers the service on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { rhumbpb.RegisterPeerServer(r, s) }

// Open begins to answer, on behalf of n; nil refuses again.
func (s *Service) Open(n *Network) { s.network.Store(n) }

// open gives the network, or refuses.
func (s *Service) open() (*Network, error) {
	if n := s.network.Load(); n != nil {
		return n, nil
	}
	return nil, api.Status(rhumb.E("peer.Service", rhumb.Unavailable, "the node is not in its cluster yet; retry"), api.Hint{})
}

// over returns an error once a stream's network is no longer the open one: the node began a new life while the stream stood. The
// other side opens another stream then.
func (s *Service) over(n *Network) error {
	if s.network.Load() == n {
		return nil
	}
	return api.Status(rhumb.E("peer.Service", rhumb.Unavailable, "the node has begun a new life; open another stream"), api.Hint{})
}

// meet checks who opens a stream.
func (n *Network) meet(h *rhumbpb.PeerHello) (rhumb.NodeIdentity, error) {
	id, err := n.sameCluster(h)
	if err == nil {
		err = n.cfg.Handler.Verify(id)
	}
	return id, err
}

// sameCluster checks all but the registration, for what must work before a node knows the catalog.
func (n *Network) sameCluster(h *rhumbpb.PeerHello) (rhumb.NodeIdentity, error) {
	const op rhumb.Op = "peer.meet"
	switch {
	case h == nil:
		return rhumb.NodeIdentity{}, rhumb.E(op, rhumb.InvalidArgument, "the first frame carries no hello")
	case string(h.Cluster) != string(n.cfg.Cluster[:]):
		return rhumb.NodeIdentity{}, rhumb.Ef(op, rhumb.WrongCluster, "the peer belongs to cluster %x, this node to %s", h.Cluster, n.cfg.Cluster)
	}
	if err := api.CheckProtocol(h.Protocol); err != nil {
		return rhumb.NodeIdentity{}, err
	}
	return api.DecodeIdentity(h.Identity)
}

// greet opens a stream of frames whose first, each way, carries a hello. from is the checked identity of the other node.
func greet[F any, P interface {
	*F
	GetHello() *rhumbpb.PeerHello
}](s *Service, stream grpc.BidiStreamingServer[F, F], frame func(*rhumbpb.PeerHello) P) (n *Network, from rhumb.NodeIdentity, err error) {
	if n, err = s.open(); err != nil {
		return nil, from, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, from, err
	}
	if from, err = n.meet(P(first).GetHello()); err != nil {
		return nil, from, api.Status(err, api.Hint{})
	}
	return n, from, stream.Send(frame(n.hello()))
}

// Replicate takes the messages of another node's replicas.
func (s *Service) Replicate(stream grpc.BidiStreamingServer[rhumbpb.ReplicaFrame, rhumbpb.ReplicaFrame]) error {
	n, from, err := greet(s, stream, func(h *rhumbpb.PeerHello) *rhumbpb.ReplicaFrame { return &rhumbpb.ReplicaFrame{Hello: h} })
	if err != nil {
		return err
	}
	self := n.cfg.Self().Node
	for {
		f, err := stream.Recv()
		if err == nil {
			err = s.over(n)
		}
		if err != nil {
			return err
		}
		msgs := make([]replica.Message, 0, len(f.Messages))
		for _, p := range f.Messages {
			m, err := messageFromPB(p, from.Node, self)
			if err != nil {
				n.cfg.Logger.Warn("a peer's message does not decode", "from", from.Node, "err", err)
				return api.Status(err, api.Hint{})
			}
			msgs = append(msgs, m)
		}
		n.cfg.Handler.Replication(from.Node, msgs)
	}
}

// Heartbeat takes another node's lease frames.
func (s *Service) Heartbeat(stream grpc.BidiStreamingServer[rhumbpb.HeartbeatFrame, rhumbpb.HeartbeatFrame]) error {
	n, from, err := greet(s, stream, func(h *rhumbpb.PeerHello) *rhumbpb.HeartbeatFrame { return &rhumbpb.HeartbeatFrame{Hello: h} })
	if err != nil {
		return err
	}
	for {
		p, err := stream.Recv()
		if err == nil {
			err = s.over(n)
		}
		if err != nil {
			return err
		}
		n.cfg.Handler.Heartbeat(from, frameFromPB(p))
		if p.Load != nil {
			n.cfg.Handler.Load(from.Node, loadFromPB(p.Load))
		}
	}
}

// Raft takes messages of the metadata group. It hands each to the network that is open when it comes: the copy of the metadata of
// a new life needs the messages of others before others can hear of that life and open another stream.
func (s *Service) Raft(stream grpc.ClientStreamingServer[rhumbpb.RaftFrame, rhumbpb.RaftSummary]) error {
	n, err := s.open()
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	from, err := n.sameCluster(first.Hello)
	if err != nil {
		return api.Status(err, api.Hint{})
	}
	for {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		if n, err = s.open(); err != nil {
			return err
		}
		n.takeRaft(from.Node, f)
	}
}

// Metadata answers a request of the metadata group.
func (s *Service) Metadata(ctx context.Context, q *rhumbpb.MetadataRequest) (*rhumbpb.MetadataResponse, error) {
	n, err := s.open()
	if err != nil {
		return nil, err
	}
	from, err := n.sameCluster(q.Hello)
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	if to := rhumb.NodeID(q.To); to != rhumb.NoNode && to != n.cfg.Self().Node {
		resp, err := n.passOn(ctx, q)
		if err != nil {
			return nil, api.Status(err, api.Hint{})
		}
		return resp, nil
	}
	response, err := n.cfg.Handler.Metadata(ctx, from.Node, q.Group, q.Request)
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	return &rhumbpb.MetadataResponse{Response: response}, nil
}

// Forward answers a client's request that another node passed on.
func (s *Service) Forward(ctx context.Context, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	n, err := s.open()
	if err != nil {
		return nil, err
	}
	return n.cfg.Handler.Forward(ctx, q), nil
}

// DescribeReplica tells how this node's replica of a range stands.
func (s *Service) DescribeReplica(ctx context.Context, q *rhumbpb.DescribeReplicaRequest) (*rhumbpb.DescribeReplicaResponse, error) {
	n, err := s.open()
	if err != nil {
		return nil, err
	}
	resp, err := n.cfg.Handler.DescribeReplica(ctx, api.DecodeRangeID(q.Range))
	return resp, api.Status(err, api.Hint{})
}

// DiscardReplica drops this node's damaged copy of a range.
func (s *Service) DiscardReplica(ctx context.Context, q *rhumbpb.DiscardReplicaRequest) (*rhumbpb.DiscardReplicaResponse, error) {
	n, err := s.open()
	if err != nil {
		return nil, err
	}
	if err := n.cfg.Handler.DiscardReplica(ctx, api.DecodeRangeID(q.Range), q.AcceptLoss); err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	return &rhumbpb.DiscardReplicaResponse{}, nil
}
