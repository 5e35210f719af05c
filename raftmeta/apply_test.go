package raftmeta

import (
	"fmt"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestEntriesCompileNoPolicy guards that an entry about a role costs no work for each user. A node that started again in a cluster
// with 10,000 users compiled their policy for each entry of its log, and was fenced before it had finished, again and again.
func TestEntriesCompileNoPolicy(t *testing.T) {
	const users = 2_000
	s, _, _ := catalog.New().Apply(catalog.Init{Cluster: rhumb.UUID{7}, First: registration(1, 1)})
	s, _, _ = s.Apply(catalog.CreateRole{Name: "reader"})
	for i := range users {
		s, _, _ = s.ApplyDeferred(catalog.CreateUser{Name: fmt.Sprintf("user-%d", i), Roles: []string{"reader"}})
	}
	d := &driver{state: s.WithPolicy()}
	n := 0
	allocs := testing.AllocsPerRun(20, func() {
		n++
		grant := catalog.AlterGrant{Role: "reader", Scope: access.Scope{Table: fmt.Sprintf("t%d", n)}, Add: access.Read}
		e := &raftpb.Entry{Index: proto.Uint64(uint64(n)), Data: encodeProposal(proposalID{}, grant)}
		if _, _, err := d.applyEntry(e); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > users/4 {
		t.Errorf("an entry allocates %.0f times in a cluster with %d users", allocs, users)
	}
	if policy := d.state.WithPolicy().Access(); !policy.Allows(access.Principal{Kind: access.KindUser, Name: "user-1"}, access.Read, fmt.Sprintf("t%d", n), nil) {
		t.Error("the policy lacks the last grant")
	}
}
