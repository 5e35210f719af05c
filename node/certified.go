package node

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/identity"
)

// connectAny connects to whatever node listens on an address.
func (n *Node) connectAny(addr string) (*grpc.ClientConn, error) {
	return api.Connect(addr, n.cfg.peerDialer(), n.peerCredentials(""))
}

// certificateCluster returns the cluster in the node's certificate, or zero without TLS.
func (n *Node) certificateCluster() rhumb.ClusterID {
	if n.source == nil {
		return rhumb.ClusterID{}
	}
	return n.source.Cluster()
}

// requireNodeCaller rejects a request that no node has sent. Without TLS this cannot be checked.
func (n *Node) requireNodeCaller(ctx context.Context) error {
	if n.source == nil {
		return nil
	}
	if p, ok := identity.PeerFromContext(ctx); !ok || p.Role != identity.RoleNode {
		return rhumb.E("node.requireNodeCaller", rhumb.PermissionDenied, "only a node gets an answer to this request; the caller has no certificate of a node")
	}
	return nil
}
