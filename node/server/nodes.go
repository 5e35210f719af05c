package server

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
)

// betweenNodes reports whether only nodes may call a method.
func betweenNodes(method string) bool {
	return strings.HasPrefix(method, "/"+rhumbpb.Peer_ServiceDesc.ServiceName+"/") || method == rhumbpb.Cluster_Join_FullMethodName ||
		method == rhumbpb.Cluster_Contact_FullMethodName
}

// checkNode rejects a call between nodes from a caller without the certificate of a node.
func checkNode(ctx context.Context, method string) error {
	if !betweenNodes(method) {
		return nil
	}
	p, ok := identity.PeerFromContext(ctx)
	switch {
	case !ok:
		return api.Status(rhumb.Ef("server.checkNode", rhumb.Unauthenticated, "%s is a request between nodes, and the caller has no certificate; wanted that of a node", method), api.Hint{})
	case p.Role != identity.RoleNode:
		return api.Status(rhumb.Ef("server.checkNode", rhumb.PermissionDenied, "%s is a request between nodes, and the caller is %s; wanted a node", method, p.Short()), api.Hint{})
	}
	return nil
}

// RequireNodes returns the options of a secure server that let only nodes call the services between
// nodes.
func RequireNodes() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := checkNode(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handle(ctx, q)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			if err := checkNode(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handle(srv, stream)
		}),
	}
}
