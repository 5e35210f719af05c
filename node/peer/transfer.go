package peer

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/transfer"
	"github.com/rhumbdb/rhumb/storage"
)

// Network implements transfer.Network with the methods below.
var _ transfer.Network = (*Network)(nil)

// stalledMost is how long a transfer waits for the next chunk. Then the connection is taken for
// broken, and the transfer continues on another one.
const stalledMost = 15 * time.Second

// openTransferMost bounds the time until a donor answers. Donors answer within seconds, with the set or with how far it is made. Only those of
// releases before this answer are silent until the set is made.
const openTransferMost = 10 * time.Minute

// setIDToPB encodes the identity of a set.
func setIDToPB(id storage.SetID) *rhumbpb.TransferSetID {
	return &rhumbpb.TransferSetID{
		Range: api.EncodeRangeID(id.Range), Donor: uint32(id.Donor), Life: uint64(id.Life), Number: id.Number,
		LastEpoch: uint64(id.Last.Epoch), LastSeq: uint64(id.Last.Seq), LastHash: id.Last.Hash[:],
	}
}

// setIDFromPB decodes the identity of a set. A hash of a wrong length matches no set.
func setIDFromPB(p *rhumbpb.TransferSetID) storage.SetID {
	id := storage.SetID{
		Range: api.DecodeRangeID(p.GetRange()), Donor: rhumb.NodeID(p.GetDonor()), Life: rhumb.BootSeq(p.GetLife()), Number: p.GetNumber(),
		Last: entry.Position{Epoch: rhumb.Epoch(p.GetLastEpoch()), Seq: rhumb.Seq(p.GetLastSeq())},
	}
	copy(id.Last.Hash[:], p.GetLastHash())
	return id
}

// bulk returns the client of the connection for transfers to a node. It is apart from the others, so
// that nothing waits for a transfer.
func (n *Network) bulk(op rhumb.Op, to rhumb.NodeID) (rhumbpb.PeerClient, error) {
	p, ok := n.lookUpPeer(to)
	if !ok || p.bulkConn == nil {
		return nil, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: to, Msg: "this node does not know the other node"}
	}
	return rhumbpb.NewPeerClient(p.bulkConn.Client()), nil
}

// Open asks another node for a set of a range.
func (n *Network) Open(ctx context.Context, to rhumb.NodeID, q transfer.Question) (transfer.Offer, error) {
	const op rhumb.Op = "peer.Network.OpenTransfer"
	c, err := n.bulk(op, to)
	if err != nil {
		return transfer.Offer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTransferMost)
	defer cancel()
	resp, err := c.OpenTransfer(ctx, &rhumbpb.OpenTransferRequest{
		Hello: n.newHello(), Range: api.EncodeRangeID(q.Range), Least: uint64(q.Least), AsksAgain: q.AsksAgain,
	})
	if err != nil {
		return transfer.Offer{}, transferError(op, to, err)
	}
	// No description of a set is empty.
	if q.AsksAgain && len(resp.Set) == 0 {
		return transfer.Offer{Made: resp.MadeBytes}, nil
	}
	set, err := storage.DecodeSet(resp.Set)
	if err != nil {
		return transfer.Offer{}, rhumb.Wrap(op, err)
	}
	// A set of another range would replace the wrong one.
	if set.ID.Range != q.Range || set.ID.Donor != to || set.Commit < q.Least {
		return transfer.Offer{}, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: to, Msg: "the node answered with set " + set.ID.String() + ", which does not fit the question"}
	}
	return transfer.Offer{Set: set}, nil
}

// transferError converts the error of a call. A call that broke is repeated, whatever became of it.
func transferError(op rhumb.Op, to rhumb.NodeID, err error) error {
	if e, _, remote := api.FromStatus(op, err); remote {
		return e
	}
	return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: to, Msg: "the connection failed", Err: err}
}

// Read receives the chunks of a set from one on.
func (n *Network) Read(ctx context.Context, to rhumb.NodeID, id storage.SetID, from int, take func(chunk int, b []byte) error) error {
	const op rhumb.Op = "peer.Network.ReadTransfer"
	c, err := n.bulk(op, to)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.ReadTransfer(ctx, &rhumbpb.ReadTransferRequest{Hello: n.newHello(), Set: setIDToPB(id), From: uint32(from)})
	if err != nil {
		return transferError(op, to, err)
	}
	// A half-open connection shows no error for a long time.
	stalled := time.AfterFunc(stalledMost, cancel)
	defer stalled.Stop()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return transferError(op, to, err)
		}
		// The time that take waits for the rate does not count.
		stalled.Stop()
		if err := take(int(chunk.Chunk), chunk.Content); err != nil {
			return err
		}
		stalled.Reset(stalledMost)
	}
}

// Release reports to a donor that a set is not needed any more.
func (n *Network) Release(ctx context.Context, to rhumb.NodeID, id storage.SetID) {
	const op rhumb.Op = "peer.Network.ReleaseTransfer"
	c, err := n.bulk(op, to)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stalledMost)
	defer cancel()
	// The donor drops the set in any case when nobody reads it.
	if _, err := c.ReleaseTransfer(ctx, &rhumbpb.ReleaseTransferRequest{Hello: n.newHello(), Set: setIDToPB(id)}); err != nil {
		n.cfg.Logger.Debug("a donor was not told that its set is not needed any more", "node", to, "err", err)
	}
}

// transfers returns the open network, the manager of this life and the verified caller.
func (s *Service) transfers(ctx context.Context, h *rhumbpb.PeerHello) (*transfer.Manager, rhumb.NodeID, error) {
	n, err := s.requireNetwork()
	if err != nil {
		return nil, rhumb.NoNode, err
	}
	from, err := n.verifyPeer(ctx, h)
	if err != nil {
		return nil, rhumb.NoNode, api.Status(err, api.Hint{})
	}
	m := n.cfg.Handler.Transfers()
	if m == nil {
		return nil, rhumb.NoNode, api.Status(rhumb.E("peer.Service", rhumb.Unavailable, "the node does not serve its ranges yet; retry"), api.Hint{})
	}
	return m, from.Node, nil
}

// OpenTransfer makes a set for the caller, or reports how far it is made.
func (s *Service) OpenTransfer(ctx context.Context, q *rhumbpb.OpenTransferRequest) (*rhumbpb.OpenTransferResponse, error) {
	m, from, err := s.transfers(ctx, q.Hello)
	if err != nil {
		return nil, err
	}
	o, err := m.Open(ctx, from, transfer.Question{Range: api.DecodeRangeID(q.Range), Least: rhumb.Seq(q.Least), AsksAgain: q.AsksAgain})
	if err != nil {
		return nil, api.Status(err, api.Hint{})
	}
	resp := &rhumbpb.OpenTransferResponse{MadeBytes: o.Made}
	if o.Set != nil {
		resp.Set = o.Set.Encode()
	}
	return resp, nil
}

// ReadTransfer sends the chunks of a set.
func (s *Service) ReadTransfer(q *rhumbpb.ReadTransferRequest, stream grpc.ServerStreamingServer[rhumbpb.TransferChunk]) error {
	m, _, err := s.transfers(stream.Context(), q.Hello)
	if err != nil {
		return err
	}
	err = m.Read(stream.Context(), setIDFromPB(q.Set), int(q.From), func(chunk int, b []byte) error {
		return stream.Send(&rhumbpb.TransferChunk{Chunk: uint32(chunk), Content: b})
	})
	return api.Status(err, api.Hint{})
}

// ReleaseTransfer drops a set.
func (s *Service) ReleaseTransfer(ctx context.Context, q *rhumbpb.ReleaseTransferRequest) (*rhumbpb.ReleaseTransferResponse, error) {
	m, _, err := s.transfers(ctx, q.Hello)
	if err != nil {
		return nil, err
	}
	m.Release(setIDFromPB(q.Set))
	return &rhumbpb.ReleaseTransferResponse{}, nil
}
