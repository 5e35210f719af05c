package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// rsaBitsMin and ecBitsMin are the smallest keys that are accepted.
	rsaBitsMin = 2048
	ecBitsMin  = 256
	// clockDoubt is the distance from the validity of a certificate within which a wrong clock is a
	// likely cause. A certificate of seven days that looks expired by years is not a question of the
	// clock; one that looks expired by an hour very often is.
	clockDoubt = 48 * time.Hour
	// chainMax bounds the certificates of one chain. The search for a chain takes time that grows
	// with the number of certificates, and the client chooses how many it sends.
	chainMax = 8
)

// Reason classifies why a certificate was rejected. Metrics carry it as a label.
type Reason string

// The reasons.
const (
	ReasonNone         Reason = ""
	ReasonMissing      Reason = "missing"
	ReasonNoName       Reason = "no_name"
	ReasonSeveralNames Reason = "several_names"
	ReasonWrongCluster Reason = "wrong_cluster"
	ReasonWrongRole    Reason = "wrong_role"
	ReasonWrongName    Reason = "wrong_name"
	ReasonWrongUsage   Reason = "wrong_usage"
	ReasonWeakKey      Reason = "weak_key"
	ReasonExpired      Reason = "expired"
	ReasonNotYetValid  Reason = "not_yet_valid"
	ReasonSelfSigned   Reason = "self_signed"
	ReasonUntrusted    Reason = "untrusted"
	ReasonDistrusted   Reason = "distrusted"
	ReasonRevoked      Reason = "revoked"
	ReasonMalformed    Reason = "malformed"
	ReasonHandshake    Reason = "handshake" // TLS failed for a reason other than the certificate
	ReasonReplaced     Reason = "replaced"  // the certificate of this side expired after it was replaced
)

// Reasons returns every reason, for metrics and tests.
func Reasons() []Reason {
	return []Reason{
		ReasonMissing, ReasonNoName, ReasonSeveralNames, ReasonWrongCluster, ReasonWrongRole, ReasonWrongName, ReasonWrongUsage,
		ReasonWeakKey, ReasonExpired, ReasonNotYetValid, ReasonSelfSigned, ReasonUntrusted, ReasonDistrusted, ReasonRevoked,
		ReasonMalformed, ReasonHandshake, ReasonReplaced,
	}
}

// rejection is the cause of an error about a certificate.
type rejection struct {
	reason Reason
	text   string
}

func (r *rejection) Error() string { return r.text }

// rejectf returns an error about a certificate. The text names the presented and the wanted value.
func rejectf(reason Reason, format string, args ...any) error {
	// Another cluster has a kind of its own, because the remedy is another: the address or the
	// context is wrong, and the certificate is right.
	kind := rhumb.Unauthenticated
	if reason == ReasonWrongCluster {
		kind = rhumb.WrongCluster
	}
	return &rhumb.Error{Op: "identity.Verify", Kind: kind, Err: &rejection{reason, fmt.Sprintf(format, args...)}}
}

// ReasonOf returns why a certificate was rejected, or ReasonNone if err is not about a certificate.
func ReasonOf(err error) Reason {
	if r, ok := errors.AsType[*rejection](err); ok {
		return r.reason
	}
	return ReasonNone
}

// Want describes the bearer that one side of a connection expects at the other.
type Want struct {
	// Roles holds the accepted roles. The side of the connection restricts them further: a server
	// accepts no authority, a client no user.
	Roles []Role
	// Name is the expected name; empty accepts every name.
	Name string
	// Optional makes a server accept clients without a certificate. An invalid certificate is
	// rejected nevertheless.
	Optional bool
}

// String describes the expected bearer.
func (w Want) String() string {
	var roles []string
	for _, r := range w.Roles {
		roles = append(roles, r.String())
	}
	s := "a certificate of a " + strings.Join(roles, " or ")
	if w.Name != "" {
		s += " named " + w.Name
	}
	return s
}

// Peer is the verified bearer of a certificate.
type Peer struct {
	Name
	// Serial is the serial number in hexadecimal.
	Serial string
	// NotAfter is the end of the validity of the certificate.
	NotAfter time.Time
	// Authority identifies the issuer, as AuthorityOf returns it.
	Authority string
	// Cert is the certificate.
	Cert *x509.Certificate
}

// SerialOf returns the serial number of a certificate in hexadecimal, as Peer.Serial and the list
// of revoked certificates hold it.
func SerialOf(cert *x509.Certificate) string {
	if cert.SerialNumber == nil {
		return "0"
	}
	return cert.SerialNumber.Text(16)
}

// ParseSerial returns a serial number as SerialOf writes it. It accepts upper case, colons and
// leading zeros, as other tools print serial numbers.
func ParseSerial(s string) (string, error) {
	clean := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(s), "0x"), ":", "")
	n, ok := new(big.Int).SetString(clean, 16)
	if !ok || n.Sign() < 0 || len(clean) > 40 || strings.ContainsAny(clean, "+-_") {
		return "", rhumb.Ef("identity.ParseSerial", rhumb.InvalidArgument, "serial number %.60q is not hexadecimal; rhumb cert ls prints serial numbers", s)
	}
	return n.Text(16), nil
}

// AuthorityOf identifies an authority by the SHA-256 of its public key, in hexadecimal. An
// authority that renews its certificate with the same key keeps its identity.
func AuthorityOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Verifier decides which certificates are valid. It must not change once it is in use.
type Verifier struct {
	// Cluster is the cluster of accepted certificates. Zero accepts every cluster.
	Cluster rhumb.ClusterID
	// Authorities holds the trusted authorities.
	Authorities []*x509.Certificate
	// Distrusted holds authorities that are rejected even if they are in Authorities or below one
	// of them, as AuthorityOf identifies them.
	Distrusted map[string]bool
	// Revoked holds the revoked certificates.
	Revoked map[Revoked]bool
	// RevokedBefore holds for a bearer, as Name.Short returns it, a time: every certificate that was
	// issued before it is revoked.
	RevokedBefore map[string]time.Time
}

// Revoked identifies a revoked certificate. Serial numbers are unique per authority only.
type Revoked struct {
	// Authority is the issuer, as AuthorityOf identifies it. If it is empty, the serial number is rejected
	// whoever issued it.
	Authority string
	// Serial is the serial number, as SerialOf writes it.
	Serial string
}

// Verify checks a chain, whose first certificate is that of the bearer, at a time. The error says
// what was presented and what was wanted, and ReasonOf classifies it.
//
// The name is examined before the signature only to make errors useful. No result of an unverified
// certificate is returned.
func (v *Verifier) Verify(chain []*x509.Certificate, want Want, now time.Time) (Peer, error) {
	if len(chain) == 0 {
		return Peer{}, rejectf(ReasonMissing, "no certificate was presented; wanted %s", want)
	}
	if len(chain) > chainMax {
		return Peer{}, rejectf(ReasonMalformed, "the chain has %d certificates; at most %d are accepted", len(chain), chainMax)
	}
	leaf := chain[0]
	name, err := FromCertificate(leaf)
	if err != nil {
		return Peer{}, err
	}
	if !v.Cluster.IsZero() && name.Cluster != v.Cluster {
		return Peer{}, rejectf(ReasonWrongCluster, "the certificate of %s belongs to cluster %s; wanted %s of cluster %s", name.Short(), name.Cluster, want, v.Cluster)
	}
	if err := checkTime(name, leaf, now); err != nil {
		return Peer{}, err
	}
	if err := checkKey(name, leaf); err != nil {
		return Peer{}, err
	}
	issuer, err := v.verifyChain(name, chain, now)
	if err != nil {
		return Peer{}, err
	}
	if err := checkRole(name, leaf, want); err != nil {
		return Peer{}, err
	}
	// Revocation is looked up last, so that a certificate which is wrong in another way is reported
	// as that. The order changes no verdict: all checks must pass.
	serial, authority := SerialOf(leaf), AuthorityOf(issuer)
	if v.Revoked[Revoked{authority, serial}] || v.Revoked[Revoked{"", serial}] {
		return Peer{}, rejectf(ReasonRevoked, "the certificate of %s with serial %s is revoked; issue another one", name.Short(), serial)
	}
	if limit, ok := v.RevokedBefore[name.Short()]; ok && IssuedAt(leaf).Before(limit) {
		return Peer{}, rejectf(ReasonRevoked, "the certificates of %s that were issued before %s are revoked; that with serial %s was issued at %s: issue another one",
			name.Short(), limit.UTC().Format(time.RFC3339), serial, IssuedAt(leaf).UTC().Format(time.RFC3339))
	}
	return Peer{Name: name, Serial: serial, NotAfter: leaf.NotAfter, Authority: authority, Cert: leaf}, nil
}

// checkTime checks the validity in time.
func checkTime(name Name, cert *x509.Certificate, now time.Time) error {
	stamp := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	early, late := cert.NotBefore.Sub(now), now.Sub(cert.NotAfter)
	hint := ";"
	if early <= clockDoubt && late <= clockDoubt {
		hint = "; if that is not the time, set the clock of this machine, for example with chrony, and otherwise"
	}
	switch {
	case early > 0:
		return rejectf(ReasonNotYetValid, "the certificate of %s is valid from %s, which is %s ahead of the clock of this machine (%s); check the clocks of this machine and of the issuer",
			name.Short(), stamp(cert.NotBefore), early.Round(time.Second), stamp(now))
	case late > 0:
		return rejectf(ReasonExpired, "the certificate of %s expired at %s, %s ago by the clock of this machine (%s)%s issue another certificate",
			name.Short(), stamp(cert.NotAfter), late.Round(time.Second), stamp(now), hint)
	}
	return nil
}

// checkKey rejects keys that are too weak.
func checkKey(name Name, cert *x509.Certificate) error {
	switch key := cert.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < rsaBitsMin {
			return rejectf(ReasonWeakKey, "the certificate chain of %s has an RSA key of %d bits; wanted at least %d bits, or ECDSA P-256", name.Short(), bits, rsaBitsMin)
		}
	case *ecdsa.PublicKey:
		if bits := key.Curve.Params().BitSize; bits < ecBitsMin {
			return rejectf(ReasonWeakKey, "the certificate chain of %s has an ECDSA key of %d bits; wanted at least %d bits", name.Short(), bits, ecBitsMin)
		}
	case ed25519.PublicKey:
	default:
		return rejectf(ReasonWeakKey, "the certificate chain of %s has a key of the kind %s; wanted ECDSA, Ed25519 or RSA", name.Short(), cert.PublicKeyAlgorithm)
	}
	return nil
}

// verifyChain checks the signatures and returns the certificate that issued the first one.
func (v *Verifier) verifyChain(name Name, chain []*x509.Certificate, now time.Time) (issuer *x509.Certificate, err error) {
	leaf := chain[0]
	if leaf.IsCA {
		return nil, rejectf(ReasonWrongUsage, "the certificate of %s is that of an authority, which must sign only; issue a certificate to %s", name.Short(), name.Short())
	}
	// The search for a chain would reject a self-signed certificate too, but as one of an unknown
	// authority. The check is separate for its message.
	if bytesEqual(leaf.RawSubject, leaf.RawIssuer) && leaf.CheckSignature(leaf.SignatureAlgorithm, leaf.RawTBSCertificate, leaf.Signature) == nil {
		return nil, rejectf(ReasonSelfSigned, "the certificate of %s is signed by its own key; wanted one that is signed by %s", name.Short(), v.describeAuthorities())
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range v.Authorities {
		// Distrusted authorities are left out here and searched for again in the chains below: the
		// same key may also be an intermediate below another root, by a cross-signed certificate.
		if !v.Distrusted[AuthorityOf(c)] {
			roots.AddCert(c)
		}
	}
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	// The usages of the leaf are checked by role afterwards, with a better message. An authority
	// that is restricted to some usages is still held to them, because the leaf has both or the one
	// that it is used for.
	chains, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return nil, v.explainChain(name, chain, now, err)
	}
	// One chain without a distrusted authority is enough. During a rotation there are two: directly
	// to the new key, and through the cross-signed certificate to the old one, which may be
	// distrusted by then.
	distrusted := ""
	for _, c := range chains {
		i := slices.IndexFunc(c[1:], func(ca *x509.Certificate) bool { return v.Distrusted[AuthorityOf(ca)] })
		if i >= 0 {
			distrusted = AuthorityOf(c[1+i])
			continue
		}
		// A strong certificate below an authority with a weak key is as weak as that key.
		for _, ca := range c[1:] {
			if err = errors.Join(err, checkKey(name, ca)); err != nil {
				return nil, err
			}
		}
		return c[1], nil
	}
	return nil, rejectf(ReasonDistrusted, "the certificate of %s comes from the authority %.16s, which the cluster no longer trusts; issue a certificate with a trusted authority", name.Short(), distrusted)
}

// explainChain returns the error for a chain that does not lead to a trusted authority.
func (v *Verifier) explainChain(name Name, chain []*x509.Certificate, now time.Time, err error) error {
	// A chain that would be valid without the list of distrusted authorities gets the true reason.
	if len(v.Distrusted) > 0 {
		// The copy distrusts nobody, so the recursion has a depth of one.
		trusting := Verifier{Authorities: v.Authorities}
		if _, err := trusting.verifyChain(name, chain, now); err == nil {
			return rejectf(ReasonDistrusted, "the certificate of %s comes from an authority that the cluster no longer trusts; issue a certificate with a trusted authority", name.Short())
		}
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired && invalid.Cert != nil {
		if invalid.Cert.NotBefore.After(now) {
			return rejectf(ReasonNotYetValid, "the authority %q that issued the certificate of %s is valid from %s; check the clock of this machine (%s)",
				invalid.Cert.Subject, name.Short(), invalid.Cert.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
		return rejectf(ReasonExpired, "the authority %q that issued the certificate of %s expired at %s; rotate the authority",
			invalid.Cert.Subject, name.Short(), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return rejectf(ReasonUntrusted, "the certificate of %s was issued by %q, which is not trusted here; wanted one that is signed by %s", name.Short(), chain[0].Issuer, v.describeAuthorities())
	}
	return rejectf(ReasonMalformed, "the certificate of %s is invalid: %v", name.Short(), err)
}

// describeAuthorities names the trusted authorities.
func (v *Verifier) describeAuthorities() string {
	var names []string
	for _, c := range v.Authorities {
		if id := AuthorityOf(c); !v.Distrusted[id] {
			names = append(names, fmt.Sprintf("%q (%.16s)", c.Subject, id))
		}
	}
	if len(names) == 0 {
		return "a trusted authority, of which there are none"
	}
	return strings.Join(names, " or ")
}

// checkRole checks that the URI and the extended key usages agree, and that the bearer is the
// expected one. Both are checked: an authority that signs whatever URI it is asked for still
// decides the usages, and the reverse.
func checkRole(name Name, cert *x509.Certificate, want Want) error {
	// Neither more nor fewer usages than the role has. With more, the certificate of a user could
	// be presented as that of a server, and the user could impersonate a node to clients.
	server := slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	client := slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	anyUse := slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny)
	if anyUse || server != name.Role.server() || client != name.Role.client() {
		return rejectf(ReasonWrongUsage, "the certificate of %s has the extended key usages %s; certificates of a %s have %s", name.Short(), describeUsages(cert), name.Role, name.Role.usages())
	}
	if !slices.Contains(want.Roles, name.Role) {
		return rejectf(ReasonWrongRole, "the certificate belongs to %s; wanted %s", name.Short(), want)
	}
	if want.Name != "" && name.Name != want.Name {
		return rejectf(ReasonWrongName, "the certificate belongs to %s; wanted %s", name.Short(), want)
	}
	return nil
}

// describeUsages lists the extended key usages of a certificate.
func describeUsages(cert *x509.Certificate) string {
	var names []string
	for _, u := range cert.ExtKeyUsage {
		switch u {
		case x509.ExtKeyUsageAny:
			names = append(names, "any")
		case x509.ExtKeyUsageServerAuth:
			names = append(names, "serverAuth")
		case x509.ExtKeyUsageClientAuth:
			names = append(names, "clientAuth")
		default:
			names = append(names, fmt.Sprintf("number %d", u))
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func bytesEqual(a, b []byte) bool { return string(a) == string(b) }
