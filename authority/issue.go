package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/identity"
)

// csrSizeMax bounds a certificate request.
const csrSizeMax = 16 << 10

// newSerial returns a random positive number of 127 bits. RFC 5280 allows 20 bytes and wants a
// positive number. The number is random, and so cannot be guessed or collide with that of another
// authority of the same cluster; the ledger and the list of revoked certificates identify
// certificates by it.
func newSerial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	b[15] |= 1 // never zero
	return new(big.Int).SetBytes(b[:])
}

// hashKey returns the SHA-256 of a public key in hexadecimal digits.
func hashKey(pub crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", rhumb.WrapKind("authority.hashKey", rhumb.InvalidArgument, err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// signAuthority signs the certificate of an authority's key: with that key if parent is nil, else
// with an older key.
func signAuthority(cluster rhumb.ClusterID, pub crypto.PublicKey, parent *x509.Certificate, signer crypto.Signer, now time.Time) (*x509.Certificate, error) {
	hash, err := hashKey(pub)
	if err != nil {
		return nil, err
	}
	end := now.Add(caLife)
	// A chain is only valid while all its certificates are. A later end would be a promise that the
	// parent cannot keep.
	if parent != nil && end.After(parent.NotAfter) {
		end = parent.NotAfter
	}
	t := &x509.Certificate{
		SerialNumber: newSerial(),
		// The name contains the key, so that chains through a cross-signed certificate find their
		// way by name.
		Subject:   pkix.Name{CommonName: "Rhumb authority " + hash[:16], Organization: []string{"cluster " + cluster.String()}},
		NotBefore: now.Add(-backdate).UTC(), NotAfter: end.UTC(),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	if parent == nil {
		parent = t
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, signer)
	if err != nil {
		return nil, rhumb.Wrap("authority.signAuthority", err)
	}
	return x509.ParseCertificate(der)
}

// order describes a certificate to sign.
type order struct {
	// name is the only identity in the certificate that Rhumb looks at.
	name identity.Name
	pub  crypto.PublicKey
	// life is shortened to the end of the signing key's certificate.
	life time.Duration
	// hosts are names and addresses for software that looks at them; Rhumb does not.
	hosts []string
	// why is the occasion, for the ledger.
	why string
}

// sign signs a certificate and returns its chain, without the root, and the record of it.
//
// now is the wall clock and not the time of the ledger, which never goes back: one record that was written while the clock was
// a year ahead would make every later certificate valid in a year, and no revocation by name would cover it before.
func (k *keys) sign(o order, now time.Time) (chain []*x509.Certificate, r ledger.Record, err error) {
	const op rhumb.Op = "authority.sign"
	if err := o.name.Validate(); err != nil {
		return nil, r, err
	}
	// Checked here too although parseCSR has done so: keys also arrive from callers within the
	// process.
	keyHash, err := checkPublicKey(o.pub)
	if err != nil {
		return nil, r, err
	}
	// Shortened for the same reason as that of authorities: the certificate would outlive its
	// issuer on paper only.
	if now.Add(o.life).After(k.current.NotAfter) {
		o.life = k.current.NotAfter.Sub(now)
	}
	if o.life <= 0 {
		return nil, r, rhumb.Ef(op, rhumb.Unavailable, "the key of the authority expired at %s; run rhumb authority rotate", k.current.NotAfter.Format(time.RFC3339))
	}
	// A revocation of all certificates of a bearer ends those from before it and no later one.
	issued, err := identity.IssuedExtension(now)
	if err != nil {
		return nil, r, rhumb.Wrap(op, err)
	}
	// The subject is for people who look at the certificate with other tools; names are compared by
	// URI only.
	t := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{CommonName: o.name.Short()},
		NotBefore:    now.Add(-backdate).UTC().Truncate(time.Second), NotAfter: now.Add(o.life).UTC().Truncate(time.Second),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           o.name.Role.Usages(),
		URIs:                  []*url.URL{o.name.URI()},
		ExtraExtensions:       []pkix.Extension{issued},
	}
	// Rhumb ignores these. Prometheus and tools such as curl need them to
	// talk to the admin port. The authority vouches for the name of a node, and
	// not for the addresses that the node would like to have.
	if o.name.Role == identity.RoleNode && !slices.Contains(o.hosts, o.name.Name) {
		t.DNSNames = append(t.DNSNames, o.name.Name)
	}
	for _, h := range o.hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if h != "" {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, k.current, o.pub, k.signer)
	if err != nil {
		return nil, r, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, r, rhumb.Wrap(op, err)
	}
	r = ledger.Record{
		Kind: ledger.Issued, Serial: identity.SerialOf(leaf), Role: o.name.Role.String(), Name: o.name.Name, Key: keyHash,
		Expires: leaf.NotAfter, Authority: identity.AuthorityOf(k.current), Why: o.why,
	}
	// The cross-signed certificates travel in every chain. A node that trusts only the old key can
	// then verify a certificate of the new one without having heard of the rotation.
	return append([]*x509.Certificate{leaf}, k.cross...), r, nil
}

// checkPublicKey rejects keys that Rhumb does not accept, and returns the hash of the key.
func checkPublicKey(pub crypto.PublicKey) (string, error) {
	const op rhumb.Op = "authority.checkPublicKey"
	switch key := pub.(type) {
	case *ecdsa.PublicKey:
		if key.Curve.Params().BitSize < elliptic.P256().Params().BitSize {
			return "", rhumb.Ef(op, rhumb.InvalidArgument, "the key has the curve %s; use P-256 or a larger one", key.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		// The bounds are those of package identity, whose verification would refuse the
		// certificate. The refusal belongs here, where somebody can still choose another key.
		if key.N.BitLen() < 2048 {
			return "", rhumb.Ef(op, rhumb.InvalidArgument, "the RSA key has %d bits; use 2048 or more, or ECDSA P-256", key.N.BitLen())
		}
	default:
		return "", rhumb.Ef(op, rhumb.InvalidArgument, "the key is of a kind that Rhumb does not use; use ECDSA P-256")
	}
	return hashKey(pub)
}

// parseCSR returns the public key of a certificate request. The request proves that its sender has
// the private key.
func parseCSR(text string) (crypto.PublicKey, error) {
	const op rhumb.Op = "authority.parseCSR"
	if len(text) > csrSizeMax {
		return nil, rhumb.Ef(op, rhumb.TooLarge, "the certificate request has %d bytes, more than %d", len(text), csrSizeMax)
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, rhumb.E(op, rhumb.InvalidArgument, "csr is not a certificate request in PEM form")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "the certificate request is invalid: %v", err)
	}
	if _, err := checkPublicKey(csr.PublicKey); err != nil {
		return nil, err
	}
	return csr.PublicKey, nil
}

// Order describes a certificate that an operator makes by hand.
type Order struct {
	Role identity.Role
	Name string
	// Life is how long the certificate is valid; default HandLifeDefault.
	Life time.Duration
	// Hosts are names and addresses to put into the certificate, for software that checks them.
	Hosts []string
	// CSR is a certificate request in PEM. Without it, a key is made.
	CSR string
}

// Issued is a certificate that was made by hand.
type Issued struct {
	// Certificate, Key and CA are in PEM. Key is empty if the order had a certificate request.
	Certificate, Key, CA []byte
	Leaf                 *x509.Certificate
}

// Save writes the files of a certificate into a folder, named after its role: node.crt, node.key
// and ca.crt. It replaces files of these names. If one of them cannot be written, it removes those that it has written.
func (i *Issued) Save(dir string) (paths []string, err error) {
	const op rhumb.Op = "authority.Save"
	name, err := identity.FromCertificate(i.Leaf)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	base := filepath.Join(dir, name.Role.String())
	for _, f := range []struct {
		path string
		text []byte
	}{{base + ".crt", i.Certificate}, {base + ".key", i.Key}, {filepath.Join(dir, "ca.crt"), i.CA}} {
		// The key may be where the certificate request was made.
		if f.text == nil {
			continue
		}
		if err := ledger.WriteFile(f.path, f.text, 0o600); err != nil {
			// The caller learns that the certificate is lost, so it must not be usable: it would be valid for months, and nobody
			// would know of it.
			for _, path := range paths {
				_ = os.Remove(path)
			}
			return nil, rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
		paths = append(paths, f.path)
	}
	return paths, nil
}

// Issue makes a certificate for a node, user or operator.
func (a *Authority) Issue(o Order) (*Issued, error) {
	const op rhumb.Op = "authority.Issue"
	// Whoever has such a certificate can take tokens from nodes that enrol, so none is ever in a
	// file.
	if o.Role == identity.RoleAuthority {
		return nil, rhumb.E(op, rhumb.InvalidArgument, "the server of an authority makes its certificate itself")
	}
	if o.Life == 0 {
		o.Life = HandLifeDefault
	}
	if o.Life < time.Minute || o.Life > HandLifeMax {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "a lifetime of %v; want 1m to %v", o.Life, HandLifeMax)
	}
	out := &Issued{}
	var pub crypto.PublicKey
	if o.CSR != "" {
		var err error
		if pub, err = parseCSR(o.CSR); err != nil {
			return nil, err
		}
	} else {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, rhumb.Wrap(op, err)
		}
		if out.Key, err = identity.EncodeKey(key); err != nil {
			return nil, err
		}
		pub = key.Public()
	}
	name := identity.Name{Cluster: a.cluster, Role: o.Role, Name: o.Name}
	chain, err := a.issue(order{name: name, pub: pub, life: o.Life, hosts: o.Hosts, why: "by hand"})
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	out.Leaf, out.Certificate = chain[0], identity.EncodeCertificates(chain...)
	out.CA, err = a.CA()
	return out, err
}

// issue signs a certificate and records it.
func (a *Authority) issue(o order) (chain []*x509.Certificate, err error) {
	k, err := a.load()
	if err != nil {
		return nil, err
	}
	err = a.ledger.Update(func(*ledger.State) ([]ledger.Record, error) {
		var r ledger.Record
		chain, r, err = k.sign(o, a.wall())
		if err != nil {
			return nil, err
		}
		return []ledger.Record{r}, nil
	})
	return chain, err
}
