package client

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// AddRegion creates a region without nodes, so that tables can be placed before its nodes start. A
// region of that name at the same location is the result; the error kind AlreadyExists means that
// it is elsewhere.
func (c *Client) AddRegion(ctx context.Context, name string, at rhumb.Point) (rhumb.Region, error) {
	const op rhumb.Op = "client.Client.AddRegion"
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.AddRegionResponse, error) {
		return cc.AddRegion(ctx, &rhumbpb.AddRegionRequest{Name: name, Location: api.EncodePoint(at)})
	})
	if err != nil {
		return rhumb.Region{}, rhumb.Wrap(op, err)
	}
	return api.DecodeRegion(resp.GetRegion()), nil
}

// ForgetNode removes a fenced node for good: it cannot return, and another disk may register with
// its name. The error kind Conflict means that the node is not fenced.
func (c *Client) ForgetNode(ctx context.Context, node rhumb.NodeID) (rhumb.Node, error) {
	const op rhumb.Op = "client.Client.ForgetNode"
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.ForgetNodeResponse, error) {
		return cc.ForgetNode(ctx, &rhumbpb.ForgetNodeRequest{Node: uint32(node)})
	})
	if err != nil {
		return rhumb.Node{}, rhumb.Wrap(op, err)
	}
	return api.DecodeNode(resp.GetNode())
}

// FinalizeUpgrade raises the cluster version from previous to version (docs/operations/upgrade.md). Nodes can
// then not go back to the previous release. without names fenced nodes that need not support the version. The
// error kind Conflict means that a node runs an older program, or that another version is active.
func (c *Client) FinalizeUpgrade(ctx context.Context, version, previous rhumb.ClusterVersion, without []rhumb.NodeID) error {
	const op rhumb.Op = "client.Client.FinalizeUpgrade"
	q := &rhumbpb.FinalizeUpgradeRequest{Version: uint32(version), Previous: uint32(previous)}
	for _, n := range without {
		q.Without = append(q.Without, uint32(n))
	}
	_, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.FinalizeUpgradeResponse, error) {
		return cc.FinalizeUpgrade(ctx, q)
	})
	return rhumb.Wrap(op, err)
}
