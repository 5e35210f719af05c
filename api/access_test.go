package api

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// TestPrincipalOnTheWire guards forwarding: users, operators and insecure callers cross the wire, everything
// else arrives as nobody.
func TestPrincipalOnTheWire(t *testing.T) {
	for _, p := range []access.Principal{{}, {Kind: access.KindInsecure}, {Kind: access.KindUser, Name: "ann"}, {Kind: access.KindOperator, Name: "Ops.1"}} {
		if got := DecodePrincipal(EncodePrincipal(p)); got != p {
			t.Errorf("%v arrives as %v", p, got)
		}
	}
	for _, m := range []*rhumbpb.Principal{
		nil,
		{Kind: rhumbpb.PrincipalKind_PRINCIPAL_KIND_NODE, Name: "eu-1"},
		{Kind: rhumbpb.PrincipalKind_PRINCIPAL_KIND_USER},
		{Kind: rhumbpb.PrincipalKind_PRINCIPAL_KIND_OPERATOR, Name: "a/b"},
		{Kind: rhumbpb.PrincipalKind_PRINCIPAL_KIND_INSECURE, Name: "x"},
		{Kind: 260, Name: "ann"},
		{Kind: -1, Name: "ann"},
		{Kind: 4, Name: strings.Repeat("a", 64)},
	} {
		if got := DecodePrincipal(m); got != (access.Principal{}) {
			t.Errorf("%v is %v", m, got)
		}
	}
}

// FuzzDecodeAccess guards the decoders of what callers send about users and grants: what they accept is valid.
func FuzzDecodeAccess(f *testing.F) {
	for _, m := range []proto.Message{
		&rhumbpb.AlterGrantRequest{Role: "r", Scope: &rhumbpb.Scope{Table: "t", Prefix: []byte("p")}, Add: 3},
		&rhumbpb.AlterGrantRequest{Scope: &rhumbpb.Scope{Cluster: true}, Add: 16, Remove: 1},
	} {
		b, _ := proto.Marshal(m)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var q rhumbpb.AlterGrantRequest
		if proto.Unmarshal(b, &q) == nil {
			if s, err := DecodeScope(q.Scope); err == nil && s.Validate() != nil {
				t.Errorf("%v is invalid", s)
			}
			if r, err := DecodeRights(q.Add); err == nil && !access.TableRights.Has(r) {
				t.Errorf("%v are unknown", r)
			}
		}
		var u rhumbpb.CreateUserRequest
		if proto.Unmarshal(b, &u) == nil {
			if v, err := DecodeVerifier(u.Verifier); err == nil && !v.IsZero() && v.Validate() != nil {
				t.Error("an invalid verifier")
			}
		}
		var p rhumbpb.Principal
		if proto.Unmarshal(b, &p) == nil {
			if who := DecodePrincipal(&p); who != (access.Principal{}) && !who.CanBeForwarded() {
				t.Errorf("%v was forwarded", who)
			}
		}
	})
}
