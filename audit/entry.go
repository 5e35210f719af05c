package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rhumbdb/rhumb"
)

// The kinds of events.
const (
	// Admin is an administrative request. It has two entries: one with the outcome OutcomeBegun
	// before the request is carried out, and one with the outcome.
	Admin = "admin"
	// Login is a successful login, LoginFailed a failed one, Logout the end of a session by an
	// administrator, for example because the user was disabled.
	Login       = "login"
	LoginFailed = "login_failed"
	Logout      = "logout"
	// Revoke says that this node learned that a certificate was revoked or an authority distrusted.
	Revoke = "revoke"
	// Start and Stop are the beginning and the orderly end of the process.
	Start = "start"
	Stop  = "stop"
	// Repair says that an unfinished entry at the end of a segment was removed, Break that a segment
	// is damaged and the log continues in another one. Drop names a segment that is about to be
	// removed. Lost counts events that were not recorded.
	Repair = "audit_repair"
	Break  = "audit_break"
	Drop   = "audit_drop"
	Lost   = "audit_lost"
)

// Outcomes of an event. A failure has the name of the kind of its error as outcome.
const (
	OutcomeBegun = "begun"
	OutcomeOK    = "ok"
)

// Event describes something that happened. Fields without a value are omitted from the file.
//
// Fields hold names and not identifiers, because the log is read after users and tables were dropped, when
// identifiers can no longer be resolved.
type Event struct {
	// Kind is one of the constants above.
	Kind string `json:"kind"`
	// Caller is the bearer of the identity that was used: "user app", "operator anna", "node eu-1" or "insecure".
	Caller string `json:"caller,omitempty"`
	// Address is the remote address of the caller.
	Address string `json:"address,omitempty"`
	// Action is the request or the reason, Object the table, user, role, node or file it was about.
	Action string `json:"action,omitempty"`
	Object string `json:"object,omitempty"`
	// Outcome is OutcomeBegun, OutcomeOK or the kind of the error.
	Outcome string `json:"outcome,omitempty"`
	// Detail explains the outcome. It holds no values and no secrets.
	Detail string `json:"detail,omitempty"`
	// Policy is the revision of the metadata whose users and grants decided about the request.
	Policy uint64 `json:"policy,omitempty"`
	// Count is the number of events that an entry sums up, if more than one.
	Count uint64 `json:"count,omitempty"`
}

// Entry is an event with its place in the chain.
type Entry struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Node string    `json:"node,omitempty"`
	Event
}

// Hash is the SHA-256 of an entry and of all entries before it.
type Hash [sha256.Size]byte

// String returns 64 lower-case hexadecimal digits. ParseHead accepts no others, so that a hash has
// one text.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Head is the newest entry of a chain. Its text form is "SEQ:HASH".
type Head struct {
	Seq  uint64
	Hash Hash
}

func (h Head) String() string { return fmt.Sprintf("%d:%s", h.Seq, h.Hash) }

// ParseHead parses the text form of a head.
func ParseHead(s string) (h Head, err error) {
	seq, sum, ok := strings.Cut(strings.TrimSpace(s), ":")
	if ok {
		h.Seq, err = strconv.ParseUint(seq, 10, 64)
	}
	if !ok || err != nil || !parseHash(sum, &h.Hash) {
		return Head{}, rhumb.Ef("audit.ParseHead", rhumb.InvalidArgument, "head %q is not SEQ:HASH, as rhumb audit verify prints it", s)
	}
	return h, nil
}

// parseHash decodes a hash of lower-case hexadecimal digits.
func parseHash(s string, h *Hash) bool {
	if len(s) != 2*sha256.Size || strings.ToLower(s) != s {
		return false
	}
	_, err := hex.Decode(h[:], []byte(s))
	return err == nil
}

// Bounds of an entry.
const (
	// lineMax bounds a line of a segment in bytes.
	lineMax = 64 << 10
	// textMax bounds each text of an event. Longer texts are cut: callers choose names and
	// addresses.
	textMax = 1 << 10
)

// sumOf returns the hash of an entry with the given JSON after the entry with hash prev.
func sumOf(prev Hash, body []byte) (h Hash) {
	d := sha256.New()
	d.Write(prev[:])
	d.Write(body)
	d.Sum(h[:0])
	return h
}

// appendEntry appends the line of an entry, "HASH JSON\n", and returns the hash.
//
// The hash covers the JSON as written and not the fields. A reader then needs no canonical form,
// which would have to be the same in all versions of all encoders.
func appendEntry(dst []byte, prev Hash, e *Entry) ([]byte, Hash, error) {
	for _, s := range []*string{&e.Caller, &e.Address, &e.Action, &e.Object, &e.Outcome, &e.Detail, &e.Node} {
		*s = cutText(*s)
	}
	body, err := json.Marshal(e)
	if err != nil {
		return dst, prev, rhumb.Wrap("audit.append", err) // a year above 9999
	}
	h := sumOf(prev, body)
	dst = append(dst, h.String()...)
	dst = append(dst, ' ')
	dst = append(dst, body...)
	return append(dst, '\n'), h, nil
}

// cutText cuts a text to textMax bytes, at a rune.
func cutText(s string) string {
	if len(s) <= textMax {
		return s
	}
	n := textMax - len("...")
	// JSON would replace half a rune, and the reader see another text.
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// decodeEntry decodes a line without its line feed. The hash must match the content and prev.
func decodeEntry(line []byte, prev Head) (e Entry, h Head, err error) {
	const op rhumb.Op = "audit.decode"
	// The hash is checked before the JSON is parsed: only bytes that the node wrote reach the parser.
	sum, body, ok := bytes.Cut(line, []byte(" "))
	if !ok || !parseHash(string(sum), &h.Hash) {
		return e, h, rhumb.E(op, rhumb.Corrupt, "the line does not begin with a hash")
	}
	if sumOf(prev.Hash, body) != h.Hash {
		return e, h, rhumb.E(op, rhumb.Corrupt, "the hash of the entry does not match its content and the entry before it")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := dec.Decode(&e); err != nil || dec.More() {
		return e, h, rhumb.E(op, rhumb.Corrupt, "the entry is not one JSON object")
	}
	if e.Seq != prev.Seq+1 {
		return e, h, rhumb.Ef(op, rhumb.Corrupt, "the entry has number %d, want %d", e.Seq, prev.Seq+1)
	}
	h.Seq = e.Seq
	return e, h, nil
}

// formatVersion is the version of the segment files.
const formatVersion = 1

// headerOf returns the first line of a segment: the head of the chain before the segment.
func headerOf(before Head) []byte {
	return fmt.Appendf(nil, "rhumb-audit %d %s\n", formatVersion, before)
}

// decodeHeader decodes the first line of a segment without its line feed.
func decodeHeader(line []byte) (before Head, err error) {
	const op rhumb.Op = "audit.decode"
	f := strings.Split(string(line), " ")
	if len(f) != 3 || f[0] != "rhumb-audit" {
		return Head{}, rhumb.E(op, rhumb.Corrupt, "the file does not begin with a header of an audit log")
	}
	if f[1] != strconv.Itoa(formatVersion) {
		return Head{}, rhumb.Ef(op, rhumb.Incompatible, "the file has format %s of the audit log, and this build knows format %d", output(f[1]), formatVersion)
	}
	if before, err = ParseHead(f[2]); err != nil {
		return Head{}, rhumb.E(op, rhumb.Corrupt, "the header of the file has no valid hash")
	}
	return before, nil
}

// output returns a short text from a file in a form that is safe to print.
func output(s string) string { return strconv.Quote(cutText(s)) }
