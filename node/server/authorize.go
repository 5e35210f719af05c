package server

import (
	"context"
	"fmt"
	"path"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// need is the right or role that an RPC takes. The zero value denies, so an RPC that somebody forgets to
// list is closed and not open.
type need uint8

const (
	// nobodyMay is the need of an RPC that is not in callNeeds.
	nobodyMay need = iota
	// needNothing lets callers in before they are identified.
	needNothing
	// needIdentity lets in everybody with an identity that the cluster knows. The method decides
	// what it shows, or which names it touches.
	needIdentity
	// needRead and needAdmin are rights to the cluster.
	needRead
	needAdmin
	// needNode lets in nodes of the cluster only.
	needNode
)

// callNeeds lists every RPC with its need. It is the only place that decides this; a test checks
// that no RPC is missing.
var callNeeds = map[string]need{
	// Each request of a client names tables and records, and is checked separately (permit).
	rhumbpb.KV_Stream_FullMethodName: needIdentity,
	rhumbpb.KV_Do_FullMethodName:     needIdentity,
	rhumbpb.KV_Scan_FullMethodName:   needIdentity,

	// The way to an identity.
	rhumbpb.Session_Authenticate_FullMethodName: needNothing,

	rhumbpb.Cluster_Ping_FullMethodName: needIdentity,
	// Shows the tables that the caller may see, and the ranges of their classes.
	rhumbpb.Cluster_GetMetadata_FullMethodName:   needIdentity,
	rhumbpb.Cluster_WatchMetadata_FullMethodName: needIdentity,
	// These check the right to the table.
	rhumbpb.Cluster_CreateTable_FullMethodName:     needIdentity,
	rhumbpb.Cluster_DescribeTable_FullMethodName:   needIdentity,
	rhumbpb.Cluster_RefuseSnapshot_FullMethodName:  needIdentity,
	rhumbpb.Cluster_Status_FullMethodName:          needRead,
	rhumbpb.Cluster_DescribeRange_FullMethodName:   needRead,
	rhumbpb.Cluster_Init_FullMethodName:            needAdmin,
	rhumbpb.Cluster_Drain_FullMethodName:           needAdmin,
	rhumbpb.Cluster_DiscardReplica_FullMethodName:  needAdmin,
	rhumbpb.Cluster_VerifyRange_FullMethodName:     needAdmin,
	rhumbpb.Cluster_RecoverRange_FullMethodName:    needAdmin,
	rhumbpb.Cluster_AddRegion_FullMethodName:       needAdmin,
	rhumbpb.Cluster_ForgetNode_FullMethodName:      needAdmin,
	rhumbpb.Cluster_FinalizeUpgrade_FullMethodName: needAdmin,
	rhumbpb.Cluster_Join_FullMethodName:            needNode,
	rhumbpb.Cluster_Contact_FullMethodName:         needNode,
	rhumbpb.Cluster_DropTable_FullMethodName:       needIdentity,

	// A caller may ask about itself and change its own password.
	rhumbpb.Access_WhoAmI_FullMethodName:     needIdentity,
	rhumbpb.Access_AlterUser_FullMethodName:  needIdentity,
	rhumbpb.Access_ListUsers_FullMethodName:  needIdentity,
	rhumbpb.Access_ListRoles_FullMethodName:  needIdentity,
	rhumbpb.Access_CreateUser_FullMethodName: needAdmin,
	rhumbpb.Access_DropUser_FullMethodName:   needAdmin,
	rhumbpb.Access_CreateRole_FullMethodName: needAdmin,
	rhumbpb.Access_DropRole_FullMethodName:   needAdmin,
	rhumbpb.Access_AssignRole_FullMethodName: needAdmin,
	rhumbpb.Access_AlterGrant_FullMethodName: needAdmin,

	rhumbpb.Security_ListCertificates_FullMethodName:  needRead,
	rhumbpb.Security_ListGossipKeys_FullMethodName:    needRead,
	rhumbpb.Security_RevokeCertificate_FullMethodName: needAdmin,
	// Adding an authority takes an operator besides (mayTrust), and its signature.
	rhumbpb.Security_SetTrust_FullMethodName:         needAdmin,
	rhumbpb.Security_RotateGossipKeys_FullMethodName: needAdmin,

	rhumbpb.Operations_ListOperations_FullMethodName:   needRead,
	rhumbpb.Operations_DescribeNodes_FullMethodName:    needRead,
	rhumbpb.Operations_PlanRebalance_FullMethodName:    needRead,
	rhumbpb.Operations_PlanFailover_FullMethodName:     needRead,
	rhumbpb.Operations_ListSettings_FullMethodName:     needRead,
	rhumbpb.Operations_StartOperation_FullMethodName:   needAdmin,
	rhumbpb.Operations_ControlOperation_FullMethodName: needAdmin,
	rhumbpb.Operations_RemoveNode_FullMethodName:       needAdmin,
	rhumbpb.Operations_GiveUpRegion_FullMethodName:     needAdmin,
	rhumbpb.Operations_AlterSetting_FullMethodName:     needAdmin,
	rhumbpb.Operations_HandOverRange_FullMethodName:    needAdmin,
	rhumbpb.Operations_FailBack_FullMethodName:         needAdmin,
	rhumbpb.Operations_UnpinVotes_FullMethodName:       needAdmin,
	rhumbpb.Operations_LeadMetadata_FullMethodName:     needAdmin,
	rhumbpb.Operations_SplitRange_FullMethodName:       needAdmin,
	rhumbpb.Operations_MergeRange_FullMethodName:       needAdmin,

	rhumbpb.Peer_Replicate_FullMethodName:        needNode,
	rhumbpb.Peer_Heartbeat_FullMethodName:        needNode,
	rhumbpb.Peer_Raft_FullMethodName:             needNode,
	rhumbpb.Peer_Metadata_FullMethodName:         needNode,
	rhumbpb.Peer_Forward_FullMethodName:          needNode,
	rhumbpb.Peer_DescribeReplica_FullMethodName:  needNode,
	rhumbpb.Peer_DiscardReplica_FullMethodName:   needNode,
	rhumbpb.Peer_DescribeIdentity_FullMethodName: needNode,
	rhumbpb.Peer_OpenTransfer_FullMethodName:     needNode,
	rhumbpb.Peer_ReadTransfer_FullMethodName:     needNode,
	rhumbpb.Peer_ReleaseTransfer_FullMethodName:  needNode,
	rhumbpb.Peer_VerifyReplicas_FullMethodName:   needNode,
	rhumbpb.Peer_DigestReplica_FullMethodName:    needNode,
	rhumbpb.Peer_DistrustReplica_FullMethodName:  needNode,
}

// NewDenied returns the metric of calls that Authorize denied. Requests for records within a stream
// are counted by rhumb_server_failed_total.
func NewDenied() *prometheus.CounterVec {
	m := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "server", Name: "denied_calls_total", Help: "Calls that were denied for want of an identity or a right, by kind of error.",
	}, []string{"kind"})
	// A counter exists once its label has been used.
	for _, k := range []rhumb.Kind{rhumb.Unauthenticated, rhumb.PermissionDenied} {
		m.WithLabelValues(k.String())
	}
	return m
}

// ErrNotCurrent refuses a user while the node's copy of the metadata may be older than the rights of the user.
var ErrNotCurrent = rhumb.E("server.Authorize", rhumb.Unavailable, "the node has just started, and does not know the current rights of users yet; retry, or use another node")

// Authorizer rejects calls whose callers lack what callNeeds demands. State returns the newest catalog of the node, or nil before there is one.
//
// The catalog is read for each call and not for each connection: a revoked right ends with the next
// call, however long the connection has been open.
//
// Current waits for a moment until the catalog has everything that was decided before the node started, and reports whether
// it has. A node that was down for a while has an older one. It does not deny a user anything by that, since the right may have
// been granted meanwhile, and lets no user change anything, since the right may have been revoked. What users may see, it
// shows: the state of a cluster whose metadata has no leader is of use.
type Authorizer struct {
	State   func() *catalog.State
	Current func(context.Context) bool
	Denied  *prometheus.CounterVec
}

// Options returns the interceptors of a server.
func (a *Authorizer) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(a.unary),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			if err := a.Authorize(s.Context(), info.FullMethod, nil); err != nil {
				return statusError(err)
			}
			return handle(srv, s)
		}),
	}
}

// unary is the interceptor of calls that are not streams.
func (a *Authorizer) unary(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := a.Authorize(ctx, info.FullMethod, q); err != nil {
		return nil, statusError(err)
	}
	return handle(ctx, q)
}

// Authorize returns an error unless the caller may call a method, with the request q if it is not a stream.
func (a *Authorizer) Authorize(ctx context.Context, method string, q any) error {
	changes, err := a.judge(ctx, method, q)
	who, _ := access.FromContext(ctx)
	// The rights of others than users do not depend on the catalog.
	if who.Kind == access.KindUser && (changes && err == nil || rhumb.KindOf(err) == rhumb.PermissionDenied) {
		if !a.Current(ctx) {
			return ErrNotCurrent
		}
		// The catalog may be newer now, and the first answer was by an older one. Without the second one, a user whose right was
		// revoked while the node was down could still use it once.
		_, err = a.judge(ctx, method, q)
	}
	if err != nil {
		a.Denied.WithLabelValues(rhumb.KindOf(err).String()).Inc()
	}
	return err
}

// judge decides by the catalog of this moment. changes is set if the call would change the cluster, its tables or its users.
func (a *Authorizer) judge(ctx context.Context, method string, q any) (changes bool, err error) {
	if err := authorizeCall(ctx, a.State, method); err != nil {
		return false, err
	}
	byRequest, err := authorizeRequest(ctx, a.State(), q)
	return byRequest || callNeeds[method] == needAdmin, err
}

// authorizeCall returns an error unless the caller may call a method.
func authorizeCall(ctx context.Context, state func() *catalog.State, method string) error {
	const op rhumb.Op = "server.Authorize"
	wanted := callNeeds[method]
	if wanted == needNothing {
		return nil
	}
	who, _ := access.FromContext(ctx)
	subject := state().Access().Of(who)
	if !subject.IsKnown() {
		return errUnknownCaller(op, who, state())
	}
	// An RPC without an entry is denied to everybody, operators included.
	allowed := false
	switch wanted {
	case needIdentity:
		allowed = true
	case needRead:
		allowed = subject.AllowsCluster(access.Read)
	case needAdmin:
		allowed = subject.AllowsCluster(access.Admin)
	case needNode:
		// An operator may do everything that clients can ask for, but is not a node: it cannot
		// speak for one.
		allowed = who.Kind == access.KindNode || who.Kind == access.KindInsecure
	}
	if allowed {
		return nil
	}
	return errCallDenied(op, who, method, wanted)
}

// authorizeRequest returns an error if the caller may not send an administrative request whose right depends on
// what the request is about, and whether q is one of these requests. The methods check again, by their own copy of the catalog. It is checked here as well because
// Audit comes afterwards and writes two entries for each request that it lets in: a caller without rights could
// otherwise push the entries of others out of the log, which is bounded.
func authorizeRequest(ctx context.Context, st *catalog.State, q any) (byRequest bool, err error) {
	if st == nil || st.Cluster().IsZero() {
		return false, nil
	}
	switch q := q.(type) {
	case *rhumbpb.CreateTableRequest:
		return true, mayCreateTable(ctx, st, q)
	case *rhumbpb.RefuseSnapshotRequest:
		return true, mayChangeTable(ctx, st, "server.Cluster.RefuseSnapshot", q.Table)
	case *rhumbpb.DropTableRequest:
		return true, mayChangeTable(ctx, st, "server.Cluster.DropTable", q.Table)
	case *rhumbpb.AlterUserRequest:
		return true, mayAlterUser(ctx, st, q)
	case *rhumbpb.SetTrustRequest:
		return true, mayTrust(ctx, st, q)
	}
	return false, nil
}

// errUnknownCaller rejects a caller that is not identified, or that the catalog
// does not know.
func errUnknownCaller(op rhumb.Op, who access.Principal, st *catalog.State) error {
	// Operators and nodes are known without a catalog, so the other cases are about users.
	switch {
	case who.Kind == access.KindNobody:
		return access.ErrAnonymous
	case st == nil || st.Cluster().IsZero():
		return rhumb.Ef(op, rhumb.Unavailable, "the node does not know %s yet, since it is in no cluster; retry, or use another node", who)
	}
	return rhumb.Ef(op, rhumb.PermissionDenied, "%s does not exist in this cluster or is disabled; a cluster admin can create or enable the user with `rhumb user`", who)
}

// errCallDenied rejects a caller that lacks a right to the cluster.
func errCallDenied(op rhumb.Op, who access.Principal, method string, wanted need) error {
	// The name of the method is for clients of the API; people know commands.
	what := rhumb.Ef(op, rhumb.PermissionDenied, "%s may not call %s", who, path.Base(method))
	switch wanted {
	case needRead:
		what.Msg = fmt.Sprintf("%s may not read the state of the cluster (%s); a cluster admin can run `rhumb grant ROLE --cluster-wide --rights read` for one of its roles", who, path.Base(method))
	case needAdmin:
		what.Msg = fmt.Sprintf("%s may not administer the cluster (%s); it takes the certificate of an operator, or a role with `rhumb grant ROLE --cluster-wide --rights admin`", who, path.Base(method))
	case needNode:
		what.Msg += ", which only nodes of the cluster call"
	}
	return what
}

// caller returns the principal of a call to the Cluster or Access service with the subject in a
// catalog, which may be nil.
func caller(ctx context.Context, st *catalog.State) (access.Principal, *access.Subject) {
	who, _ := access.FromContext(ctx)
	return who, st.Access().Of(who)
}

// errTableHidden rejects a request about a table that the caller may not see. Its text is the same
// for a table that does not exist, so that nobody learns the names of tables by asking.
func errTableHidden(op rhumb.Op, who access.Principal, name string) error {
	return rhumb.Ef(op, rhumb.PermissionDenied, "%s has no right to a table %q, or it does not exist; list the tables that you may use with `rhumb table ls`", who, name)
}
