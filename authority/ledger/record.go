// Package ledger keeps the ledger of an authority: an append-only file of its tokens and
// certificates. The ledger decides whether a token may still be used, so it must not forget.
//
// # Format
//
// The file "ledger" holds one record per line: the CRC-32C of the JSON text in 8 hexadecimal
// digits, a space, the JSON text, and a line feed. The first record has sequence number 1 and names
// the cluster; each later record has the next number, except that a record of kind "gap" may skip
// numbers. The head after a record is the SHA-256 of the head before it and the JSON text.
//
// The file "mark" holds one line of the same form: the number and the head of the last record that
// was acknowledged. It is replaced after the record is on disk and before the caller gets its
// answer.
//
// # Lost records
//
// A record that is torn at the end of the file and newer than the mark was never acknowledged; it
// is cut off. Every other damage is reported with the file and the offset. If the ledger is older
// than the mark, or than a head that the authority signed and a node brings back, records were
// lost: among them may be the use of a token. The ledger then appends a gap, which voids all tokens
// that exist. Nodes that have certificates are not affected.
//
// # Concurrency
//
// Several processes may have a ledger open. Each operation holds the lock file, reads the records
// that other processes appended, decides, appends, syncs the file, and replaces the mark. A process
// remembers the head that it read last. If the file is replaced by an older one while the process
// runs, the head is missing from the file, and the loss is noticed without any mark.
//
// # Time
//
// Records carry the time of the wall clock, but never a time before that of the record before them.
// Decisions about tokens use the same time. A clock that is set back therefore makes no expired
// token usable.
package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Kind is the kind of event that a record reports. Kinds are in files: never rename one.
type Kind string

// The kinds of records.
const (
	// Made begins a ledger: Cluster.
	Made Kind = "made"
	// Created: a token exists. Token, Secret (hash), Name, Founder, Expires.
	Created Kind = "created"
	// Used: the token was exchanged for a certificate for the key. Token, Key.
	Used Kind = "used"
	// Removed: an operator removed the token. Token.
	Removed Kind = "removed"
	// Expired: the token was not used in time. Token.
	Expired Kind = "expired"
	// Issued: a certificate was signed. Serial, Role, Name, Key, Expires, Authority, Why.
	Issued Kind = "issued"
	// Revoked: certificates of the name, or the one with the serial, are not renewed. Role, Name or
	// Serial; Why.
	Revoked Kind = "revoked"
	// Rotated: the authority signs with another key from here on. Authority.
	Rotated Kind = "rotated"
	// Retired: an old key of the authority is not trusted any more. Authority.
	Retired Kind = "retired"
	// Gap: records were lost; all tokens are void. Why.
	Gap Kind = "gap"
)

// WhyAdopted is the reason in the first record of an authority that was made for a cluster that
// exists already.
const WhyAdopted = "adopted"

var kinds = map[Kind]bool{
	Made: true, Created: true, Used: true, Removed: true, Expired: true, Issued: true, Revoked: true, Rotated: true, Retired: true, Gap: true,
}

// Record is one line of the ledger. Fields that a kind does not use are empty.
//
// One type for all kinds, as JSON: the file is read by people more often than by programs, and a
// kind with other fields would be one more decoder to keep forever.
type Record struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"` // never before the time of the record before it
	Kind Kind      `json:"kind"`
	// Cluster is in the first record.
	Cluster string `json:"cluster,omitempty"`
	// Token is the id of a token, Secret the SHA-256 of its secret in hexadecimal digits.
	Token  string `json:"token,omitempty"`
	Secret string `json:"secret,omitempty"`
	// Role and Name are those of a certificate, or the name of the node of a token.
	Role string `json:"role,omitempty"`
	Name string `json:"name,omitempty"`
	// Founder is set for tokens that allow the node to create the cluster.
	Founder bool `json:"founder,omitempty"`
	// Key is the SHA-256 of the public key of a certificate, Authority that of the key that signed
	// it.
	Key       string `json:"key,omitempty"`
	Authority string `json:"authority,omitempty"`
	// Serial is the number of a certificate in hexadecimal digits.
	Serial string `json:"serial,omitempty"`
	// Expires is the end of a token or of a certificate.
	Expires time.Time `json:"expires,omitzero"`
	// Why is the occasion: enrol, renew, by hand, or the reason of an operator.
	Why string `json:"why,omitempty"`
}

// Hash is the head of a ledger after a record.
type Hash [sha256.Size]byte

// String returns 64 hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash parses the format of Hash.String.
func ParseHash(s string) (h Hash, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) {
		return h, false
	}
	return Hash(b), true
}

// chainAfter returns the head after a record with the given JSON text.
func (h Hash) chainAfter(text []byte) Hash {
	sum := sha256.New()
	sum.Write(h[:])
	sum.Write(text)
	return Hash(sum.Sum(nil))
}

// Head identifies everything that a ledger holds.
type Head struct {
	Seq  uint64
	Hash Hash
}

// lineMax bounds one line. The longest texts in a record are the reasons that operators type.
const lineMax = 16 << 10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealLine returns a line with its checksum.
func sealLine(text []byte) []byte {
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(text, castagnoli), text)
}

// openLine checks a line without its line feed and returns the text.
func openLine(line []byte) (text []byte, err error) {
	var sum [4]byte
	if len(line) < 9 || line[8] != ' ' || len(line) > lineMax {
		return nil, fmt.Errorf("the line is not a checksum and a record")
	}
	if _, err := hex.Decode(sum[:], line[:8]); err != nil {
		return nil, fmt.Errorf("the checksum is not hexadecimal")
	}
	text = line[9:]
	if want := fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)); want != string(line[:8]) {
		return nil, fmt.Errorf("the checksum is %s, the text has %s", line[:8], want)
	}
	return text, nil
}

// decodeRecord decodes the text of one record.
func decodeRecord(text []byte) (r Record, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	// A record of a newer version may mean something that this version would ignore, such as a
	// limit on a token. Not knowing is an error here, unlike in requests.
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return r, err
	}
	if dec.More() {
		return r, fmt.Errorf("more than one document")
	}
	if !kinds[r.Kind] {
		return r, rhumb.Ef("ledger.decodeRecord", rhumb.Incompatible, "record %d has the kind %.40q, which this version does not know", r.Seq, r.Kind)
	}
	return r, nil
}
