package node

import (
	"context"
	"fmt"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestRightsAtEachNode guards that a user has the same rights through every node, also where the request is
// forwarded to the primary, that a revocation takes them away at every node, and that only nodes may speak for others.
func TestRightsAtEachNode(t *testing.T) {
	a := identitytest.New(t)
	nodes := startSecureRegion(t, a)
	table := createTable(t, nodes[0], "flights", 3)
	scope := access.Scope{Table: "flights", Prefix: "a/"}
	change := func(cmd catalog.Command) {
		t.Helper()
		if _, err := nodes[0].ChangeAccess(t.Context(), cmd); err != nil {
			t.Fatal(err)
		}
	}
	change(catalog.CreateRole{Name: "writer"})
	change(catalog.AlterGrant{Role: "writer", Scope: scope, Add: access.Read | access.Write})
	change(catalog.CreateUser{Name: "ann", Roles: []string{"writer"}})
	ann := a.User(t, "ann").Source(t)
	write := func(n *Node, name string) error {
		_, err := kvAs(t, n, ann).Do(t.Context(), &rhumbpb.Request{Hops: 2, Revision: nodes[0].State().Revision(), Write: &rhumbpb.Write{
			Resolve: true, Mutations: []*rhumbpb.Mutation{{Kind: rhumbpb.MutationKind_MUTATION_KIND_PUT, Table: table.Id, Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte("v"))}},
		}})
		return err
	}
	denied := func(err error) bool {
		e, _, _ := api.FromStatus("test", err)
		return err != nil && e.Kind == rhumb.PermissionDenied
	}
	// Names of several ranges, so that each node forwards some.
	for _, n := range nodes {
		for i := range 8 {
			retry(t, func(context.Context) error { return write(n, fmt.Sprintf("a/%d", i)) })
			if err := write(n, fmt.Sprintf("b/%d", i)); !denied(err) {
				t.Errorf("ann writes b/%d through %s: %v", i, n.Identity().Node, err)
			}
		}
	}
	// A client cannot speak for another, and a node cannot pass an insecure caller on.
	q := &rhumbpb.Request{
		Principal: &rhumbpb.Principal{Kind: rhumbpb.PrincipalKind_PRINCIPAL_KIND_OPERATOR, Name: "ops"},
		Read:      &rhumbpb.Read{Table: table.Id, Resolve: true, Names: [][]byte{[]byte("a/1")}},
	}
	forward := func(who api.Credentials) (*rhumbpb.Response, error) {
		conn, err := api.Connect(nodes[1].Addr(), nil, who)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return rhumbpb.NewPeerClient(conn).Forward(t.Context(), q)
	}
	if _, err := forward(ann.ClientCredentials(wantNode)); !denied(err) {
		t.Errorf("a user forwards: %v", err)
	}
	if _, err := forward(a.Operator(t, "ops").Source(t).ClientCredentials(wantNode)); !denied(err) {
		t.Errorf("an operator forwards: %v", err)
	}
	q.Principal.Kind, q.Principal.Name = rhumbpb.PrincipalKind_PRINCIPAL_KIND_INSECURE, ""
	if resp, err := forward(nodes[0].peerCredentials("")); err != nil || resp.Error == nil {
		t.Errorf("a node passes an insecure caller on: %v, %v", resp, err)
	}
	change(catalog.AlterGrant{Role: "writer", Scope: scope, Remove: access.Write})
	for _, n := range nodes {
		retry(t, func(context.Context) error {
			if err := write(n, "a/1"); !denied(err) {
				return fmt.Errorf("ann still writes: %v", err)
			}
			return nil
		})
	}
}
