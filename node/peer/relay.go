package peer

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Two nodes whose link is cut, in one direction or both, still take part in the metadata group if a
// third node is in contact with both and relays their messages. So a node that lost one link can
// still have its in-sync sets changed, and is not considered dead (docs/decisions/0017). A message
// is relayed at most once, so that it cannot circulate, and data is never relayed.

// relayFor returns the node that relays messages to another node. ok is false if messages go
// directly.
func (n *Network) relayFor(to rhumb.NodeID) (rhumb.NodeID, bool) {
	if n.cfg.Via == nil {
		return rhumb.NoNode, false
	}
	return n.cfg.Via(to)
}

// takeRaft passes a frame to the Handler, or relays it. The certificate of the stream speaks for from, and the
// proof of a relayed frame for the node that the frame names.
func (n *Network) takeRaft(from rhumb.NodeID, f *rhumbpb.RaftFrame) {
	switch to := rhumb.NodeID(f.To); {
	case to != rhumb.NoNode && to != n.cfg.Self().Node:
		// To is not set in the relayed frame, so the receiver takes it in any case. From names the
		// sender, because Raft identifies members by it.
		n.m.relayed.Inc()
		n.queueRaft(to, &rhumbpb.RaftFrame{Group: f.Group, Messages: f.Messages, From: uint32(from), Proof: f.Proof})
	case f.From != 0:
		// A relayed frame: the stream belongs to the relay, not to the sender. A frame that is dropped is
		// one that the network lost: Raft sends again.
		if err := n.checkProof(proofRaft, f.Proof, rhumb.NodeID(f.From), f.Group, f.Messages...); err != nil {
			n.cfg.Logger.Warn("dropped relayed messages", "from", f.From, "relay", from, "err", rhumb.Message(err))
			return
		}
		n.cfg.Handler.Raft(rhumb.NodeID(f.From), f.Group, f.Messages)
	default:
		n.cfg.Handler.Raft(from, f.Group, f.Messages)
	}
}

// relayRequest forwards a request to another node on behalf of the sender, and returns the
// response.
func (n *Network) relayRequest(ctx context.Context, q *rhumbpb.MetadataRequest) (*rhumbpb.MetadataResponse, error) {
	const op rhumb.Op = "peer.Network.passOn"
	n.m.relayed.Inc()
	resp := new(rhumbpb.MetadataResponse)
	// The hello is that of the original sender: the receiver answers the sender, not this node.
	direct := &rhumbpb.MetadataRequest{Hello: q.Hello, Group: q.Group, Request: q.Request, Proof: q.Proof}
	if err := n.callPeer(ctx, op, rhumb.NodeID(q.To), rhumbpb.Peer_Metadata_FullMethodName, direct, resp); err != nil {
		return nil, err
	}
	return resp, nil
}
