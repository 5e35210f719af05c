package authority

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority/token"
	"github.com/rhumbdb/rhumb/identity"
)

// clock is a wall clock that a test sets.
type clock struct{ now time.Time }

func (c *clock) read() time.Time         { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

var testCluster = rhumb.ClusterID{0xab, 1}

func newAuthority(t *testing.T, c *clock) *Authority {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "authority")
	cfg := Config{Wall: c.read, Logger: slog.New(slog.DiscardHandler)}
	if err := Create(dir, testCluster, []string{"127.0.0.1:7605"}, cfg); err != nil {
		t.Fatal(err)
	}
	return openAuthority(t, dir, c)
}

func openAuthority(t *testing.T, dir string, c *clock) *Authority {
	t.Helper()
	a, err := Open(dir, Config{Wall: c.read, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func newCSR(t *testing.T) (string, crypto.Signer) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), key
}

func mustToken(t *testing.T, a *Authority, req TokenRequest) token.Token {
	t.Helper()
	tok, err := a.CreateToken(req)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func mustEnrol(t *testing.T, a *Authority, tok token.Token, csr string) (*Grant, []*x509.Certificate) {
	t.Helper()
	g, err := a.Enrol(EnrolRequest{Token: tok.Encode(), CSR: csr})
	if err != nil {
		t.Fatal(err)
	}
	return g, mustParse(t, g.Certificate)
}

func mustParse(t *testing.T, text string) []*x509.Certificate {
	t.Helper()
	chain, err := identity.ParseCertificates([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

func refused(t *testing.T, err error, kind rhumb.Kind, want string) {
	t.Helper()
	if rhumb.KindOf(err) != kind || err == nil || !strings.Contains(rhumb.Message(err), want) {
		t.Errorf("%v (%v), want %v with %q", err, rhumb.KindOf(err), kind, want)
	}
}

// TestEnrol guards what a token is worth: one certificate for the node that it names, again for the
// same key only.
func TestEnrol(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	tok := mustToken(t, a, TokenRequest{Node: "eu-1", Founder: true})
	csr, key := newCSR(t)
	g, chain := mustEnrol(t, a, tok, csr)
	roots := mustParse(t, g.CA)
	v := identity.Verifier{Cluster: testCluster, Authorities: roots}
	peer, err := v.Verify(chain, identity.Want{Roles: []identity.Role{identity.RoleNode}, Name: "eu-1"}, c.now)
	if err != nil || !g.Founder || !peer.NotAfter.Equal(c.now.Add(NodeLife)) {
		t.Errorf("%+v, founder %v, %v", peer, g.Founder, err)
	}
	// Other software knows a node by its name as well.
	if err := chain[0].VerifyHostname("eu-1"); err != nil {
		t.Error(err)
	}
	if !key.Public().(*ecdsa.PublicKey).Equal(chain[0].PublicKey) {
		t.Error("the certificate is for another key")
	}
	// The answer was lost: the same key again, also after the token expired.
	c.advance(2 * time.Hour)
	if again, _ := mustEnrol(t, a, tok, csr); !again.Founder {
		t.Error("the second answer differs")
	}
	other, _ := newCSR(t)
	_, err = a.Enrol(EnrolRequest{Token: tok.Encode(), CSR: other})
	refused(t, err, rhumb.Unauthenticated, "already used at 2026-03-01T12:00:00Z with another key")
	// What the token says about itself counts for nothing.
	forged := mustToken(t, a, TokenRequest{Node: "eu-2"})
	forged.Node, forged.Founder, forged.Expires = "eu-1", true, forged.Expires.Add(time.Hour)
	csr2, _ := newCSR(t)
	g, chain = mustEnrol(t, a, forged, csr2)
	if name, _ := identity.FromCertificate(chain[0]); name.Name != "eu-2" || g.Founder {
		t.Errorf("a changed token made %v", name)
	}
}

// TestRefusals guards that each bad token has a clear error.
func TestRefusals(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	csr, _ := newCSR(t)
	enrol := func(tok token.Token) error {
		_, err := a.Enrol(EnrolRequest{Token: tok.Encode(), CSR: csr})
		return err
	}
	late := mustToken(t, a, TokenRequest{Node: "late"})
	removed := mustToken(t, a, TokenRequest{Node: "removed"})
	if err := a.RemoveToken(removed.ID); err != nil {
		t.Fatal(err)
	}
	refused(t, enrol(removed), rhumb.Unauthenticated, "removed by an operator")
	c.advance(time.Hour + time.Second)
	refused(t, enrol(late), rhumb.Unauthenticated, "expired at 2026-03-01T13:00:00Z")
	// A clock that is set back makes no token valid again.
	c.advance(-time.Hour)
	refused(t, enrol(late), rhumb.Unauthenticated, "expired at")
	wrong := mustToken(t, a, TokenRequest{Node: "eu-1"})
	guess := wrong
	guess.Secret[0]++
	refused(t, enrol(guess), rhumb.Unauthenticated, "does not know token")
	guess = wrong
	guess.ID[0]++
	refused(t, enrol(guess), rhumb.Unauthenticated, "does not know token")
	foreign := wrong
	foreign.Cluster[0]++
	refused(t, enrol(foreign), rhumb.WrongCluster, "this authority issues certificates for cluster "+testCluster.String())
	_, err := a.Enrol(EnrolRequest{Token: wrong.Encode()[:40], CSR: csr})
	refused(t, err, rhumb.InvalidArgument, "garbled")
	for text, want := range map[string]string{"": "not a certificate request", strings.Repeat("x", csrSizeMax+1): "more than", strings.Replace(csr, "MI", "MA", 1): "invalid"} {
		if _, err := a.Enrol(EnrolRequest{Token: wrong.Encode(), CSR: text}); err == nil || !strings.Contains(rhumb.Message(err), want) {
			t.Errorf("csr %.10q: %v", text, err)
		}
	}
	// None of this has used the token.
	if err := enrol(wrong); err != nil {
		t.Error(err)
	}
}

// TestFounder guards that an authority allows one founder: two would make two clusters with one id.
func TestFounder(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	first := mustToken(t, a, TokenRequest{Node: "eu-1", Founder: true})
	_, err := a.CreateToken(TokenRequest{Node: "us-1", Founder: true})
	refused(t, err, rhumb.AlreadyExists, "already allows node eu-1")
	// An unused token that expired founded nothing.
	c.advance(2 * time.Hour)
	second := mustToken(t, a, TokenRequest{Node: "us-1", Founder: true})
	csr, _ := newCSR(t)
	mustEnrol(t, a, second, csr)
	c.advance(48 * time.Hour)
	_, err = a.CreateToken(TokenRequest{Node: "eu-1", Founder: true})
	refused(t, err, rhumb.AlreadyExists, "rhumb token rm "+second.ID.String())
	if err := a.RemoveToken(second.ID); err != nil {
		t.Fatal(err)
	}
	mustToken(t, a, TokenRequest{Node: "eu-1", Founder: true})
	_ = first

	// A cluster that exists is not created again, nor one that may exist.
	adopted := filepath.Join(t.TempDir(), "adopted")
	must(t, Create(adopted, testCluster, []string{"h:1"}, Config{Wall: c.read, Adopt: true}))
	_, err = openAuthority(t, adopted, c).CreateToken(TokenRequest{Node: "eu-1", Founder: true})
	refused(t, err, rhumb.AlreadyExists, "exists already")
	mustToken(t, openAuthority(t, adopted, c), TokenRequest{Node: "eu-1", Founder: true, Force: true})
	lost := newAuthority(t, c)
	must(t, os.Remove(filepath.Join(lost.dir, "ledger")))
	_, err = lost.CreateToken(TokenRequest{Node: "eu-1", Founder: true})
	refused(t, err, rhumb.AlreadyExists, "has lost records")
}

// TestRenew guards renewal: the same name, from the newest or a valid certificate, until an operator
// revokes it.
func TestRenew(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	csr, _ := newCSR(t)
	_, chain := mustEnrol(t, a, mustToken(t, a, TokenRequest{Node: "eu-1"}), csr)
	renew := func(chain []*x509.Certificate) ([]*x509.Certificate, error) {
		csr, _ := newCSR(t)
		g, err := a.Renew(chain, RenewRequest{CSR: csr})
		if err != nil {
			return nil, err
		}
		return mustParse(t, g.Certificate), nil
	}
	c.advance(5 * 24 * time.Hour)
	second, err := renew(chain)
	if err != nil {
		t.Fatal(err)
	}
	if name, _ := identity.FromCertificate(second[0]); name.Name != "eu-1" || !second[0].NotAfter.Equal(c.now.Add(NodeLife)) {
		t.Errorf("renewed as %v until %v", name, second[0].NotAfter)
	}
	// The first expires on day 7. It is not the newest, so it is not renewed any more.
	c.advance(3 * 24 * time.Hour)
	_, err = renew(chain)
	refused(t, err, rhumb.Unauthenticated, "too old to be renewed")
	// A node that was down for two weeks still has its newest certificate.
	c.advance(14 * 24 * time.Hour)
	third, err := renew(second)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		chain []*x509.Certificate
		want  string
	}{
		"none":     {nil, "no certificate"},
		"operator": {issueFor(t, a, identity.RoleOperator), "wanted a certificate of a node"},
		"user":     {issueFor(t, a, identity.RoleUser), "wanted a certificate of a node"},
		"foreign":  {issueFor(t, newAuthority(t, c), identity.RoleNode), "not trusted"},
	} {
		if _, err := renew(test.chain); err == nil || !strings.Contains(rhumb.Message(err), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if err := a.Revoke("", "eu-1", "stolen"); err != nil {
		t.Fatal(err)
	}
	_, err = renew(third)
	refused(t, err, rhumb.PermissionDenied, "revoked")
	// A new token brings the node back.
	c.advance(time.Minute)
	_, fresh := mustEnrol(t, a, mustToken(t, a, TokenRequest{Node: "eu-1"}), csr)
	if _, err := renew(fresh); err != nil {
		t.Error(err)
	}
	c.advance(NodeLife + lateRenewal + time.Hour)
	_, err = renew(fresh)
	refused(t, err, rhumb.Unauthenticated, "expired")
}

func issueFor(t *testing.T, a *Authority, role identity.Role) []*x509.Certificate {
	t.Helper()
	made, err := a.Issue(Order{Role: role, Name: "someone"})
	if err != nil {
		t.Fatal(err)
	}
	return mustParse(t, string(made.Certificate))
}

// TestRollback guards that a restored directory does not make a used token usable again once a node
// has shown what the ledger lost.
func TestRollback(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	witness, _ := newCSR(t)
	_, chain := mustEnrol(t, a, mustToken(t, a, TokenRequest{Node: "eu-1"}), witness)
	tok := mustToken(t, a, TokenRequest{Node: "eu-2"})
	backup := t.TempDir()
	if err := os.CopyFS(backup+"/a", os.DirFS(a.dir)); err != nil {
		t.Fatal(err)
	}
	csr, _ := newCSR(t)
	mustEnrol(t, a, tok, csr)
	c.advance(time.Second)
	standing, err := a.Check(chain, CheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	c.advance(time.Second)
	must(t, os.Chmod(backup+"/a/"+keyFile, 0o600))
	restored := openAuthority(t, backup+"/a", c)
	// Its history continues differently.
	mustToken(t, restored, TokenRequest{Node: "eu-9"})
	mustToken(t, restored, TokenRequest{Node: "eu-8"})
	forged := standing.Head
	forged.Seq += 1000
	if _, err := restored.Check(chain, CheckRequest{Head: &forged}); err != nil {
		t.Fatal(err)
	}
	if sum, _ := restored.Summarize(); sum.Gaps != 0 {
		t.Error("a forged head voids tokens")
	}
	if _, err := restored.Check(chain, CheckRequest{Head: &standing.Head}); err != nil {
		t.Fatal(err)
	}
	other, _ := newCSR(t)
	_, err = restored.Enrol(EnrolRequest{Token: tok.Encode(), CSR: other})
	refused(t, err, rhumb.Unauthenticated, "void")
	// Another node with an older head changes nothing for new tokens.
	c.advance(time.Second)
	fresh := mustToken(t, restored, TokenRequest{Node: "eu-3"})
	if _, err := restored.Check(chain, CheckRequest{Head: &standing.Head}); err != nil {
		t.Fatal(err)
	}
	mustEnrol(t, restored, fresh, other)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRotate guards that during a rotation everybody trusts everybody: holders of the old authority
// accept new certificates, tokens that pin the old key still work, and a retired key ends.
func TestRotate(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	csr, _ := newCSR(t)
	g, chain := mustEnrol(t, a, mustToken(t, a, TokenRequest{Node: "eu-1"}), csr)
	firstRoots := mustParse(t, g.CA)
	oldHash := identity.AuthorityOf(firstRoots[0])
	var hashes []string
	for range keysMax - 1 {
		hash, err := a.Rotate()
		must(t, err)
		hashes = append(hashes, hash)
	}
	if _, err := a.Rotate(); rhumb.KindOf(err) != rhumb.Overloaded {
		t.Errorf("%d keys: %v", keysMax+1, err)
	}
	standing, err := a.Check(chain, CheckRequest{Head: &g.Head})
	if err != nil || !standing.Renew || len(mustParse(t, standing.CA)) != keysMax {
		t.Fatalf("%+v, %v", standing, err)
	}
	_, err = a.Retire(oldHash[:16], false)
	refused(t, err, rhumb.Conflict, "node eu-1 until")
	renewed, err := a.Renew(chain, RenewRequest{CSR: csr, Head: &g.Head})
	must(t, err)
	fresh := mustParse(t, renewed.Certificate)
	want := identity.Want{Roles: []identity.Role{identity.RoleNode}}
	// Who trusts only the first key accepts the newest certificate through three cross-signed ones.
	v := identity.Verifier{Cluster: testCluster, Authorities: firstRoots}
	if _, err := v.Verify(fresh, want, c.now); err != nil {
		t.Error(err)
	}
	v = identity.Verifier{Cluster: testCluster, Authorities: mustParse(t, renewed.CA)}
	if peer, err := v.Verify(chain, want, c.now); err != nil || peer.Authority != oldHash {
		t.Error(err)
	}
	_, err = a.Retire(hashes[len(hashes)-1], false)
	refused(t, err, rhumb.InvalidArgument, "current key")
	_, err = a.Retire("1234", false)
	refused(t, err, rhumb.NotFound, "trusts no key")
	if _, err := a.Retire(oldHash[:16], false); err != nil {
		t.Fatal(err)
	}
	// The old certificate is foreign now, and the new one does not need the old key.
	_, err = a.Renew(chain, RenewRequest{CSR: csr})
	refused(t, err, rhumb.Unauthenticated, "not trusted")
	for _, hash := range hashes[:len(hashes)-1] {
		if _, err := a.Retire(hash, false); err != nil {
			t.Fatal(err)
		}
	}
	last := openAuthority(t, a.dir, c)
	if _, err := last.Renew(fresh, RenewRequest{CSR: csr}); err != nil {
		t.Error(err)
	}
}

// TestFiles guards the files of an authority: modes, interrupted creation, damage.
func TestFiles(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	if info, err := os.Stat(filepath.Join(a.dir, keyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	err := Create(a.dir, testCluster, []string{"h:1"}, Config{Wall: c.read})
	refused(t, err, rhumb.AlreadyExists, "holds an authority")
	must(t, os.Chmod(filepath.Join(a.dir, keyFile), 0o644))
	_, err = Open(a.dir, Config{Wall: c.read})
	refused(t, err, rhumb.PermissionDenied, "chmod 600")
	// Without the cluster file, the creation was not finished and starts again.
	must(t, os.Chmod(filepath.Join(a.dir, keyFile), 0o600))
	must(t, os.Remove(filepath.Join(a.dir, clusterFile)))
	_, err = Open(a.dir, Config{Wall: c.read})
	refused(t, err, rhumb.NotFound, "holds no authority")
	must(t, Create(a.dir, testCluster, []string{"h:1"}, Config{Wall: c.read}))
	other := t.TempDir()
	must(t, os.WriteFile(filepath.Join(other, "thesis.tex"), nil, 0o600))
	refused(t, Create(other, testCluster, []string{"h:1"}, Config{}), rhumb.InvalidArgument, "thesis.tex")
	refused(t, Create(t.TempDir(), testCluster, []string{"nowhere"}, Config{}), rhumb.InvalidArgument, "HOST:PORT")
	foreign := newAuthority(t, c)
	key, err := os.ReadFile(filepath.Join(foreign.dir, keyFile))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(a.dir, keyFile), key, 0o600))
	_, err = Open(a.dir, Config{Wall: c.read})
	refused(t, err, rhumb.Corrupt, "no certificate in")
	must(t, os.WriteFile(filepath.Join(a.dir, keyFile), []byte("garbage"), 0o600))
	_, err = Open(a.dir, Config{Wall: c.read})
	refused(t, err, rhumb.Corrupt, "restore it from a backup")
}

// TestRenewalsArePaced guards the ledger against a node that renews without end. Other nodes are not concerned.
func TestRenewalsArePaced(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	csr, _ := newCSR(t)
	_, chain := mustEnrol(t, a, mustToken(t, a, TokenRequest{Node: "eu-1"}), csr)
	_, other := mustEnrol(t, a, mustToken(t, a, TokenRequest{Node: "eu-2"}), csr)
	var err error
	for i := 0; err == nil && i < 10*renewalsBurst; i++ {
		_, err = a.Renew(chain, RenewRequest{CSR: csr})
	}
	if rhumb.KindOf(err) != rhumb.Overloaded || rhumb.RetryAfterOf(err) <= 0 {
		t.Fatalf("a node renews without end: %v", err)
	}
	if _, err := a.Renew(other, RenewRequest{CSR: csr}); err != nil {
		t.Errorf("another node: %v", err)
	}
	c.advance(rhumb.RetryAfterOf(err))
	if _, err := a.Renew(chain, RenewRequest{CSR: csr}); err != nil {
		t.Errorf("after the wait: %v", err)
	}
}

// TestRepeatedEnrolment guards what a used token is still worth to whoever has it and its key: not an endless number of
// certificates, and none after one of them was revoked by its serial number.
func TestRepeatedEnrolment(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	csr, _ := newCSR(t)
	tok := mustToken(t, a, TokenRequest{Node: "eu-1"})
	_, chain := mustEnrol(t, a, tok, csr)
	var err error
	for i := 0; err == nil && i < 10*renewalsBurst; i++ {
		_, err = a.Enrol(EnrolRequest{Token: tok.Encode(), CSR: csr})
	}
	if rhumb.KindOf(err) != rhumb.Overloaded || rhumb.RetryAfterOf(err) <= 0 {
		t.Fatalf("a used token makes certificates without end: %v", err)
	}
	c.advance(rhumb.RetryAfterOf(err))
	mustEnrol(t, a, tok, csr)
	must(t, a.Revoke(identity.SerialOf(chain[0]), "", "stolen"))
	c.advance(time.Hour)
	_, err = a.Enrol(EnrolRequest{Token: tok.Encode(), CSR: csr})
	refused(t, err, rhumb.Unauthenticated, "can no longer be repeated")
}

// TestClockWasAhead guards an authority that wrote a record while its clock was a year ahead. Once the clock is right, nodes enrol
// and renew with certificates that are valid now, and an old key is not retired while they use it.
func TestClockWasAhead(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	early, _ := newCSR(t)
	_, before := mustEnrol(t, a, mustToken(t, a, TokenRequest{Node: "eu-1"}), early)
	c.advance(366 * 24 * time.Hour)
	mustToken(t, a, TokenRequest{Node: "eu-2"})
	c.advance(-366 * 24 * time.Hour)
	csr, _ := newCSR(t)
	_, chain := mustEnrol(t, a, mustToken(t, a, TokenRequest{Node: "eu-2"}), csr)
	renewed, err := a.Renew(before, RenewRequest{CSR: early})
	must(t, err)
	for _, cert := range []*x509.Certificate{chain[0], mustParse(t, renewed.Certificate)[0], issueFor(t, a, identity.RoleOperator)[0]} {
		if issued := identity.IssuedAt(cert); c.now.Before(cert.NotBefore) || c.now.After(cert.NotAfter) || issued.After(c.now) {
			t.Errorf("%s is valid from %v until %v, issued at %v; it is %v", cert.Subject, cert.NotBefore, cert.NotAfter, issued, c.now)
		}
	}
	first, err := a.Summarize()
	must(t, err)
	_, err = a.Rotate()
	must(t, err)
	_, err = a.Retire(first.Keys[0], false)
	refused(t, err, rhumb.Conflict, "node eu-1")
}

// TestConcurrentRotations guards an authority whose key several operators rotate and retire at once, each by a process of its
// own: it can be opened afterwards, and every key that was announced is trusted until it is retired.
func TestConcurrentRotations(t *testing.T) {
	for round := range 8 {
		c := newClock()
		a := newAuthority(t, c)
		first, err := a.Summarize()
		must(t, err)
		results := make(chan string)
		for range 3 {
			operator := openAuthority(t, a.Dir(), c)
			go func() {
				hash, err := operator.Rotate()
				if err != nil {
					t.Error(err)
				}
				results <- hash
			}()
		}
		// The fourth one retires the first key as soon as that is not the current one any more.
		go func() {
			for {
				if _, err := a.Retire(first.Keys[0], true); err == nil {
					results <- ""
					return
				} else if rhumb.KindOf(err) != rhumb.InvalidArgument {
					t.Error(err)
					results <- ""
					return
				}
			}
		}()
		var want []string
		for range 4 {
			if hash := <-results; hash != "" {
				want = append(want, hash)
			}
		}
		got, err := openAuthority(t, a.Dir(), c).Summarize()
		must(t, err)
		slices.Sort(want)
		if slices.Sort(got.Keys); !slices.Equal(got.Keys, want) {
			t.Fatalf("round %d: the authority trusts %.8s, want %.8s", round, got.Keys, want)
		}
	}
}

// TestEnrolmentIsLogged guards that the log says which node got a certificate, and that a reload answers.
func TestEnrolmentIsLogged(t *testing.T) {
	c := newClock()
	c.now = time.Now()
	a := newAuthority(t, c)
	var log bytes.Buffer
	a.logger = slog.New(slog.NewTextHandler(&log, nil))
	s, err := NewServer(a)
	must(t, err)
	csr, _ := newCSR(t)
	tok := mustToken(t, a, TokenRequest{Node: "eu-7"})
	body, err := json.Marshal(EnrolRequest{Token: tok.Encode(), CSR: csr})
	must(t, err)
	grant, err := s.enrol(httptest.NewRequest(http.MethodPost, PathEnrol, bytes.NewReader(body)))
	must(t, err)
	chain := mustParse(t, grant.(*Grant).Certificate)
	body, err = json.Marshal(RenewRequest{CSR: csr})
	must(t, err)
	r := httptest.NewRequest(http.MethodPost, PathRenew, bytes.NewReader(body))
	r.TLS = &tls.ConnectionState{PeerCertificates: chain}
	_, err = s.renew(r)
	must(t, err)
	s.Reload()
	for _, want := range []string{`msg="a node was enrolled" node=eu-7`, `msg="the certificate of a node was renewed" node=eu-7`, "were read again"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
}

// TestIssuedAt guards that a certificate says in which second it was issued, although its validity begins earlier.
func TestIssuedAt(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	leaf := issueFor(t, a, identity.RoleUser)[0]
	if got := identity.IssuedAt(leaf); !got.Equal(c.now) || !leaf.NotBefore.Before(c.now) {
		t.Errorf("issued at %v, valid from %v; want %v", got, leaf.NotBefore, c.now)
	}
}

// TestLeftoversAreRemoved guards that an authority removes what killed commands left beside its key, which may be a key, and no file
// that a command is writing now or that an operator named.
func TestLeftoversAreRemoved(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	old := time.Now().Add(-2 * leftoverAge)
	want := map[string]bool{
		".authority.key-123": false, ".ca.crt-9": false, ".mark-77": false, ".addresses-1": false, ".cross.crt-2": false,
		".authority.key-456": true, ".authority.key-backup": true, "authority.key-1": true, ".other-1": true,
	}
	for name := range want {
		path := filepath.Join(a.dir, name)
		must(t, os.WriteFile(path, []byte("x"), 0o600))
		if name != ".authority.key-456" {
			must(t, os.Chtimes(path, old, old))
		}
	}
	again, err := Open(a.dir, Config{Wall: c.read})
	must(t, err)
	must(t, again.Close())
	for name, left := range want {
		if _, err := os.Stat(filepath.Join(a.dir, name)); (err == nil) != left {
			t.Errorf("%s: %v, want it left: %v", name, err, left)
		}
	}
}
