package server

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// FinalizeUpgrade raises the cluster version. The catalog checks the programs of all nodes.
func (c *Cluster) FinalizeUpgrade(ctx context.Context, q *rhumbpb.FinalizeUpgradeRequest) (*rhumbpb.FinalizeUpgradeResponse, error) {
	const op rhumb.Op = "server.Cluster.FinalizeUpgrade"
	if _, err := c.currentState(); err != nil {
		return nil, statusError(err)
	}
	cmd := catalog.SetClusterVersion{Version: rhumb.ClusterVersion(q.Version), Previous: rhumb.ClusterVersion(q.Previous)}
	// This node would stop at a version that it does not know, so it is not asked for one.
	if cmd.Version > rhumb.VersionNewest {
		return nil, statusError(rhumb.Ef(op, rhumb.InvalidArgument, "version %d is unknown to this node, which knows versions up to %d", cmd.Version, rhumb.VersionNewest))
	}
	for _, n := range q.Without {
		cmd.Without = append(cmd.Without, rhumb.NodeID(n))
	}
	_, st, err := c.node.Propose(ctx, cmd)
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	return &rhumbpb.FinalizeUpgradeResponse{Version: uint32(st.Version()), Revision: st.Revision()}, nil
}
