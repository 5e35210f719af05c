package rhumb

import (
	"log/slog"
	"time"
)

// Bounds of the metadata about identities.
const (
	// NodeNameSizeMax is the largest size of the name of a node, in bytes.
	NodeNameSizeMax = 63
	// AuthoritiesMax bounds the authorities in the metadata, and the distrusted ones.
	AuthoritiesMax = 32
	// CertificateSizeMax is the largest size of the certificate of an authority, in bytes.
	CertificateSizeMax = 16 << 10
	// TrustProofSizeMax is the largest size of the proof that goes with an authority, in bytes. It
	// holds a signature and one or a few certificates.
	TrustProofSizeMax = 16 << 10
	// RevokedMax bounds the revoked certificates in the metadata. A cluster that needs more retires
	// the authority that issued them.
	RevokedMax = 4_096
	// RevokedKeep is the time for which the metadata keeps a revoked certificate after its expiry.
	// It exceeds every error of a clock that a node in the cluster may have.
	RevokedKeep = 7 * 24 * time.Hour
	// RevocationTextMax bounds the name and the reason of a revocation, in bytes.
	RevocationTextMax = 256
	// SerialSizeMax bounds the serial number of a certificate, in hexadecimal digits (RFC 5280,
	// section 4.1.2.2: 20 octets).
	SerialSizeMax = 40
	// GossipKeysMax bounds the keys of gossip: a rotation has two, and one more leaves room for
	// repair by hand.
	GossipKeysMax = 3
	// GossipSecretSize is the size of a key of gossip in bytes: AES-256.
	GossipSecretSize = 32
)

// ValidateNodeName returns an error unless name may be the name of a node in its certificate: 1 to
// 63 lower-case letters, digits and '-', beginning with a letter.
func ValidateNodeName(name string) error {
	const op Op = "rhumb.ValidateNodeName"
	if name == "" || len(name) > NodeNameSizeMax {
		return Ef(op, InvalidArgument, "node name %.70q has %d characters; names have 1 to %d", name, len(name), NodeNameSizeMax)
	}
	for i, c := range name {
		letter := c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c != '-' && (c < '0' || c > '9')) {
			return Ef(op, InvalidArgument, "node name %q: use lower-case letters, digits and '-', and begin with a letter", name)
		}
	}
	return nil
}

// Authority is a certificate authority whose certificates the nodes of a cluster accept.
type Authority struct {
	// Fingerprint is the SHA-256 of the authority's public key (its SPKI), in hexadecimal digits.
	Fingerprint string
	// Cert is the certificate of the authority, in DER.
	Cert []byte
	// Proof is the signature of the operator who added the authority, as package identity makes and
	// verifies it. The metadata does not read it: each node verifies it before it trusts the
	// authority. It is empty in metadata of earlier builds.
	Proof []byte
	// Revision is that of the metadata with which the authority was added. The metadata sets it.
	// Revocations before it count against the operator, later ones do not.
	Revision uint64
}

// Revocation is a certificate that the nodes of a cluster reject before it expires, or, without a
// serial number, all certificates of a bearer that were issued before At.
type Revocation struct {
	// Serial is the serial number in lower-case hexadecimal digits, without leading zeros. It is empty
	// for a revocation of a bearer.
	Serial string `json:"serial,omitempty"`
	// Authority is the fingerprint of the authority that issued the
	// certificate. If it is empty, certificates with this serial number are
	// rejected whoever issued them.
	Authority string `json:"authority,omitempty"`
	// Name is whose certificate it was, as far as known: the role and the name, "user tower". In a
	// revocation of a bearer it decides.
	Name string `json:"name,omitempty"`
	// NotAfter is the expiry of the certificate, or zero if it is unknown. The metadata forgets the
	// entry RevokedKeep later, and never if NotAfter is zero or Name that of an operator.
	NotAfter time.Time `json:"not_after,omitzero"`
	// Why is the operator's reason, and At the time of the revocation.
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"`
	// Revision is that of the metadata with which the entry was made. The metadata sets it.
	Revision uint64 `json:"-"`
}

// GossipSecret is a key that encrypts gossip. No text form shows it.
type GossipSecret []byte

func (GossipSecret) String() string { return "(secret)" }

// GoString keeps the secret out of %#v.
func (GossipSecret) GoString() string { return "(secret)" }

// LogValue keeps the secret out of logs.
func (GossipSecret) LogValue() slog.Value { return slog.StringValue("(secret)") }

// MarshalText keeps the secret out of documents.
func (GossipSecret) MarshalText() ([]byte, error) { return []byte("(secret)"), nil }

// GossipKey is a key of gossip with its number. Numbers grow with each new key.
type GossipKey struct {
	ID     uint32
	Secret GossipSecret
}

// GossipKeys are the keys of gossip at a version. The first key encrypts what a node sends; a node
// accepts what any of them encrypted. Version 0 means that gossip is not encrypted.
//
// Gossip has keys of its own and not TLS: its packets are UDP datagrams between nodes that have
// never met, each of which must be readable by all members alike. News by gossip are hints and are
// confirmed over TLS.
type GossipKeys struct {
	Version uint64
	Keys    []GossipKey
}
