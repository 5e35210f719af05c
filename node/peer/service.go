package peer

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// service answers what other nodes ask. It is registered on the main server and on the heartbeat server.
type service struct {
	rhumbpb.UnimplementedPeerServer
	n *Network
}

// Register offers the peer service on a server.
func (n *Network) Register(s grpc.ServiceRegistrar) { rhumbpb.RegisterPeerServer(s, &service{n: n}) }

// meet checks who opens a stream.
func (s *service) meet(h *rhumbpb.PeerHello) (rhumb.NodeIdentity, error) {
	id, err := s.sameCluster(h)
	if err == nil {
		err = s.n.cfg.Handler.Verify(id)
	}
	return id, err
}

// sameCluster checks all but the registration, for what must work before a node knows the catalog.
func (s *service) sameCluster(h *rhumbpb.PeerHello) (rhumb.NodeIdentity, error) {
	const op rhumb.Op = "peer.meet"
	switch {
	case h == nil:
		return rhumb.NodeIdentity{}, rhumb.E(op, rhumb.InvalidArgument, "the first frame carries no hello")
	case string(h.Cluster) != string(s.n.cfg.Cluster[:]):
		return rhumb.NodeIdentity{}, rhumb.Ef(op, rhumb.WrongCluster, "the peer belongs to cluster %x, this node to %s", h.Cluster, s.n.cfg.Cluster)
	}
	if err := api.CheckProtocol(h.Protocol); err != nil {
		return rhumb.NodeIdentity{}, err
	}
	return api.DecodeIdentity(h.Identity)
}

func (s *service) Replicate(stream grpc.BidiStreamingServer[rhumbpb.ReplicaFrame, rhumbpb.ReplicaFrame]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	from, err := s.meet(first.Hello)
	if err != nil {
		return api.Status(err, api.Hint{})
	}
	if err := stream.Send(&rhumbpb.ReplicaFrame{Hello: s.n.hello()}); err != nil {
		return err
	}
	self := s.n.cfg.Self().Node
	for {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		msgs := make([]replica.Message, 0, len(f.Messages))
		for _, p := range f.Messages {
			m, err := messageFromPB(p, from.Node, self)
			if err != nil {
				s.n.cfg.Logger.Warn("a peer's message does not decode", "from", from.Node, "err", err)
				return api.Status(err, api.Hint{})
			}
			msgs = append(msgs, m)
		}
		s.n.cfg.Handler.Replication(from.Node, msgs)
	}
}

func (s *service) Heartbeat(stream grpc.BidiStreamingServer[rhumbpb.HeartbeatFrame, rhumbpb.HeartbeatFrame]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	from, err := s.meet(first.Hello)
	if err != nil {
		return api.Status(err, api.Hint{})
	}
	if err := stream.Send(&rhumbpb.HeartbeatFrame{Hello: s.n.hello()}); err != nil {
		return err
	}
	for {
		p, err := stream.Recv()
		if err != nil {
			return err
		}
		s.n.cfg.Handler.Heartbeat(from, frameFromPB(p))
	}
}

func (s *service) Raft(stream grpc.ClientStreamingServer[rhumbpb.RaftFrame, rhumbpb.RaftSummary]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	from, err := s.sameCluster(first.Hello)
	if err != nil {
		return api.Status(err, api.Hint{})
	}
	for {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		s.n.cfg.Handler.Raft(from.Node, f.Group, f.Messages)
	}
}

func (s *service) Propose(ctx context.Context, q *rhumbpb.ProposeRequest) (*rhumbpb.ProposeResponse, error) {
	if _, err := s.sameCluster(q.Hello); err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	result, err := s.n.cfg.Handler.Propose(ctx, q.Group, q.Command)
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	return &rhumbpb.ProposeResponse{Result: result}, nil
}

func (s *service) Report(_ context.Context, q *rhumbpb.ReportRequest) (*rhumbpb.ReportResponse, error) {
	from, err := s.meet(q.Hello)
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	suspected := make([]rhumb.NodeID, len(q.Suspected))
	for i, n := range q.Suspected {
		suspected[i] = rhumb.NodeID(n)
	}
	s.n.cfg.Handler.Report(from.Node, suspected)
	return &rhumbpb.ReportResponse{}, nil
}

func (s *service) Forward(ctx context.Context, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	return s.n.cfg.Handler.Forward(ctx, q), nil
}
