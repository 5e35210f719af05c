package peer

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Two nodes whose link is cut, in one direction or both, still take part in the metadata group as long as a third node is
// in contact with both: it passes on what they say to each other. So a node that lost one link can still have its in-sync
// sets changed, and nobody takes it for dead. Nothing is passed on twice, and data never.

// via returns the node that passes messages on to another, and ok false when they go there directly.
func (n *Network) via(to rhumb.NodeID) (rhumb.NodeID, bool) {
	if n.cfg.Via == nil {
		return rhumb.NoNode, false
	}
	return n.cfg.Via(to)
}

// takeRaft hands a frame to the Handler, or passes it on.
func (n *Network) takeRaft(from rhumb.NodeID, f *rhumbpb.RaftFrame) {
	switch to := rhumb.NodeID(f.To); {
	case to != rhumb.NoNode && to != n.cfg.Self().Node:
		n.m.relayed.Inc()
		n.queueRaft(to, &rhumbpb.RaftFrame{Group: f.Group, Messages: f.Messages, From: uint32(from)})
	case f.From != 0:
		n.cfg.Handler.Raft(rhumb.NodeID(f.From), f.Group, f.Messages)
	default:
		n.cfg.Handler.Raft(from, f.Group, f.Messages)
	}
}

// passOn asks another node on behalf of the one that asked this one.
func (n *Network) passOn(ctx context.Context, q *rhumbpb.MetadataRequest) (*rhumbpb.MetadataResponse, error) {
	const op rhumb.Op = "peer.Network.passOn"
	n.m.relayed.Inc()
	resp := new(rhumbpb.MetadataResponse)
	direct := &rhumbpb.MetadataRequest{Hello: q.Hello, Group: q.Group, Request: q.Request}
	if err := n.call(ctx, op, rhumb.NodeID(q.To), rhumbpb.Peer_Metadata_FullMethodName, direct, resp); err != nil {
		return nil, err
	}
	return resp, nil
}
