package server

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestEveryChangeIsAudited guards that nobody adds an RPC that changes something and is in no audit log.
func TestEveryChangeIsAudited(t *testing.T) {
	for method, need := range callNeeds {
		name := method[strings.LastIndex(method, "/")+1:]
		shows := false
		for _, prefix := range []string{"Get", "Watch", "List", "Describe", "Ping", "Status", "WhoAmI"} {
			shows = shows || strings.HasPrefix(name, prefix)
		}
		// Nodes administer nothing, requests for records are not logged, and sessions have entries of their own.
		if shows || need == needNode || strings.HasPrefix(method, "/rhumb.v1.KV/") || strings.HasPrefix(method, "/rhumb.v1.Session/") {
			if isAdministrative(method) {
				t.Errorf("%s counts as administration", method)
			}
			continue
		}
		if !isAdministrative(method) {
			t.Errorf("%s changes something and is not recorded", method)
		}
	}
}

// TestAuditSaysWhat guards that an entry names what a request was about, and no password.
func TestAuditSaysWhat(t *testing.T) {
	for want, q := range map[string]proto.Message{
		"name tower, password changed, roles reader, roles writer": &rhumbpb.CreateUserRequest{Name: "tower", Roles: []string{"reader", "writer"}, Verifier: &rhumbpb.Verifier{Salt: []byte("salt")}},
		"user_name tower, why lost":                                &rhumbpb.RevokeCertificateRequest{UserName: "tower", Why: "lost"},
		"node_name eu-1":                                           &rhumbpb.RevokeCertificateRequest{NodeName: "eu-1"},
		"distrust 5f2a90c1, force true":                            &rhumbpb.SetTrustRequest{Distrust: []string{"5f2a90c1"}, Force: true},
		"trust no certificate":                                     &rhumbpb.SetTrustRequest{Trust: [][]byte{{1}}},
		"role r, table flights, prefix a/, add read,write":         &rhumbpb.AlterGrantRequest{Role: "r", Scope: &rhumbpb.Scope{Table: "flights", Prefix: []byte("a/")}, Add: uint32(access.Read | access.Write)},
		"table flights":                                            &rhumbpb.RefuseSnapshotRequest{Table: "flights"},
		"range 1/64, trust 3":                                      &rhumbpb.VerifyRangeRequest{Range: &rhumbpb.RangeID{Region: 1, Slot: 64}, Trust: 3},
	} {
		if got := describeRequest(q); got != want {
			t.Errorf("%T is described as %q, want %q", q, got, want)
		}
	}
}

// TestRefusalsAreBounded guards that callers without rights add no entries beside those that AuditRefusals bounds:
// the log is bounded, and they could push the entries of others out.
func TestRefusalsAreBounded(t *testing.T) {
	st := peopled(t)
	state := func() *catalog.State { return st }
	recorded := 0
	record := Audit(func(context.Context) error { return nil }, func(context.Context, audit.Event) error { recorded++; return nil })
	for _, c := range []struct {
		user string
		q    any
		rpc  string
	}{
		{"ann", &rhumbpb.CreateTableRequest{Name: "plans"}, rhumbpb.Cluster_CreateTable_FullMethodName},
		{"ann", &rhumbpb.RefuseSnapshotRequest{Table: "flights"}, rhumbpb.Cluster_RefuseSnapshot_FullMethodName},
		{"ann", &rhumbpb.RefuseSnapshotRequest{Table: "secret"}, rhumbpb.Cluster_RefuseSnapshot_FullMethodName},
		{"ann", &rhumbpb.AlterUserRequest{Name: "bob", Disable: true}, rhumbpb.Access_AlterUser_FullMethodName},
		{"ann", &rhumbpb.AlterUserRequest{Name: "ann", Verifier: &rhumbpb.Verifier{}}, rhumbpb.Access_AlterUser_FullMethodName},
		{"mon", &rhumbpb.CreateUserRequest{Name: "eve"}, rhumbpb.Access_CreateUser_FullMethodName},
	} {
		ctx := access.WithPrincipal(t.Context(), access.Principal{Kind: access.KindUser, Name: c.user})
		info := &grpc.UnaryServerInfo{FullMethod: c.rpc}
		_, err := (&Authorizer{state, alwaysCurrent, NewDenied()}).unary(ctx, c.q, info, func(ctx context.Context, q any) (any, error) {
			return record(ctx, q, info, func(context.Context, any) (any, error) { return nil, nil })
		})
		if kind := kindOfStatus(err); kind != rhumb.PermissionDenied || recorded > 0 {
			t.Errorf("%s of %s: %v with %d entries, want permission_denied and none", c.rpc, c.user, err, recorded)
		}
		recorded = 0
	}
	// Whoever has the right is recorded.
	ctx := access.WithPrincipal(t.Context(), access.Principal{Kind: access.KindUser, Name: "tad"})
	info := &grpc.UnaryServerInfo{FullMethod: rhumbpb.Cluster_CreateTable_FullMethodName}
	_, err := (&Authorizer{state, alwaysCurrent, NewDenied()}).unary(ctx, &rhumbpb.CreateTableRequest{Name: "plans"}, info, func(ctx context.Context, q any) (any, error) {
		return record(ctx, q, info, func(context.Context, any) (any, error) { return nil, nil })
	})
	if err != nil || recorded != 2 {
		t.Errorf("a request with the right: %v, %d entries, want 2", err, recorded)
	}
}

// kindOfStatus returns the kind of the error of a call.
func kindOfStatus(err error) rhumb.Kind {
	e, _, _ := api.FromStatus("test", err)
	return rhumb.KindOf(e)
}
