// Package token encodes the one-time tokens with which a node gets its first certificate.
//
// A token is one line of text, "rhumb1." and base64url without padding. The bytes are
//
//	16  cluster
//	32  pin: SHA-256 of the public key (SubjectPublicKeyInfo) of the authority
//	 8  id, under which the ledger of the authority knows the token
//	16  secret; the ledger holds only its hash
//	 1  flags: bit 0 founder; all other bits are 0
//	uvarint  expiry, in seconds since 1970
//	bytes    name of the node
//	uvarint  number of addresses of the authority, 1 to AddressesMax
//	bytes    each address, "host:port"
//	 4  CRC-32C of everything before, big endian
//
// where bytes is a uvarint length followed by that number of bytes. The checksum finds tokens that
// were cut or mistyped before anything is sent; it protects against nobody. The pin protects the
// secret: a client sends it only to a server whose certificate chains to the pinned key.
//
// The format has one encoding for each token: base64 is decoded strictly, numbers have their
// shortest form, and unused bits are zero. A token that is accepted is therefore equal, as text, to
// the token that was created. Older versions refuse a token with another prefix as incompatible,
// and the prefix changes whenever the format does.
package token

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Prefix begins every token. Its digit is the version of the format.
const Prefix = "rhumb1."

// Bounds of a token.
const (
	AddressesMax   = 8
	addressSizeMax = 261 // a DNS name, a colon and a port
	nameSizeMax    = 63
	// SizeMax bounds the text of a token.
	SizeMax = 4096
)

// ID identifies a token in the ledger. It is not secret.
type ID [8]byte

// String returns 16 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID parses the format of ID.String.
func ParseID(s string) (id ID, err error) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(id) {
		return ID(b), nil
	}
	return id, rhumb.Ef("token.ParseID", rhumb.InvalidArgument, "token id %.40q does not have %d hexadecimal digits; `rhumb token ls` lists the ids", s, 2*len(id))
}

// Secret proves that the holder of a token got it from the authority.
type Secret [16]byte

// Hash returns the hash that the ledger stores in place of the secret. The secret is random, so a
// plain hash cannot be searched.
func (s Secret) Hash() [sha256.Size]byte { return sha256.Sum256(s[:]) }

// String hides the secret from formatted text.
func (Secret) String() string { return "(secret)" }

// Token entitles its holder to one certificate for the node that it names.
type Token struct {
	Cluster rhumb.ClusterID
	// Pin is the SHA-256 of the public key of the authority.
	Pin    [sha256.Size]byte
	ID     ID
	Secret Secret
	// Founder allows the node to create the cluster.
	Founder bool
	Expires time.Time // whole seconds
	// Node is the name of the node.
	Node string
	// Addresses are the addresses of the authority.
	Addresses []string
}

// LogValue keeps the secret out of logs.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.ID.String()) }

// flagFounder is the bit of Founder.
const flagFounder = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the text of a token.
func (t Token) Encode() string {
	var b []byte
	b = append(b, t.Cluster[:]...)
	b = append(b, t.Pin[:]...)
	b = append(b, t.ID[:]...)
	b = append(b, t.Secret[:]...)
	var flags byte
	if t.Founder {
		flags |= flagFounder
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(t.Expires.Unix()))
	b = appendText(b, t.Node)
	b = binary.AppendUvarint(b, uint64(len(t.Addresses)))
	for _, a := range t.Addresses {
		b = appendText(b, a)
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return Prefix + base64.RawURLEncoding.EncodeToString(b)
}

// appendText appends a text with its length.
func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// Parse decodes the text of a token, which may be surrounded by white space. No error contains any
// part of the token.
func Parse(text string) (t Token, err error) {
	const op rhumb.Op = "token.Parse"
	text = strings.TrimSpace(text)
	coded, ok := strings.CutPrefix(text, Prefix)
	switch {
	case text == "":
		return t, rhumb.E(op, rhumb.InvalidArgument, "the token is empty; `rhumb token create` makes one")
	// Before the general refusal: a token of a later version deserves the advice to upgrade.
	case !ok && strings.HasPrefix(text, "rhumb"):
		return t, rhumb.E(op, rhumb.Incompatible, "the token has a format that this version does not know; upgrade this node, or make the token with the same version of rhumb")
	case !ok:
		return t, rhumb.Ef(op, rhumb.InvalidArgument, "the text is not a token: tokens begin with %s; copy the whole line that `rhumb token create` printed", Prefix)
	case len(text) > SizeMax:
		return t, rhumb.Ef(op, rhumb.InvalidArgument, "the token has %d characters; tokens have at most %d", len(text), SizeMax)
	}
	// One error for everything up to the checksum. People copy tokens by hand, and the remedy is
	// the same wherever the damage is.
	garbled := rhumb.E(op, rhumb.InvalidArgument, "the token is garbled: it was cut or changed on its way (its checksum does not fit); copy the whole line again, or make a new token")
	// Strict, so that no two texts are the same token.
	b, err := base64.RawURLEncoding.Strict().DecodeString(coded)
	if err != nil || len(b) < 4 {
		return t, garbled
	}
	body := b[:len(b)-4]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(body):]) {
		return t, garbled
	}
	r := reader{rest: body}
	copy(t.Cluster[:], r.take(len(t.Cluster)))
	copy(t.Pin[:], r.take(len(t.Pin)))
	copy(t.ID[:], r.take(len(t.ID)))
	copy(t.Secret[:], r.take(len(t.Secret)))
	flags := r.take(1)
	expires := r.uvarint()
	t.Node = r.text(nameSizeMax)
	n := r.uvarint()
	if n > AddressesMax {
		r.bad = true
	}
	for range n {
		if r.bad {
			break
		}
		t.Addresses = append(t.Addresses, r.text(addressSizeMax))
	}
	// The bound of the expiry keeps time.Unix and the later formatting in years that have four
	// digits or a few more.
	if r.bad || len(r.rest) > 0 || flags[0]&^flagFounder != 0 || expires > 1<<40 {
		return Token{}, rhumb.E(op, rhumb.InvalidArgument, "the token has a valid checksum but cannot be decoded; make it with the same version of rhumb")
	}
	t.Founder, t.Expires = flags[0]&flagFounder != 0, time.Unix(int64(expires), 0)
	if err := t.Validate(); err != nil {
		return Token{}, err
	}
	return t, nil
}

// Validate checks the fields of a token.
func (t *Token) Validate() error {
	const op rhumb.Op = "token.Validate"
	bad := func(format string, args ...any) error {
		return rhumb.Ef(op, rhumb.InvalidArgument, "token: "+format, args...)
	}
	switch {
	case t.Cluster.IsZero():
		return bad("it names no cluster")
	case t.Node == "" || len(t.Node) > nameSizeMax:
		return bad("it names no node")
	case len(t.Addresses) == 0 || len(t.Addresses) > AddressesMax:
		return bad("it has %d addresses of the authority, want 1 to %d", len(t.Addresses), AddressesMax)
	}
	for _, a := range t.Addresses {
		if err := ValidateAddress(a); err != nil {
			return err
		}
	}
	return nil
}

// ValidateAddress checks an address of an authority, "host:port".
//
// The alphabet is narrow, because the address is printed in messages and put into certificates as a
// host name.
func ValidateAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	n, errPort := strconv.ParseUint(port, 10, 16)
	if err != nil || errPort != nil || n == 0 || host == "" || len(addr) > addressSizeMax || strings.ContainsFunc(host, notInHost) {
		return rhumb.Ef("token.ValidateAddress", rhumb.InvalidArgument, "%.300q is not HOST:PORT, the address of an authority", addr)
	}
	return nil
}

// notInHost reports whether a rune is in no host name and no IP address.
func notInHost(c rune) bool {
	return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-._:%", c))
}

// reader decodes the body of a token. After a fault, bad is set and everything is zero.
type reader struct {
	rest []byte
	bad  bool
}

// take returns the next n bytes, or zeros after a fault.
func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.rest) {
		r.bad, r.rest = true, nil
		return make([]byte, n)
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

// uvarint returns the next number, or zero after a fault.
func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	// A number in more bytes than it needs is refused, so that a token has one encoding.
	if n <= 0 || n > 1 && r.rest[n-1] == 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// text returns the next text, which has at most the given number of bytes, or an empty text after a
// fault. The bound is checked before anything is allocated.
func (r *reader) text(most int) string {
	n := r.uvarint()
	if n > uint64(most) {
		r.bad = true
		return ""
	}
	return string(r.take(int(n)))
}
