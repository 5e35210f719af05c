package server

import (
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// TestChooseRevoked checks which certificates a request to revoke means.
func TestChooseRevoked(t *testing.T) {
	cert := func(role, name, serial string) *rhumbpb.Certificate {
		return &rhumbpb.Certificate{Role: role, Name: name, Serial: serial, NotAfter: 99}
	}
	listed := &rhumbpb.ListCertificatesResponse{Nodes: []*rhumbpb.NodeIdentityReport{
		{Node: 1, Certificate: cert("node", "eu-1", "a1"), Clients: []*rhumbpb.Certificate{cert("user", "tower", "b1"), cert("user", "eu-1", "b2")}},
		{Node: 2, Certificate: cert("node", "eu-2", "a2"), Clients: []*rhumbpb.Certificate{cert("user", "tower", "b1"), cert("user", "tower", "b3")}},
		{Node: 3, Error: "away"},
	}}
	// Two authorities that count from one.
	aa, bb := strings.Repeat("a", 64), strings.Repeat("b", 64)
	issued := func(authority, role, name, serial string) *rhumbpb.Certificate {
		c := cert(role, name, serial)
		c.Authority = authority
		return c
	}
	listed.Authorities = []*rhumbpb.AuthorityInfo{{Fingerprint: aa}, {Fingerprint: bb}}
	listed.Nodes = append(listed.Nodes, &rhumbpb.NodeIdentityReport{
		Node: 4, Certificate: issued(aa, "node", "eu-4", "1"), Clients: []*rhumbpb.Certificate{issued(bb, "user", "ship", "1"), issued(bb, "user", "ship", "2")},
	})
	for _, tt := range []struct {
		what string
		q    *rhumbpb.RevokeCertificateRequest
		want string // serial numbers, with their issuers if they have one
		kind rhumb.Kind
	}{
		{"a serial number", &rhumbpb.RevokeCertificateRequest{Serial: "A2"}, "a2", 0},
		{"a serial number that nobody uses", &rhumbpb.RevokeCertificateRequest{Serial: "0x00:ff"}, "ff", 0},
		{"a node, not the user of that name", &rhumbpb.RevokeCertificateRequest{NodeName: "eu-1"}, "a1", 0},
		{"a user, by name", &rhumbpb.RevokeCertificateRequest{UserName: "tower"}, "user tower before 6", 0},
		{"an operator that nobody saw", &rhumbpb.RevokeCertificateRequest{OperatorName: "ann"}, "operator ann before 6", 0},
		{"no name of a user", &rhumbpb.RevokeCertificateRequest{UserName: "a b"}, "", rhumb.InvalidArgument},
		{"a node that nobody saw", &rhumbpb.RevokeCertificateRequest{NodeName: "eu-9"}, "", rhumb.NotFound},
		{"a number that two authorities use", &rhumbpb.RevokeCertificateRequest{Serial: "1"}, "", rhumb.InvalidArgument},
		{"the same of one authority", &rhumbpb.RevokeCertificateRequest{Serial: "1", Authority: "BBBBBBBBBB"}, "1/bb", 0},
		{"a number that one authority uses", &rhumbpb.RevokeCertificateRequest{Serial: "2"}, "2/bb", 0},
		{"an unused number of an authority", &rhumbpb.RevokeCertificateRequest{Serial: "9", Authority: "aaaaaaaa"}, "9/aa", 0},
		{"an unused number of an unknown authority", &rhumbpb.RevokeCertificateRequest{Serial: "9", Authority: strings.Repeat("c", 64)}, "9/cc", 0},
		{"digits of no authority", &rhumbpb.RevokeCertificateRequest{Serial: "9", Authority: "cccccccc"}, "", rhumb.NotFound},
		{"too few digits", &rhumbpb.RevokeCertificateRequest{Serial: "9", Authority: "a"}, "", rhumb.InvalidArgument},
		{"the certificate of a node, with its issuer", &rhumbpb.RevokeCertificateRequest{NodeName: "eu-4"}, "1/aa", 0},
		{"an issuer with a name", &rhumbpb.RevokeCertificateRequest{UserName: "ship", Authority: bb}, "", rhumb.InvalidArgument},
		{"nothing", &rhumbpb.RevokeCertificateRequest{}, "", rhumb.InvalidArgument},
		{"two things", &rhumbpb.RevokeCertificateRequest{Serial: "a1", NodeName: "eu-1"}, "", rhumb.InvalidArgument},
		{"no number", &rhumbpb.RevokeCertificateRequest{Serial: "xyz"}, "", rhumb.InvalidArgument},
	} {
		got, err := chooseRevoked(tt.q, listed, time.Unix(5, 1), true)
		var serials []string
		for _, r := range got {
			if r.Serial == "" {
				r.Serial = fmt.Sprintf("%s before %d", r.Name, r.At.Unix())
			}
			if r.Authority != "" {
				r.Serial += fmt.Sprintf("/%.2s", r.Authority)
			}
			serials = append(serials, r.Serial)
		}
		if strings.Join(serials, " ") != tt.want || rhumb.KindOf(err) != tt.kind {
			t.Errorf("%s: %v, %v; want %q, %s", tt.what, serials, err, tt.want, tt.kind)
		}
	}
}

// TestRefuseThisNode guards that a node refuses to revoke its own certificate, with an error on which clients ask another node. Once it
// revoked it, was cut off and never answered.
func TestRefuseThisNode(t *testing.T) {
	nodes := []*rhumbpb.NodeIdentityReport{
		{Node: 1, Name: "eu-1", Certificate: &rhumbpb.Certificate{Serial: "a1", Authority: "aa"}},
		{Node: 2, Name: "eu-2", Certificate: &rhumbpb.Certificate{Serial: "a2", Authority: "aa"}},
		{Node: 3, Name: "eu-3"}, // did not answer
	}
	for _, tt := range []struct {
		what    string
		self    rhumb.NodeID
		revoked rhumb.Revocation
		want    rhumb.Kind
	}{
		{"its own", 1, rhumb.Revocation{Serial: "a1"}, rhumb.Unavailable},
		{"its own, with the issuer", 1, rhumb.Revocation{Serial: "a1", Authority: "aa"}, rhumb.Unavailable},
		{"the same number of another authority", 1, rhumb.Revocation{Serial: "a1", Authority: "bb"}, rhumb.Other},
		{"that of another node", 1, rhumb.Revocation{Serial: "a2"}, rhumb.Other},
		{"without a certificate", 3, rhumb.Revocation{Serial: "a1"}, rhumb.Other},
		{"a name", 1, rhumb.Revocation{Name: "user eu-1"}, rhumb.Other},
	} {
		if err := refuseThisNode([]rhumb.Revocation{tt.revoked}, tt.self, nodes); rhumb.KindOf(err) != tt.want || (err == nil) != (tt.want == rhumb.Other) {
			t.Errorf("%s: %v, want %s", tt.what, err, tt.want)
		}
	}
}

// TestChooseRevokedOfMixedBuilds guards that a user can be revoked before the cluster version has revocations by name: then the
// certificates count that nodes report.
func TestChooseRevokedOfMixedBuilds(t *testing.T) {
	listed := &rhumbpb.ListCertificatesResponse{Nodes: []*rhumbpb.NodeIdentityReport{{
		Node: 1, Clients: []*rhumbpb.Certificate{{Role: "user", Name: "tower", Serial: "b1"}, {Role: "user", Name: "tower", Serial: "b3"}},
	}}}
	got, err := chooseRevoked(&rhumbpb.RevokeCertificateRequest{UserName: "tower"}, listed, time.Unix(5, 1), false)
	if err != nil || len(got) != 2 || got[0].Serial != "b1" || got[1].Serial != "b3" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := chooseRevoked(&rhumbpb.RevokeCertificateRequest{UserName: "app"}, listed, time.Unix(5, 1), false); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("a user that no node reports: %v", err)
	}
}

// TestChooseTrust guards that an authority that nodes rely on is not rejected by mistake, and that only
// authorities are trusted.
func TestChooseTrust(t *testing.T) {
	old, next := identitytest.New(t), identitytest.New(t)
	inUse, unused := identity.AuthorityOf(old.Cert), identity.AuthorityOf(next.Cert)
	listed := &rhumbpb.ListCertificatesResponse{
		Nodes:       []*rhumbpb.NodeIdentityReport{{Node: 1, Certificate: &rhumbpb.Certificate{Authority: inUse}}},
		Authorities: []*rhumbpb.AuthorityInfo{{Fingerprint: inUse}, {Fingerprint: unused}},
	}
	silent := &rhumbpb.ListCertificatesResponse{Nodes: []*rhumbpb.NodeIdentityReport{{Node: 2, Error: "away"}}, Authorities: listed.Authorities}
	operator := old.Operator(t, "ann").Source(t)
	server := old.Node(t, "eu-1").Source(t)
	sign := func(src *identity.Source, cert *x509.Certificate) [][]byte {
		proof, err := src.SignTrust(cert)
		if err != nil {
			t.Fatal(err)
		}
		return [][]byte{proof}
	}
	good := sign(operator, next.Cert)
	for _, tt := range []struct {
		what string
		q    *rhumbpb.SetTrustRequest
		in   *rhumbpb.ListCertificatesResponse
		kind rhumb.Kind
	}{
		{"an authority", &rhumbpb.SetTrustRequest{Trust: [][]byte{next.Cert.Raw}, Proofs: good}, listed, 0},
		{"an authority without a proof", &rhumbpb.SetTrustRequest{Trust: [][]byte{next.Cert.Raw}}, listed, rhumb.PermissionDenied},
		{"a proof for another", &rhumbpb.SetTrustRequest{Trust: [][]byte{identitytest.New(t).Cert.Raw}, Proofs: good}, listed, rhumb.PermissionDenied},
		{"two authorities, one proof", &rhumbpb.SetTrustRequest{Trust: [][]byte{next.Cert.Raw, identitytest.New(t).Cert.Raw}, Proofs: good}, listed, rhumb.PermissionDenied},
		{"a proof of another cluster", &rhumbpb.SetTrustRequest{Trust: [][]byte{next.Cert.Raw}, Proofs: sign(next.Operator(t, "eve").Source(t), next.Cert)}, listed, rhumb.PermissionDenied},
		{"a certificate of a node", &rhumbpb.SetTrustRequest{Trust: [][]byte{next.Node(t, "eu-1").Cert.Raw}}, listed, rhumb.InvalidArgument},
		{"no certificate", &rhumbpb.SetTrustRequest{Trust: [][]byte{{1, 2}}}, listed, rhumb.InvalidArgument},
		{"nothing", &rhumbpb.SetTrustRequest{}, listed, rhumb.InvalidArgument},
		{"distrust of an unused one", &rhumbpb.SetTrustRequest{Distrust: []string{unused[:8]}}, listed, 0},
		{"distrust of one in use", &rhumbpb.SetTrustRequest{Distrust: []string{inUse}}, listed, rhumb.InvalidArgument},
		{"distrust of one in use, by force", &rhumbpb.SetTrustRequest{Distrust: []string{inUse}, Force: true}, listed, 0},
		{"distrust while a node is silent", &rhumbpb.SetTrustRequest{Distrust: []string{unused}}, silent, rhumb.Unavailable},
		{"too few digits", &rhumbpb.SetTrustRequest{Distrust: []string{unused[:4]}}, listed, rhumb.InvalidArgument},
		{"an unknown one", &rhumbpb.SetTrustRequest{Distrust: []string{"0123456789"}}, listed, rhumb.NotFound},
	} {
		if _, err := chooseTrust(tt.q, tt.in, server.CheckTrust); rhumb.KindOf(err) != tt.kind || err == nil != (tt.kind == 0) {
			t.Errorf("%s: %v, want %s", tt.what, err, tt.kind)
		}
	}
}
