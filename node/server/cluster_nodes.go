package server

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Contact says where this node gossips. It answers before the node belongs to a cluster.
func (c *Cluster) Contact(ctx context.Context, q *rhumbpb.ContactRequest) (*rhumbpb.ContactResponse, error) {
	i, err := c.node.Contact(ctx, q.Addr)
	if err != nil {
		return nil, statusError(err)
	}
	return &rhumbpb.ContactResponse{Cluster: api.EncodeUUID(i.Cluster), Node: uint32(i.Node), GossipAddr: i.Gossip, Keys: api.EncodeGossipKeys(i.Keys)}, nil
}

// AddRegion creates a region without nodes.
func (c *Cluster) AddRegion(ctx context.Context, q *rhumbpb.AddRegionRequest) (*rhumbpb.AddRegionResponse, error) {
	const op rhumb.Op = "server.Cluster.AddRegion"
	if _, err := c.currentState(); err != nil {
		return nil, statusError(err)
	}
	if err := rhumb.ValidateNewName("region", q.Name); err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	// A missing location would put the region into the Gulf of Guinea.
	if q.Location == nil {
		return nil, statusError(rhumb.Ef(op, rhumb.InvalidArgument, "region %q has no location; give one as LAT,LON", q.Name))
	}
	res, st, err := c.node.Propose(ctx, catalog.AddRegion{Name: q.Name, Location: api.DecodePoint(q.Location)})
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	r, _ := st.Region(res.Region)
	return &rhumbpb.AddRegionResponse{Region: api.EncodeRegion(r), Revision: st.Revision()}, nil
}

// ForgetNode removes a fenced node for good.
func (c *Cluster) ForgetNode(ctx context.Context, q *rhumbpb.ForgetNodeRequest) (*rhumbpb.ForgetNodeResponse, error) {
	const op rhumb.Op = "server.Cluster.ForgetNode"
	// The command names the life of the node, which this node's copy of the metadata may not have yet.
	st, err := c.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	n, ok := st.Node(rhumb.NodeID(q.Node))
	if !ok {
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "node %s does not exist; list nodes with `rhumb node ls`", rhumb.NodeID(q.Node)))
	}
	_, st, err = c.node.Propose(ctx, catalog.ForgetNode{Node: n.ID, Boot: n.Boot})
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	n, _ = st.Node(n.ID)
	return &rhumbpb.ForgetNodeResponse{Node: api.EncodeNode(*n), Revision: st.Revision()}, nil
}
