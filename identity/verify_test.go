package identity_test

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

var wantNode = identity.Want{Roles: []identity.Role{identity.RoleNode}}

// TestVerify guards that each fault of a certificate is an error of its own, which says what was
// presented.
func TestVerify(t *testing.T) {
	a, foreign := identitytest.New(t), identitytest.New(t)
	same := identitytest.NewFor(t, a.Cluster) // an authority of the same cluster that is not trusted
	old := identitytest.NewFor(t, a.Cluster)
	now := time.Now()
	revoked := a.Node(t, "eu-1")
	v := &identity.Verifier{
		Cluster: a.Cluster, Authorities: []*x509.Certificate{a.Cert, old.Cert},
		Revoked:    map[identity.Revoked]bool{{Serial: identity.SerialOf(revoked.Cert)}: true},
		Distrusted: map[string]bool{identity.AuthorityOf(old.Cert): true},
	}
	uri := func(role, name string) string { return "rhumb://" + a.Cluster.String() + "/" + role + "/" + name }
	server, client := x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	for _, tc := range []struct {
		name   string
		cert   *identitytest.Issued
		want   identity.Want
		reason identity.Reason
		text   string
	}{
		{"a node", a.Node(t, "eu-1"), wantNode, "", ""},
		{"a node by name", a.Node(t, "eu-1"), identity.Want{Roles: wantNode.Roles, Name: "eu-1"}, "", ""},
		{"an RSA key of 2048 bits", a.Node(t, "eu-1", identitytest.RSA(t, 2048)), wantNode, "", ""},
		{"a SPIFFE ID", a.Node(t, "eu-1", identitytest.URIs(t, "spiffe://example.org/rhumb/"+a.Cluster.String()+"/node/eu-1")), wantNode, "", ""},
		{"a SPIFFE ID of a user", a.Node(t, "eu-1", identitytest.URIs(t, "spiffe://example.org/rhumb/"+a.Cluster.String()+"/user/eu-1")), wantNode, identity.ReasonWrongUsage, "user eu-1"},
		{"a SPIFFE ID and a name", a.Node(t, "eu-1", identitytest.URIs(t, "spiffe://example.org/rhumb/"+a.Cluster.String()+"/node/eu-1", uri("node", "eu-1"))), wantNode, identity.ReasonSeveralNames, "2 names"},
		{"a SPIFFE ID with a port", a.Node(t, "eu-1", identitytest.URIs(t, "spiffe://example.org:80/rhumb/"+a.Cluster.String()+"/node/eu-1")), wantNode, identity.ReasonNoName, "no URI"},
		{"a SPIFFE ID without a domain", a.Node(t, "eu-1", identitytest.URIs(t, "spiffe:///rhumb/"+a.Cluster.String()+"/node/eu-1")), wantNode, identity.ReasonNoName, "no URI"},
		{"a SPIFFE ID with more path", a.Node(t, "eu-1", identitytest.URIs(t, "spiffe://example.org/rhumb/"+a.Cluster.String()+"/node/eu-1/x")), wantNode, identity.ReasonNoName, "three parts"},
		{"another node", a.Node(t, "eu-2"), identity.Want{Roles: wantNode.Roles, Name: "eu-1"}, identity.ReasonWrongName, "node eu-2; wanted a certificate of a node named eu-1"},
		{"a user", a.User(t, "app"), wantNode, identity.ReasonWrongRole, "user app; wanted a certificate of a node"},
		{"an operator", a.Operator(t, "ann"), wantNode, identity.ReasonWrongRole, "operator ann"},
		{"a user with the usages of a node", a.User(t, "app", identitytest.Usages(server, client)), identity.Want{Roles: []identity.Role{identity.RoleUser}}, identity.ReasonWrongUsage, "clientAuth without serverAuth"},
		{"a node with the usages of a user", a.Node(t, "eu-1", identitytest.Usages(client)), wantNode, identity.ReasonWrongUsage, "extended key usages clientAuth"},
		{"a node with any usage", a.Node(t, "eu-1", identitytest.Usages(server, client, x509.ExtKeyUsageAny)), wantNode, identity.ReasonWrongUsage, "any"},
		{"a node without usages", a.Node(t, "eu-1", identitytest.Usages()), wantNode, identity.ReasonWrongUsage, "none"},
		{"expired by a minute", a.Node(t, "eu-1", identitytest.Valid(now.Add(-time.Hour), now.Add(-time.Minute))), wantNode, identity.ReasonExpired, "set the clock"},
		{"expired by a year", a.Node(t, "eu-1", identitytest.Valid(now.Add(-9999*time.Hour), now.Add(-9000*time.Hour))), wantNode, identity.ReasonExpired, "ago"},
		{"not valid for a day", a.Node(t, "eu-1", identitytest.Valid(now.Add(24*time.Hour), now.Add(48*time.Hour))), wantNode, identity.ReasonNotYetValid, "ahead of the clock of this machine"},
		{"another cluster", foreign.Node(t, "eu-1"), wantNode, identity.ReasonWrongCluster, foreign.Cluster.String()},
		{"another cluster by the same authority", a.Node(t, "eu-1", identitytest.URIs(t, "rhumb://"+foreign.Cluster.String()+"/node/eu-1")), wantNode, identity.ReasonWrongCluster, "wanted a certificate of a node of cluster " + a.Cluster.String()},
		{"an authority that is not trusted", same.Node(t, "eu-1"), wantNode, identity.ReasonUntrusted, "not trusted here; wanted one that is signed by"},
		{"a distrusted authority", old.Node(t, "eu-1"), wantNode, identity.ReasonDistrusted, "no longer trusts"},
		{"self-signed", a.Node(t, "eu-1", identitytest.SelfSigned()), wantNode, identity.ReasonSelfSigned, "signed by its own key"},
		{"revoked", revoked, wantNode, identity.ReasonRevoked, "revoked"},
		{"an RSA key of 1024 bits", a.Node(t, "eu-1", identitytest.RSA(t, 1024)), wantNode, identity.ReasonWeakKey, "1024 bits"},
		{"no name", a.Node(t, "eu-1", identitytest.URIs(t)), wantNode, identity.ReasonNoName, "no URI rhumb://"},
		{"a name of another scheme", a.Node(t, "eu-1", identitytest.URIs(t, "spiffe://example.org/node")), wantNode, identity.ReasonNoName, "no URI rhumb://"},
		{"a name that is none", a.Node(t, "eu-1", identitytest.URIs(t, uri("admin", "eu-1"))), wantNode, identity.ReasonNoName, "none of the roles"},
		{"several names", a.Node(t, "eu-1", identitytest.URIs(t, uri("node", "eu-1"), uri("user", "app"))), wantNode, identity.ReasonSeveralNames, "2 names"},
		{"the certificate of an authority", a.Node(t, "eu-1", identitytest.IsCA()), wantNode, identity.ReasonWrongUsage, "that of an authority"},
	} {
		p, err := v.Verify([]*x509.Certificate{tc.cert.Cert}, tc.want, now)
		if identity.ReasonOf(err) != tc.reason || (err == nil) != (tc.reason == "") {
			t.Errorf("%s: reason %q, want %q: %v", tc.name, identity.ReasonOf(err), tc.reason, err)
			continue
		}
		if err == nil {
			if p.Cert != tc.cert.Cert || p.Name.Name != "eu-1" || p.Authority != identity.AuthorityOf(a.Cert) || p.Serial != identity.SerialOf(tc.cert.Cert) {
				t.Errorf("%s: %+v", tc.name, p)
			}
			continue
		}
		if !strings.Contains(rhumb.Message(err), tc.text) {
			t.Errorf("%s: %q lacks %q", tc.name, rhumb.Message(err), tc.text)
		}
		if p.Cert != nil {
			t.Errorf("%s: a rejected certificate has a bearer", tc.name)
		}
		t.Logf("%s: %s", tc.name, rhumb.Message(err))
	}
	if _, err := v.Verify(nil, wantNode, now); identity.ReasonOf(err) != identity.ReasonMissing {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	c := strings.Repeat("0a", 16)
	for _, s := range []string{"rhumb://" + c + "/node/eu-1", "rhumb://" + c + "/user/Ann.Lee@example_x", "rhumb://" + c + "/operator/a", "rhumb://" + c + "/authority/main"} {
		n, err := identity.Parse(s)
		if err != nil || n.String() != s || n.URI().String() != s {
			t.Errorf("%s became %s, %s: %v", s, n, n.URI(), err)
		}
	}
	for _, s := range []string{
		"", "rhumb://", "rhumb://" + c, "rhumb://" + c + "/node", "rhumb://" + c + "/node/", "rhumb://" + c + "/node/a/b", "rhumb://" + c + "/node/A",
		"rhumb://" + c + "/node/1a", "rhumb://" + c + "/node/a_b", "rhumb://" + c + "/node/" + strings.Repeat("a", 64), "rhumb://" + strings.ToUpper(c) + "/node/a",
		"rhumb://" + c[1:] + "/node/a", "Rhumb://" + c + "/node/a", "rhumb://" + strings.Repeat("0", 32) + "/node/a", "rhumb://" + c + "/root/a",
		"rhumb://" + c + "/user/a%20b", "rhumb://" + c + "/user/a?b", "rhumb://" + c + "/user/-a", "rhumb://" + c + "/user/\xc3\xa4", "rhumb://u@" + c + "/node/a",
		"rhumb://" + c + ":80/node/a", "rhumb://" + c + "/node/a#b", " rhumb://" + c + "/node/a",
	} {
		if n, err := identity.Parse(s); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%q became %+v: %v", s, n, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("rhumb://" + strings.Repeat("0a", 16) + "/node/eu-1")
	f.Add("rhumb://" + strings.Repeat("0a", 16) + "/user/Ann@x")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := identity.Parse(s)
		if err == nil && (n.String() != s || n.Validate() != nil) {
			t.Fatalf("%q became %q", s, n)
		}
	})
}

// FuzzVerify guards that bytes of any origin never make a bearer and never panic.
func FuzzVerify(f *testing.F) {
	a := identitytest.New(f)
	good := a.Node(f, "eu-1").Cert.Raw
	f.Add(good)
	f.Add(a.Cert.Raw)
	v := &identity.Verifier{Cluster: a.Cluster, Authorities: []*x509.Certificate{a.Cert}}
	f.Fuzz(func(t *testing.T, der []byte) {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		_, err = v.Verify([]*x509.Certificate{cert}, wantNode, time.Now())
		if err == nil && string(der) != string(good) {
			t.Fatal("a forged certificate was accepted")
		}
		if err != nil && identity.ReasonOf(err) == identity.ReasonNone {
			t.Fatalf("an error without a reason: %v", err)
		}
	})
}

func TestParseSerial(t *testing.T) {
	for in, want := range map[string]string{"1a2b": "1a2b", "00:1A:2b": "1a2b", "0x1A2B": "1a2b", "0": "0"} {
		if got, err := identity.ParseSerial(in); got != want || err != nil {
			t.Errorf("%q became %q: %v", in, got, err)
		}
	}
	for _, in := range []string{"", "xyz", "-1", "+1", "1_2", strings.Repeat("a", 41)} {
		if _, err := identity.ParseSerial(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

// FuzzParsePEM guards that files of any content are an identity with a matching key, or an error.
func FuzzParsePEM(f *testing.F) {
	a := identitytest.New(f)
	good := a.Node(f, "eu-1").PEM(f)
	f.Add(good.Cert, good.Key, good.CA)
	f.Add(good.CA, good.Key, good.Cert)
	f.Fuzz(func(t *testing.T, cert, key, ca []byte) {
		certs, err := identity.ParseCertificates(ca)
		if err == nil && len(certs) == 0 {
			t.Fatal("no certificate and no error")
		}
		name, ok, err := identity.PEM{Cert: cert, Key: key, CA: ca}.Name()
		if err == nil && (ok != (len(cert)+len(key) > 0) || ok && name.Validate() != nil) {
			t.Fatal("a certificate was ignored")
		}
	})
}

// TestRevokedByIssuer guards that a revocation means the certificate of one authority: others may use the same serial
// number. A revocation without an authority, as earlier builds made them, means all of them.
func TestRevokedByIssuer(t *testing.T) {
	a := identitytest.New(t)
	b := identitytest.NewFor(t, a.Cluster)
	ours, theirs, other := a.Node(t, "eu-1", identitytest.Serial(1)), b.Node(t, "eu-2", identitytest.Serial(1)), b.Node(t, "eu-2", identitytest.Serial(2))
	below := a.Intermediate(t)
	deep := below.Node(t, "eu-3", identitytest.Serial(1))
	for _, tc := range []struct {
		what                     string
		revoked                  identity.Revoked
		ours, theirs, other, sub bool // rejected
	}{
		{"of one authority", identity.Revoked{Authority: identity.AuthorityOf(a.Cert), Serial: "1"}, true, false, false, false},
		{"of the other authority", identity.Revoked{Authority: identity.AuthorityOf(b.Cert), Serial: "1"}, false, true, false, false},
		{"of an intermediate authority", identity.Revoked{Authority: identity.AuthorityOf(below.Cert), Serial: "1"}, false, false, false, true},
		{"of an unknown authority", identity.Revoked{Authority: "ab", Serial: "1"}, false, false, false, false},
		{"of all authorities", identity.Revoked{Serial: "1"}, true, true, false, true},
	} {
		v := &identity.Verifier{Cluster: a.Cluster, Authorities: []*x509.Certificate{a.Cert, b.Cert}, Revoked: map[identity.Revoked]bool{tc.revoked: true}}
		for _, c := range []struct {
			chain    []*x509.Certificate
			rejected bool
		}{
			{[]*x509.Certificate{ours.Cert}, tc.ours},
			{[]*x509.Certificate{theirs.Cert}, tc.theirs},
			{[]*x509.Certificate{other.Cert}, tc.other},
			{[]*x509.Certificate{deep.Cert, below.Cert}, tc.sub},
		} {
			_, err := v.Verify(c.chain, wantNode, time.Now())
			if (identity.ReasonOf(err) == identity.ReasonRevoked) != c.rejected || !c.rejected && err != nil {
				t.Errorf("%s: certificate %s of %s: %v, want rejected %v", tc.what, identity.SerialOf(c.chain[0]), c.chain[0].Subject, err, c.rejected)
			}
		}
	}
}

// TestRevokedBearer guards that the revocation of a bearer ends each certificate that was issued before it, no later one,
// and none of another bearer, also if an authority of others does not say when it issued a certificate.
func TestRevokedBearer(t *testing.T) {
	a := identitytest.New(t)
	now := time.Now()
	limit := now.Truncate(time.Second).Add(time.Second)
	v := &identity.Verifier{Cluster: a.Cluster, Authorities: []*x509.Certificate{a.Cert}, RevokedBefore: map[string]time.Time{"user tower": limit}}
	plain := func(from time.Time) identitytest.Option { return identitytest.IssuedAt(t, from.Add(-24*time.Hour)) }
	for what, tt := range map[string]struct {
		cert    *identitytest.Issued
		revoked bool
	}{
		"issued now, before the limit":         {a.User(t, "tower"), true},
		"issued at the limit":                  {a.User(t, "tower", identitytest.IssuedAt(t, limit)), false},
		"issued before, without saying when":   {a.User(t, "tower", plain(now)), true},
		"valid from later, without a time":     {a.User(t, "tower", identitytest.Valid(limit, limit.Add(time.Hour)), plain(limit)), false},
		"issued far in the future, as it says": {a.User(t, "tower", identitytest.IssuedAt(t, now.Add(24*time.Hour))), true},
		"of another user":                      {a.User(t, "tower2"), false},
		"of an operator of this name":          {a.Operator(t, "tower"), false},
	} {
		_, err := v.Verify([]*x509.Certificate{tt.cert.Cert}, identity.Want{Roles: []identity.Role{identity.RoleUser, identity.RoleOperator}}, limit)
		if revoked := identity.ReasonOf(err) == identity.ReasonRevoked; revoked != tt.revoked || !revoked && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
