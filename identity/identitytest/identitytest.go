// Package identitytest makes authorities and certificates for tests, good and bad ones. It is not
// for use outside tests: its keys are in ordinary folders of the test, and its serial numbers are
// counted.
package identitytest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity"
)

// Authority issues certificates of one cluster.
//
// Package authority could issue most of these certificates too, but it is above this package, and
// it refuses to issue the bad ones that tests of verification need.
type Authority struct {
	Cluster rhumb.ClusterID
	Cert    *x509.Certificate
	key     *ecdsa.PrivateKey
}

// serials numbers all certificates of a test process.
var serials atomic.Int64

// newKey returns a key of the usual kind.
func newKey(t testing.TB) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// New returns an authority of a new cluster.
func New(t testing.TB) *Authority {
	t.Helper()
	var cluster rhumb.ClusterID
	_, _ = rand.Read(cluster[:])
	return NewFor(t, cluster)
}

// NewFor returns another authority of a cluster.
func NewFor(t testing.TB, cluster rhumb.ClusterID) *Authority {
	t.Helper()
	a := &Authority{Cluster: cluster, key: newKey(t)}
	serial := serials.Add(1)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test authority " + big.NewInt(serial).String()},
		// Two days back, so that tests can issue certificates that expired yesterday and still fail
		// for that reason alone, and not because the authority was not valid yet.
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(10 * 365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.Cert = a.sign(t, template, a.key.Public(), template)
	return a
}

// Intermediate returns an authority that this one certifies.
func (a *Authority) Intermediate(t testing.TB) *Authority {
	t.Helper()
	out := &Authority{Cluster: a.Cluster, key: newKey(t)}
	template := *a.Cert
	template.SerialNumber = big.NewInt(serials.Add(1))
	template.Subject = pkix.Name{CommonName: "intermediate authority " + template.SerialNumber.String()}
	// The identifiers of the parent would make the chain builder look for the wrong key.
	template.SubjectKeyId, template.AuthorityKeyId = nil, nil
	out.Cert = a.sign(t, &template, out.key.Public(), a.Cert)
	return out
}

// sign signs a certificate.
func (a *Authority) sign(t testing.TB, template *x509.Certificate, public crypto.PublicKey, parent *x509.Certificate) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// Issued is a certificate with its key.
type Issued struct {
	Cert *x509.Certificate
	Key  crypto.Signer
	// CA holds the authorities that go with the certificate.
	CA []*x509.Certificate
}

// Option changes a certificate before it is signed.
type Option func(*issue)

// issue is a certificate to be signed.
type issue struct {
	template   *x509.Certificate
	key        crypto.Signer
	selfSigned bool
}

// Valid sets the validity in time.
func Valid(from, to time.Time) Option {
	return func(i *issue) { i.template.NotBefore, i.template.NotAfter = from, to }
}

// IssuedAt replaces the time of issue.
func IssuedAt(t testing.TB, at time.Time) Option {
	e, err := identity.IssuedExtension(at)
	if err != nil {
		t.Fatal(err)
	}
	return func(i *issue) { i.template.ExtraExtensions = []pkix.Extension{e} }
}

// Usages replaces the extended key usages.
func Usages(usages ...x509.ExtKeyUsage) Option {
	return func(i *issue) { i.template.ExtKeyUsage = usages }
}

// URIs replaces the URIs.
func URIs(t testing.TB, uris ...string) Option {
	return func(i *issue) {
		i.template.URIs = nil
		for _, s := range uris {
			u, err := url.Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			i.template.URIs = append(i.template.URIs, u)
		}
	}
}

// Serial sets the serial number.
func Serial(n int64) Option {
	return func(i *issue) { i.template.SerialNumber = big.NewInt(n) }
}

// SelfSigned signs the certificate with its own key.
func SelfSigned() Option { return func(i *issue) { i.selfSigned = true } }

// RSA uses an RSA key.
func RSA(t testing.TB, bits int) Option {
	return func(i *issue) {
		if bits < 1024 {
			// The standard library refuses to generate such keys, but other programs do, and
			// verification has to reject them.
			t.Setenv("GODEBUG", "rsa1024min=0")
		}
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		i.key = key
	}
}

// IsCA makes the certificate one of an authority.
func IsCA() Option {
	return func(i *issue) { i.template.IsCA, i.template.BasicConstraintsValid = true, true }
}

// Issue issues a certificate.
func (a *Authority) Issue(t testing.TB, role identity.Role, name string, options ...Option) *Issued {
	t.Helper()
	id := identity.Name{Cluster: a.Cluster, Role: role, Name: name}
	// As the authority does it.
	issued, err := identity.IssuedExtension(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i := &issue{key: newKey(t), template: &x509.Certificate{
		ExtraExtensions: []pkix.Extension{issued},
		SerialNumber:    big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: name}, URIs: []*url.URL{id.URI()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: role.Usages(),
	}}
	for _, o := range options {
		o(i)
	}
	out := &Issued{Key: i.key, CA: []*x509.Certificate{a.Cert}}
	if i.selfSigned {
		der, err := x509.CreateCertificate(rand.Reader, i.template, i.template, i.key.Public(), i.key)
		if err != nil {
			t.Fatal(err)
		}
		if out.Cert, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		return out
	}
	out.Cert = a.sign(t, i.template, i.key.Public(), a.Cert)
	return out
}

// Node, User and Operator issue a certificate of the role.
func (a *Authority) Node(t testing.TB, name string, options ...Option) *Issued {
	t.Helper()
	return a.Issue(t, identity.RoleNode, name, options...)
}

// User issues the certificate of a database user.
func (a *Authority) User(t testing.TB, name string, options ...Option) *Issued {
	t.Helper()
	return a.Issue(t, identity.RoleUser, name, options...)
}

// Operator issues the certificate of an operator.
func (a *Authority) Operator(t testing.TB, name string, options ...Option) *Issued {
	t.Helper()
	return a.Issue(t, identity.RoleOperator, name, options...)
}

// PEM returns the certificate, the key and the authorities as text.
func (i *Issued) PEM(t testing.TB) identity.PEM {
	t.Helper()
	key, err := identity.EncodeKey(i.Key)
	if err != nil {
		t.Fatal(err)
	}
	return identity.PEM{Cert: identity.EncodeCertificates(i.Cert), Key: key, CA: identity.EncodeCertificates(i.CA...)}
}

// Files writes the certificate, the key and the authorities to a folder and returns their paths. It
// replaces each file at once, as programs that renew certificates do.
func (i *Issued) Files(t testing.TB, dir string) identity.Files {
	t.Helper()
	f := identity.Files{Cert: filepath.Join(dir, "member.crt"), Key: filepath.Join(dir, "member.key"), CA: filepath.Join(dir, "ca.crt")}
	i.WriteTo(t, f)
	return f
}

// WriteTo writes the certificate, the key and the authorities to the given files, as Files does.
func (i *Issued) WriteTo(t testing.TB, f identity.Files) {
	t.Helper()
	p := i.PEM(t)
	if err := os.MkdirAll(filepath.Dir(f.Cert), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{f.Cert: p.Cert, f.Key: p.Key, f.CA: p.CA} {
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

// Source opens a Source with the certificate, which closes at the end of the test.
func (i *Issued) Source(t testing.TB) *identity.Source {
	t.Helper()
	return Open(t, identity.SourceConfig{PEM: i.PEM(t)})
}

// Anonymous opens a Source without a certificate, which trusts the authority.
func (a *Authority) Anonymous(t testing.TB) *identity.Source {
	t.Helper()
	return Open(t, identity.SourceConfig{PEM: identity.PEM{CA: identity.EncodeCertificates(a.Cert)}})
}

// Open opens a Source, which closes at the end of the test.
func Open(t testing.TB, cfg identity.SourceConfig) *identity.Source {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := identity.OpenSource(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}
