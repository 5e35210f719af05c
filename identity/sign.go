package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"time"

	"github.com/rhumbdb/rhumb"
)

// chainSizeMax bounds the bytes of one certificate of a Signature.
const chainSizeMax = 16 << 10

// Signature is a statement of the bearer of a certificate that can be verified without a connection
// to the bearer.
//
// Nodes sign what other nodes pass on, such as the claim that a request was made by a user. A
// connection proves only the last hop, so the origin has to be in the message.
type Signature struct {
	// Chain is the certificate of the bearer and those between it and its authority, in DER.
	Chain [][]byte
	// Bytes is the signature: ECDSA or RSA-PSS over the SHA-256 of the message, or Ed25519 over the
	// message.
	Bytes []byte
}

// Sign signs a message with the key of this member's certificate. The message must begin with a text that
// names the kind of statement, so that no signature means two things: a TLS handshake signs with
// the same key.
func (s *Source) Sign(message []byte) (Signature, error) {
	const op rhumb.Op = "identity.Sign"
	l := s.current.Load()
	if l.pair == nil {
		return Signature{}, rhumb.E(op, rhumb.Unauthenticated, "there is no certificate to sign with; give --cert and --key")
	}
	signer, ok := l.pair.PrivateKey.(crypto.Signer)
	if !ok {
		return Signature{}, rhumb.Ef(op, rhumb.InvalidArgument, "the key of the certificate is a %T, which cannot sign", l.pair.PrivateKey)
	}
	var b []byte
	var err error
	// Each kind of key has one scheme, so that a verifier needs no hint.
	switch signer.Public().(type) {
	case ed25519.PublicKey:
		b, err = signer.Sign(rand.Reader, message, crypto.Hash(0))
	// PSS and not PKCS #1 v1.5, in which TLS 1.2 handshakes were signed: a signature from there can
	// never be taken for a statement.
	case *rsa.PublicKey:
		sum := sha256.Sum256(message)
		b, err = signer.Sign(rand.Reader, sum[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256})
	default:
		sum := sha256.Sum256(message)
		b, err = signer.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
	return Signature{Chain: l.pair.Certificate, Bytes: b}, rhumb.WrapKind(op, rhumb.Internal, err)
}

// VerifySigned verifies a signature and its certificate, and returns the bearer.
func (v *Verifier) VerifySigned(message []byte, sig Signature, want Want, now time.Time) (Peer, error) {
	if len(sig.Chain) > chainMax {
		return Peer{}, rejectf(ReasonMalformed, "the chain has %d certificates; at most %d are accepted", len(sig.Chain), chainMax)
	}
	var chain []*x509.Certificate
	for _, der := range sig.Chain {
		// Checked before parsing: the bytes come over the network from a peer that is not trusted
		// yet.
		if len(der) > chainSizeMax {
			return Peer{}, rejectf(ReasonMalformed, "a certificate has %d bytes; at most %d are accepted", len(der), chainSizeMax)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return Peer{}, rejectf(ReasonMalformed, "the certificate of a signature is invalid: %v", err)
		}
		chain = append(chain, cert)
	}
	// The certificate comes first: a signature of a key that nobody vouches for means nothing.
	p, err := v.Verify(chain, want, now)
	if err != nil {
		return Peer{}, err
	}
	algorithm := x509.ECDSAWithSHA256
	switch p.Cert.PublicKey.(type) {
	case ed25519.PublicKey:
		algorithm = x509.PureEd25519
	case *rsa.PublicKey:
		algorithm = x509.SHA256WithRSAPSS
	case *ecdsa.PublicKey:
	}
	if err := p.Cert.CheckSignature(algorithm, message, sig.Bytes); err != nil {
		return Peer{}, rejectf(ReasonMalformed, "the signature of %s does not belong to the message", p.Short())
	}
	return p, nil
}
