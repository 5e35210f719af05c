package node

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// brokenMember is a registered node in the hands of a stranger: it has the certificate of the node and speaks
// the protocol.
type brokenMember struct {
	t     *testing.T
	hello *rhumbpb.PeerHello
	peer  rhumbpb.PeerClient
}

// propose sends a command to the metadata leader as members do, and returns the refusal.
func (b *brokenMember) propose(cmd catalog.Command) (catalog.Result, error) {
	b.t.Helper()
	// The first byte is the kind of the request, or that of the answer.
	resp, err := b.peer.Metadata(b.t.Context(), &rhumbpb.MetadataRequest{Hello: b.hello, Request: append([]byte{1}, catalog.EncodeCommand(cmd)...)})
	if err != nil {
		err, _, _ := api.FromStatus("test", err)
		return catalog.Result{}, err
	}
	res, err := catalog.DecodeResult(resp.Response[1:])
	if err != nil {
		b.t.Fatal(err)
	}
	return res, res.Err()
}

// signAs returns a registration with the proof of a certificate at a time.
func signAs(t *testing.T, src *identity.Source, c catalog.RegisterNode, at time.Time) catalog.RegisterNode {
	t.Helper()
	sig, err := src.Sign(registrationText(src.Cluster(), c, at.UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	c.Proof = &catalog.RegistrationProof{At: at.UnixNano(), Chain: sig.Chain, Signature: sig.Bytes}
	return c
}

// TestRegistrationIsSigned guards that a registered node, broken into, cannot register a name of its choice, begin a
// life of another node or claim one without a name, that it cannot alter, postpone or usefully repeat what another
// node signed, and that a member passes on only what the joining node signed.
func TestRegistrationIsSigned(t *testing.T) {
	a := identitytest.New(t)
	leader := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	if _, _, err := leader.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := startSecure(t, a, filepath.Join(t.TempDir(), "n2"), "eu-2", leader.Addr())
	awaitReady(t, leader, second)
	own := a.Node(t, "eu-2").Source(t)
	conn, err := api.Connect(leader.Addr(), nil, own.ClientCredentials(wantNode))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cluster := leader.Identity().Cluster
	broken := &brokenMember{t, &rhumbpb.PeerHello{Protocol: api.Protocol, Cluster: cluster[:], Identity: api.EncodeIdentity(second.currentMember().self)}, rhumbpb.NewPeerClient(conn)}

	victim, _ := leader.State().Node(leader.Identity().Node)
	restart := leader.registerCommand()
	restart.Boot, restart.Nonce, restart.Previous = victim.Boot+1, 77, leader.life.Nonce
	fresh := catalog.RegisterNode{
		Binary: rhumb.ThisBuild("test").String(), Store: rhumb.UUID{7}, Boot: 1, Nonce: 7, Region: "singapore", Zone: "z", HasLocation: true, Location: rhumb.Point{Lat: 1, Lon: 2},
		Addr: "127.0.0.1:1", HeartbeatAddr: "127.0.0.1:2", AdminAddr: "127.0.0.1:3", Name: "eu-7",
	}
	nameless := fresh
	nameless.Name = ""
	seventh, now := a.Node(t, "eu-7").Source(t), time.Now()
	signed := signAs(t, seventh, fresh, now)
	alter := func(change func(*catalog.RegisterNode)) catalog.RegisterNode {
		c := signed
		proof := *signed.Proof
		c.Proof = &proof
		change(&c)
		return c
	}
	gone := a.Node(t, "eu-7")
	leader.source.SetTrust(identity.Trust{Revoked: []identity.Revoked{{Authority: identity.AuthorityOf(a.Cert), Serial: identity.SerialOf(gone.Cert)}}})
	before := leader.State().Revision()
	for _, tc := range []struct {
		what string
		cmd  catalog.Command
		want rhumb.Kind
	}{
		{"a new life of another node, not signed", restart, rhumb.Unauthenticated},
		{"a new life of another node, signed by the member", signAs(t, own, restart, now), rhumb.PermissionDenied},
		{"a new life of another node, signed by a stranger with its name", signAs(t, identitytest.NewFor(t, cluster).Node(t, "eu-1").Source(t), restart, now), rhumb.Unauthenticated},
		{"a new name, not signed", fresh, rhumb.Unauthenticated},
		{"a new name, signed by the member", signAs(t, own, fresh, now), rhumb.PermissionDenied},
		{"a new name, signed by a user of that name", signAs(t, a.User(t, "eu-7").Source(t), fresh, now), rhumb.Unauthenticated},
		{"a new name of another cluster", signAs(t, identitytest.New(t).Node(t, "eu-7").Source(t), fresh, now), rhumb.WrongCluster},
		{"a revoked certificate", signAs(t, gone.Source(t), fresh, now), rhumb.Unauthenticated},
		{"no name", nameless, rhumb.Unauthenticated},
		{"no name, signed by the member", signAs(t, own, nameless, now), rhumb.PermissionDenied},
		{"a new life of another node in a batch", catalog.Batch{Commands: []catalog.Command{catalog.CreateRole{Name: "r"}, restart}}, rhumb.Unauthenticated},
		{"signed long ago", signAs(t, seventh, fresh, now.Add(-registrationAgeMax-5*time.Second)), rhumb.Unauthenticated},
		{"signed by a clock that is a day ahead", signAs(t, seventh, fresh, now.Add(24*time.Hour)), rhumb.Unauthenticated},
		{"a later time", alter(func(c *catalog.RegisterNode) { c.Proof.At++ }), rhumb.Unauthenticated},
		{"another address", alter(func(c *catalog.RegisterNode) { c.Addr = "127.0.0.1:9" }), rhumb.Unauthenticated},
		{"another nonce", alter(func(c *catalog.RegisterNode) { c.Nonce++ }), rhumb.Unauthenticated},
		{"another node", alter(func(c *catalog.RegisterNode) { c.Node = victim.ID }), rhumb.Unauthenticated},
		{"another store", alter(func(c *catalog.RegisterNode) { c.Store[0]++ }), rhumb.Unauthenticated},
		{"a byte that moves between fields", alter(func(c *catalog.RegisterNode) { c.Region, c.Zone = "singapor", "ez" }), rhumb.Unauthenticated},
		{"a chain of garbage", alter(func(c *catalog.RegisterNode) { c.Proof.Chain = [][]byte{{1, 2, 3}} }), rhumb.Unauthenticated},
		{"no chain", alter(func(c *catalog.RegisterNode) { c.Proof.Chain = nil }), rhumb.Unauthenticated},
	} {
		if _, err := broken.propose(tc.cmd); rhumb.KindOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", tc.what, err, tc.want)
		}
	}
	if after := leader.State().Revision(); after != before {
		t.Errorf("the refused registrations moved the catalog from revision %d to %d", before, after)
	}

	// What the node itself signed is accepted, from whomever it comes, and a repetition changes nothing.
	res, err := broken.propose(signed)
	if err != nil {
		t.Fatal(err)
	}
	again, err := broken.propose(signed)
	if err != nil || again.Node != res.Node || again.Life != res.Life {
		t.Errorf("the repeated registration: %v, %v; want node %s in life %d", again, err, res.Node, res.Life)
	}
	next := fresh
	next.Node, next.Boot, next.Nonce, next.Previous = res.Node, 2, 8, 7
	if _, err := broken.propose(signAs(t, seventh, next, time.Now())); err != nil {
		t.Fatal(err)
	}
	if _, err := broken.propose(signed); rhumb.KindOf(err) != rhumb.Conflict {
		t.Errorf("the registration of an earlier life: %v, want conflict", err)
	}
	if d, _ := leader.State().Node(res.Node); d.Boot != 2 || d.Name != "eu-7" {
		t.Errorf("node %s is in life %d with the name %q", d.ID, d.Boot, d.Name)
	}

	// The member that a node asks to join.
	joiner := a.Node(t, "eu-8").Source(t)
	eighth := fresh
	eighth.Store, eighth.Name, eighth.Addr = rhumb.UUID{8}, "eu-8", "127.0.0.8:1"
	for _, tc := range []struct {
		what string
		cmd  catalog.RegisterNode
		want rhumb.Kind
	}{
		{"not signed", eighth, rhumb.Unauthenticated},
		{"signed by another", signAs(t, seventh, eighth, time.Now()), rhumb.PermissionDenied},
		{"the registration of another", signed, rhumb.Unauthenticated},
		{"signed by the caller", signAs(t, joiner, eighth, time.Now()), rhumb.Other},
	} {
		conn, err := api.Connect(second.Addr(), nil, joiner.ClientCredentials(wantNode))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		c := tc.cmd
		_, err = rhumbpb.NewClusterClient(conn).Join(t.Context(), &rhumbpb.JoinRequest{
			Cluster: api.EncodeUUID(c.Cluster), Identity: api.EncodeIdentity(rhumb.NodeIdentity{Node: c.Node, Store: c.Store, Boot: c.Boot}), Nonce: c.Nonce,
			RegionName: c.Region, Node: &rhumbpb.Node{Zone: c.Zone, Location: api.EncodePoint(c.Location), Addr: c.Addr, HeartbeatAddr: c.HeartbeatAddr, AdminAddr: c.AdminAddr, Binary: c.Binary},
			Proof: encodeProof(c.Proof),
		})
		if err != nil {
			err, _, _ = api.FromStatus("test", err)
		}
		if got := rhumb.KindOf(err); got != tc.want || err == nil != (tc.want == rhumb.Other) {
			t.Errorf("join, %s: %v, want %s", tc.what, err, tc.want)
		}
	}
}

// BenchmarkSignRegistration and BenchmarkVerifyRegistration measure what a signature costs its two sides. Relayed
// messages are signed and verified by the same functions.
func BenchmarkSignRegistration(b *testing.B) {
	src := identitytest.New(b).Node(b, "eu-1").Source(b)
	text := registrationText(src.Cluster(), catalog.RegisterNode{Name: "eu-1"}, 1)
	for b.Loop() {
		if _, err := src.Sign(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerifyRegistration(b *testing.B) {
	src := identitytest.New(b).Node(b, "eu-1").Source(b)
	text := registrationText(src.Cluster(), catalog.RegisterNode{Name: "eu-1"}, 1)
	sig, err := src.Sign(text)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := src.Verifier().VerifySigned(text, sig, wantNode, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}
