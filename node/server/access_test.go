package server

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestOwnPassword guards what a user may change of itself: the password that it has, and nothing else. Users see only
// themselves, and nobody sees a verifier.
func TestOwnPassword(t *testing.T) {
	key := bytes.Repeat([]byte("SECRETKEY"), 4)[:access.KeySize]
	v := access.Verifier{Iterations: access.IterationsMin, Salt: []byte("SECRETSALT"), StoredKey: key, ServerKey: key}
	n, _ := startCluster(t)
	n.st = applyAll(t, peopled(t), catalog.SetUser{Name: "bob", Verifier: &v})
	c := rhumbpb.NewAccessClient(serveWith(t, n.State, func(s *grpc.Server) { NewAccess(n).Register(s) }))
	next := api.EncodeVerifier(v)
	next.Iterations++
	for _, tt := range []struct {
		what, who string
		q         *rhumbpb.AlterUserRequest
		want      rhumb.Kind
	}{
		{"own password", "user/bob", &rhumbpb.AlterUserRequest{Name: "bob", Verifier: next}, rhumb.Other},
		{"password of another", "user/bob", &rhumbpb.AlterUserRequest{Name: "ann", Verifier: next}, rhumb.PermissionDenied},
		{"first password", "user/ann", &rhumbpb.AlterUserRequest{Name: "ann", Verifier: next}, rhumb.PermissionDenied},
		{"remove own password", "user/bob", &rhumbpb.AlterUserRequest{Name: "bob", RemovePassword: true}, rhumb.PermissionDenied},
		{"enable itself", "user/bob", &rhumbpb.AlterUserRequest{Name: "bob", Enable: true, Verifier: next}, rhumb.PermissionDenied},
		{"operator of the same name", "operator/bob", &rhumbpb.AlterUserRequest{Name: "bob", Verifier: next}, rhumb.Other},
		{"monitor", "user/mon", &rhumbpb.AlterUserRequest{Name: "bob", Verifier: next}, rhumb.PermissionDenied},
		{"contradiction", "user/adm", &rhumbpb.AlterUserRequest{Name: "bob", Enable: true, Disable: true}, rhumb.InvalidArgument},
		{"short key", "user/adm", &rhumbpb.AlterUserRequest{Name: "bob", Verifier: &rhumbpb.Verifier{Iterations: 4096, Salt: key, StoredKey: key[:1], ServerKey: key}}, rhumb.InvalidArgument},
		{"disabled admin", "user/dis", &rhumbpb.AlterUserRequest{Name: "dis", Enable: true}, rhumb.PermissionDenied},
	} {
		if _, err := c.AlterUser(as(t, tt.who), tt.q); kindOf(t, err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.what, err, tt.want)
		}
	}
	for who, want := range map[string]int{"user/bob": 1, "user/mon": 1, "user/adm": 8, "operator/x": 8, "node/eu-1": 0} {
		users, err := c.ListUsers(as(t, who), &rhumbpb.ListUsersRequest{})
		if err != nil || len(users.Users) != want || strings.Contains(users.String(), "SECRET") {
			t.Errorf("%s sees %v, %v; want %d users", who, users, err, want)
		}
	}
	roles, err := c.ListRoles(as(t, "user/bob"), &rhumbpb.ListRolesRequest{})
	if err != nil || len(roles.Roles) != 1 || roles.Roles[0].Name != "writer" || len(roles.Roles[0].Users) != 0 {
		t.Errorf("bob sees the roles %v, %v", roles, err)
	}
	me, err := c.WhoAmI(as(t, "user/bob"), &rhumbpb.WhoAmIRequest{})
	if err != nil || me.Unlimited || len(me.Grants) != 2 || me.User.GetName() != "bob" || strings.Contains(me.String(), "SECRET") {
		t.Errorf("bob is %v, %v", me, err)
	}
}

// TestRevokeOfNothing guards that a revocation without effect is refused, with the grants that were probably meant, and that a change
// that also adds rights is not.
func TestRevokeOfNothing(t *testing.T) {
	n, _ := startCluster(t)
	n.st = peopled(t)
	c := rhumbpb.NewAccessClient(serveWith(t, n.State, func(s *grpc.Server) { NewAccess(n).Register(s) }))
	for _, tt := range []struct {
		what, role, prefix string
		add, remove        access.Rights
		want               rhumb.Kind
		says               string
	}{
		{"wider scope", "writer", "", 0, access.Write, rhumb.NotFound, "it has write for names that begin with a/ in table flights, write for names that begin with b/ in table flights"},
		{"narrower scope", "writer", "a/b", 0, access.Write, rhumb.NotFound, "it has write for names that begin with a/ in table flights"},
		{"other rights", "writer", "a/", 0, access.Delete, rhumb.NotFound, "nothing was revoked"},
		{"no role", "nobody", "a/", 0, access.Delete, rhumb.NotFound, "nobody"},
		{"exchange", "writer", "c/", access.Read, access.Write, rhumb.Other, ""},
		{"some of the rights", "writer", "b/", 0, access.Write | access.Delete, rhumb.Other, ""},
		{"the same again", "writer", "b/", 0, access.Write | access.Delete, rhumb.NotFound, "nothing was revoked"},
	} {
		_, err := c.AlterGrant(as(t, "operator/x"), &rhumbpb.AlterGrantRequest{
			Role: tt.role, Scope: api.EncodeScope(access.Scope{Table: "flights", Prefix: tt.prefix}), Add: uint32(tt.add), Remove: uint32(tt.remove),
		})
		if kindOf(t, err) != tt.want || tt.says != "" && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %s with %q", tt.what, err, tt.want, tt.says)
		}
	}
}
