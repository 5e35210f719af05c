package peer

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/digest"
	"github.com/rhumbdb/rhumb/storage"
)

// Network implements digest.Network with the methods below. Digests use the connection of transfers, so
// that nothing waits for them.
var _ digest.Network = (*Network)(nil)

// AskDigest asks another node for the digest of its replica.
func (n *Network) AskDigest(ctx context.Context, to rhumb.NodeID, q digest.Question) (*storage.Digest, error) {
	const op rhumb.Op = "peer.Network.DigestReplica"
	c, err := n.bulk(op, to)
	if err != nil {
		return nil, err
	}
	resp, err := c.DigestReplica(ctx, &rhumbpb.DigestReplicaRequest{Hello: n.newHello(), Range: api.EncodeRangeID(q.Range), Seq: uint64(q.Seq), At: uint64(q.At)})
	if err != nil {
		return nil, transferError(op, to, err)
	}
	d := &storage.Digest{Range: api.DecodeRangeID(resp.Range), At: rhumb.Timestamp(resp.At), Last: rhumb.Slot(resp.LastSlot)}
	for _, t := range resp.Tables {
		d.Tables = append(d.Tables, storage.TableDigest{Table: rhumb.TableID(t.Table), Records: t.Records, Bytes: t.Bytes, High: t.High, Low: t.Low})
	}
	// A digest of something else would be a difference that does not exist.
	if d.Range != q.Range || d.At != q.At {
		return nil, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: to, Range: q.Range, Msg: "the node answered with the digest of " + d.Range.String() + " as of " + d.At.String()}
	}
	return d, nil
}

// Distrust makes another node quarantine its replica. The other node verifies who calls, and that the caller is the
// primary in its own copy of the record: otherwise any node could take copies out of service. If the answer is
// lost, the replica may be quarantined or not; both are harmless, and the next comparison repeats the request.
func (n *Network) Distrust(ctx context.Context, to rhumb.NodeID, id rhumb.RangeID, why string) error {
	const op rhumb.Op = "peer.Network.DistrustReplica"
	c, err := n.bulk(op, to)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stalledMost)
	defer cancel()
	if _, err := c.DistrustReplica(ctx, &rhumbpb.DistrustReplicaRequest{Hello: n.newHello(), Range: api.EncodeRangeID(id), Why: why}); err != nil {
		return transferError(op, to, err)
	}
	return nil
}

// VerifyReplicas makes the primary of a range compare the replicas, on behalf of an operator whose right the calling
// node has checked. A node that is not the primary any more refuses, and the operator's client asks again.
func (n *Network) VerifyReplicas(ctx context.Context, to rhumb.NodeID, q *rhumbpb.VerifyRangeRequest) (*rhumbpb.VerifyRangeResponse, error) {
	const op rhumb.Op = "peer.Network.VerifyReplicas"
	c, err := n.bulk(op, to)
	if err != nil {
		return nil, err
	}
	// No timeout of its own: the caller has one, and reading a large range takes long.
	resp, err := c.VerifyReplicas(ctx, q)
	if err != nil {
		return nil, transferError(op, to, err)
	}
	return resp, nil
}

// digests returns what compares ranges in this life, and the verified caller.
func (s *Service) digests(ctx context.Context, h *rhumbpb.PeerHello) (*digest.Manager, rhumb.NodeIdentity, *Network, error) {
	n, err := s.requireNetwork()
	if err != nil {
		return nil, rhumb.NodeIdentity{}, nil, err
	}
	from, err := n.verifyPeer(ctx, h)
	if err != nil {
		return nil, rhumb.NodeIdentity{}, nil, api.Status(err, api.Hint{})
	}
	m := n.cfg.Handler.Digests()
	if m == nil {
		return nil, rhumb.NodeIdentity{}, nil, api.Status(rhumb.E("peer.Service", rhumb.Unavailable, "the node does not serve its ranges yet; retry"), api.Hint{})
	}
	return m, from, n, nil
}

// DigestReplica returns the digest of this node's replica.
func (s *Service) DigestReplica(ctx context.Context, q *rhumbpb.DigestReplicaRequest) (*rhumbpb.RangeDigest, error) {
	m, _, _, err := s.digests(ctx, q.Hello)
	if err != nil {
		return nil, err
	}
	d, err := m.Answer(ctx, digest.Question{Range: api.DecodeRangeID(q.Range), Seq: rhumb.Seq(q.Seq), At: rhumb.Timestamp(q.At)})
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	resp := &rhumbpb.RangeDigest{Range: api.EncodeRangeID(d.Range), At: uint64(d.At), LastSlot: uint32(d.Last)}
	for _, t := range d.Tables {
		resp.Tables = append(resp.Tables, &rhumbpb.TableDigest{Table: uint32(t.Table), Records: t.Records, Bytes: t.Bytes, High: t.High, Low: t.Low})
	}
	return resp, nil
}

// DistrustReplica quarantines this node's replica.
func (s *Service) DistrustReplica(ctx context.Context, q *rhumbpb.DistrustReplicaRequest) (*rhumbpb.DistrustReplicaResponse, error) {
	_, from, n, err := s.digests(ctx, q.Hello)
	if err != nil {
		return nil, err
	}
	if err := n.cfg.Handler.DistrustReplica(ctx, from.Node, api.DecodeRangeID(q.Range), q.Why); err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	return &rhumbpb.DistrustReplicaResponse{}, nil
}

// VerifyReplicas compares the replicas of a range whose primary this node is.
func (s *Service) VerifyReplicas(ctx context.Context, q *rhumbpb.VerifyRangeRequest) (*rhumbpb.VerifyRangeResponse, error) {
	n, err := s.requireMember(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := n.cfg.Handler.VerifyReplicas(ctx, q)
	return resp, api.Status(err, api.Hint{})
}
