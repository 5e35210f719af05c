package node

import (
	"context"
	"crypto/x509"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// TestRevocationReachesAll guards that a revoked certificate loses its connections with every node, that a node which
// was away rejects it before it serves again, and prints how long a revocation takes.
func TestRevocationReachesAll(t *testing.T) {
	a := identitytest.New(t)
	nodes := startSecureRegion(t, a)
	operator := a.Operator(t, "ann").Source(t)
	table := createTable(t, nodes[0], "flights", 3)
	awaitInSync(t, nodes[0], 3)
	put(t, kvAs(t, nodes[0], operator), table.Id, "k", "v")

	away := nodes[2]
	dir := away.cfg.Dirs[0]
	away.Close()
	mallory := a.User(t, "mallory")
	var streams []rhumbpb.KV_StreamClient
	for _, n := range nodes[:2] {
		s, err := kvAs(t, n, mallory.Source(t)).Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
		await(t, "the connection", func() bool { return sees(n, mallory) })
	}
	// By name: also a certificate that no node has ever seen.
	hidden := a.User(t, "mallory")
	begin := time.Now()
	resp, err := rhumbpb.NewSecurityClient(dialAs(t, nodes[0], operator)).RevokeCertificate(t.Context(), &rhumbpb.RevokeCertificateRequest{UserName: "mallory", Why: "test"})
	if err != nil || len(resp.Revoked) != 1 || resp.Revoked[0].Name != "user mallory" || resp.Revoked[0].Serial != "" {
		t.Fatalf("revoked %v, %v", resp, err)
	}
	answered := time.Since(begin)
	for i, s := range streams {
		if _, err := s.Recv(); err == nil || err == io.EOF {
			t.Errorf("the stream with node %d ended with %v", i+1, err)
		}
		t.Logf("node %d ended the connection %v after the request; the answer took %v", i+1, time.Since(begin).Round(time.Millisecond), answered.Round(time.Millisecond))
		await(t, "the end of the connection", func() bool { return !sees(nodes[i], mallory) })
	}

	back := startSecure(t, a, dir, "eu-3", nodes[0].Addr())
	awaitReady(t, back)
	if _, err := back.source.Verifier().Verify(chainOf(mallory), wantClient, time.Now()); identity.ReasonOf(err) != identity.ReasonRevoked {
		t.Errorf("the node that was away, once it is ready: %v", err)
	}
	if _, err := rhumbpb.NewClusterClient(dialAs(t, back, mallory.Source(t))).Ping(t.Context(), &rhumbpb.PingRequest{}); err == nil {
		t.Error("the node that was away answers the revoked certificate")
	}
	if _, err := nodes[0].source.Verifier().Verify(chainOf(hidden), wantClient, time.Now()); identity.ReasonOf(err) != identity.ReasonRevoked {
		t.Errorf("a certificate of the user that no node had seen: %v", err)
	}
	// The connection with the answer would end before it.
	_, err = rhumbpb.NewSecurityClient(dialAs(t, nodes[0], operator)).RevokeCertificate(t.Context(), &rhumbpb.RevokeCertificateRequest{OperatorName: "ann"})
	if _, _, remote := api.FromStatus("test", err); !remote || !strings.Contains(err.Error(), "the certificate that you use") {
		t.Errorf("an operator revoked itself: %v", err)
	}
	// Another certificate of the same user, and the rest of the cluster, are not concerned.
	if _, err := back.source.Verifier().Verify(chainOf(a.User(t, "mallory")), wantClient, time.Now()); err != nil {
		t.Error(err)
	}
	awaitInSync(t, nodes[0], 3)
}

// chainOf returns the chain of an issued certificate.
func chainOf(i *identitytest.Issued) []*x509.Certificate { return []*x509.Certificate{i.Cert} }

// sees reports whether a node has a connection of a certificate.
func sees(n *Node, i *identitytest.Issued) bool {
	return slices.ContainsFunc(n.source.Bearers(), func(p identity.Peer) bool { return p.Serial == identity.SerialOf(i.Cert) })
}

// TestRevokedNodeReturns guards that a node whose certificate was revoked while it was down is refused when it
// starts, harms nobody meanwhile, and returns with another certificate and without a restart.
func TestRevokedNodeReturns(t *testing.T) {
	a := identitytest.New(t)
	nodes := startSecureRegion(t, a)
	operator := a.Operator(t, "ann").Source(t)
	table := createTable(t, nodes[0], "flights", 3)
	awaitInSync(t, nodes[0], 3)
	third := nodes[2]
	dir, leaf := third.cfg.Dirs[0], third.source.Leaf()
	third.Close()
	if _, err := rhumbpb.NewSecurityClient(dialAs(t, nodes[0], operator)).RevokeCertificate(t.Context(), &rhumbpb.RevokeCertificateRequest{
		Serial: identity.SerialOf(leaf), Authority: identity.AuthorityOf(a.Cert),
	}); err != nil {
		t.Fatal(err)
	}
	// secureConfig would write another certificate.
	back, err := Start(third.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(back.Close)
	time.Sleep(2 * time.Second)
	if back.Ready() == nil {
		t.Error("a node with a revoked certificate serves")
	}
	put(t, kvAs(t, nodes[0], operator), table.Id, "meanwhile", "v")
	await(t, "the revoked node to be fenced", func() bool {
		d, ok := nodes[0].State().NodeByName("eu-3")
		return ok && d.State == rhumb.NodeFenced
	})
	a.Node(t, "eu-3").WriteTo(t, DefaultIdentity(dir))
	retry(t, func(context.Context) error { return back.Ready() })
	if got := get(t, kvAs(t, back, operator), table.Id, "meanwhile"); got != "v" {
		t.Errorf("the node that returned reads %q", got)
	}
}
