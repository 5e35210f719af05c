package node

import (
	"crypto/x509"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// trusts reports whether a node accepts certificates of an authority.
func trusts(n *Node, a *identitytest.Authority) bool {
	return slices.ContainsFunc(n.source.Verifier().Authorities, a.Cert.Equal)
}

// signTrust returns the proof of an operator.
func signTrust(t *testing.T, operator *identitytest.Issued, cert *x509.Certificate) []byte {
	t.Helper()
	proof, err := operator.Source(t).SignTrust(cert)
	if err != nil {
		t.Fatal(err)
	}
	return proof
}

// TestTrustTakesAnOperator guards that a registered node, broken into, cannot make nodes trust an authority of its
// own, whatever it puts into the metadata, that an operator can, and that nothing ends a distrust.
func TestTrustTakesAnOperator(t *testing.T) {
	a := identitytest.New(t)
	leader := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	if _, _, err := leader.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := startSecure(t, a, filepath.Join(t.TempDir(), "n2"), "eu-2", leader.Addr())
	awaitReady(t, leader, second)
	conn, err := api.Connect(leader.Addr(), nil, a.Node(t, "eu-2").Source(t).ClientCredentials(wantNode))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cluster := leader.Identity().Cluster
	broken := &brokenMember{t, &rhumbpb.PeerHello{Protocol: api.Protocol, Cluster: cluster[:], Identity: api.EncodeIdentity(second.currentMember().self)}, rhumbpb.NewPeerClient(conn)}

	heir, ann := identitytest.NewFor(t, a.Cluster), a.Operator(t, "ann")
	good := signTrust(t, ann, heir.Cert)
	var rogues []*identitytest.Authority
	for what, proof := range map[string]func(rogue *identitytest.Authority) []byte{
		"no proof":             func(*identitytest.Authority) []byte { return nil },
		"garbage":              func(*identitytest.Authority) []byte { return []byte("signed") },
		"its own operator":     func(r *identitytest.Authority) []byte { return signTrust(t, r.Operator(t, "ann"), r.Cert) },
		"the proof of another": func(*identitytest.Authority) []byte { return good },
		"another cluster's ann": func(r *identitytest.Authority) []byte {
			return signTrust(t, identitytest.New(t).Operator(t, "ann"), r.Cert)
		},
		"an operator of the last": func(r *identitytest.Authority) []byte { return signTrust(t, rogues[0].Operator(t, "eve"), r.Cert) },
	} {
		rogue := identitytest.NewFor(t, a.Cluster)
		rogues = append(rogues, rogue)
		res, err := broken.propose(catalog.SetTrust{Trust: []rhumb.Authority{{Fingerprint: identity.AuthorityOf(rogue.Cert), Cert: rogue.Cert.Raw, Proof: proof(rogue)}}})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, n := range []*Node{leader, second} {
			await(t, "the metadata", func() bool { return n.State().Revision() >= res.Revision && len(n.source.Ignored()) == len(rogues) })
			if trusts(n, rogue) {
				t.Errorf("%s: %s trusts the authority of a stranger", what, n.ownName())
			}
		}
	}
	eve := rogues[0].Operator(t, "eve")
	eve.CA = []*x509.Certificate{a.Cert, rogues[0].Cert}
	if _, err := rhumbpb.NewClusterClient(dialAs(t, leader, eve.Source(t))).Ping(t.Context(), &rhumbpb.PingRequest{}); err == nil {
		t.Error("an operator of the stranger is served")
	}
	listed, err := rhumbpb.NewSecurityClient(dialAs(t, leader, ann.Source(t))).ListCertificates(t.Context(), &rhumbpb.ListCertificatesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range listed.Authorities {
		if rogue := info.Fingerprint != identity.AuthorityOf(a.Cert); rogue != (len(info.IgnoredBy) == 2) {
			t.Errorf("authority %.16s is ignored by %v", info.Fingerprint, info.IgnoredBy)
		}
	}

	// The service refuses early, and says who may.
	set := func(who *identitytest.Issued, q *rhumbpb.SetTrustRequest) error {
		_, err := rhumbpb.NewSecurityClient(dialAs(t, second, who.Source(t))).SetTrust(t.Context(), q)
		if err != nil {
			err, _, _ = api.FromStatus("test", err)
		}
		return err
	}
	for what, proofs := range map[string][][]byte{"no proof": nil, "a stranger's": {signTrust(t, rogues[0].Operator(t, "eve"), heir.Cert)}} {
		err := set(ann, &rhumbpb.SetTrustRequest{Trust: [][]byte{heir.Cert.Raw}, Proofs: proofs})
		if rhumb.KindOf(err) != rhumb.PermissionDenied || !strings.Contains(err.Error(), "rhumb authority operator") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := set(ann, &rhumbpb.SetTrustRequest{Trust: [][]byte{heir.Cert.Raw}, Proofs: [][]byte{good}}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*Node{leader, second} {
		await(t, "the trust of an operator", func() bool { return trusts(n, heir) })
	}

	// What the operator signed before it was revoked counts, and what it signs afterwards does not, whatever
	// time it claims.
	if _, err := broken.propose(catalog.RevokeCertificate{Revocation: rhumb.Revocation{Authority: identity.AuthorityOf(a.Cert), Serial: identity.SerialOf(ann.Cert), NotAfter: ann.Cert.NotAfter, At: ann.Cert.NotBefore}}); err != nil {
		t.Fatal(err)
	}
	late := identitytest.NewFor(t, a.Cluster)
	rogues = append(rogues, late)
	if _, err := broken.propose(catalog.SetTrust{Trust: []rhumb.Authority{{Fingerprint: identity.AuthorityOf(late.Cert), Cert: late.Cert.Raw, Proof: signTrust(t, ann, late.Cert)}}}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*Node{leader, second} {
		await(t, "the metadata", func() bool { return len(n.source.Ignored()) == len(rogues) })
		if trusts(n, late) || !trusts(n, heir) {
			t.Errorf("%s trusts the late authority: %v, the first: %v", n.ownName(), trusts(n, late), trusts(n, heir))
		}
	}

	// A revocation from the future would make the metadata forget the others.
	ahead := rhumb.Revocation{Serial: "1f", At: ann.Cert.NotAfter.Add(2 * rhumb.RevokedKeep)}
	for _, cmd := range []catalog.Command{catalog.RevokeCertificate{Revocation: ahead}, catalog.Batch{Commands: []catalog.Command{catalog.RevokeCertificate{Revocation: ahead}}}} {
		if _, err := broken.propose(cmd); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("a revocation from the future: %v", err)
		}
	}

	// The stranger can repeat what the operator signed, and it changes nothing.
	distrust := catalog.SetTrust{Distrust: []string{identity.AuthorityOf(heir.Cert)}}
	if _, err := broken.propose(distrust); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*Node{leader, second} {
		await(t, "the distrust", func() bool { return !trusts(n, heir) })
	}
	if _, err := broken.propose(catalog.SetTrust{Trust: []rhumb.Authority{{Fingerprint: identity.AuthorityOf(heir.Cert), Cert: heir.Cert.Raw, Proof: good}}}); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("trust in a distrusted authority: %v", err)
	}
}
