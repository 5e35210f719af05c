package node

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

// connectAny connects to whatever node listens on an address.
func (n *Node) connectAny(addr string) (*grpc.ClientConn, error) {
	return api.Connect(addr, n.cfg.peerDialer())
}

// certificateCluster returns the cluster in the node's certificate, or zero without TLS.
func (n *Node) certificateCluster() rhumb.ClusterID { return rhumb.ClusterID{} }

// requireNodeCaller rejects a request that does not come from a node. Without TLS nobody can tell.
func (n *Node) requireNodeCaller(context.Context) error { return nil }
