package access

import (
	"log/slog"

	"github.com/rhumbdb/rhumb"
)

// Bounds of the users and roles of a cluster. Every node holds all of them in memory.
const (
	// NameSizeMax is the largest size of the name of a user or a role, in bytes.
	NameSizeMax = 63
	// UsersMax, RolesMax and GrantsMax bound a cluster. GrantsMax counts the grants of all roles.
	UsersMax  = 10_000
	RolesMax  = 1_000
	GrantsMax = 10_000
	// UserRolesMax is the largest number of roles of a user. Each role costs a lookup per request.
	UserRolesMax = 16
	// PrefixBytesMax is the largest total size of the prefixes of all grants, in bytes.
	PrefixBytesMax = 4 << 20
)

// Bounds of a verifier. IterationsMin is the minimum of RFC 7677. Each login costs IterationsMax
// hashes on the client, and a client refuses to compute more.
const (
	IterationsMin = 4_096
	IterationsMax = 1_000_000
	// SaltSizeMin and SaltSizeMax bound the salt, in bytes.
	SaltSizeMin = 8
	SaltSizeMax = 64
	// KeySize is the size of both keys: they are SHA-256 hashes.
	KeySize = 32
)

// Verifier verifies a password by SCRAM-SHA-256 (RFC 5802) without containing it. Whoever reads a
// verifier can try passwords against it offline, so it is never sent to clients, printed or logged.
//
// Four methods hide the contents, one per way in which Go prints a value. The type has no method
// that reveals them: the code that needs the fields reads them, and reviewers can search for that.
type Verifier struct {
	Iterations int
	Salt       []byte
	StoredKey  []byte
	ServerKey  []byte
}

// IsZero reports whether the verifier is absent: the user has no password.
func (v Verifier) IsZero() bool {
	return v.Iterations == 0 && len(v.Salt)+len(v.StoredKey)+len(v.ServerKey) == 0
}

// String hides the verifier from messages.
func (v Verifier) String() string {
	if v.IsZero() {
		return "no password"
	}
	return "a password"
}

// GoString hides the verifier from messages of the format %#v.
func (v Verifier) GoString() string { return v.String() }

// LogValue hides the verifier from logs.
func (v Verifier) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalJSON hides the verifier from documents.
func (v Verifier) MarshalJSON() ([]byte, error) { return []byte(`"` + v.String() + `"`), nil }

// Validate rejects a verifier with a missing or implausible part.
func (v Verifier) Validate() error {
	const op rhumb.Op = "access.Verifier"
	switch {
	case v.Iterations < IterationsMin || v.Iterations > IterationsMax:
		return rhumb.Ef(op, rhumb.InvalidArgument, "the password was hashed %d times; use %d to %d iterations", v.Iterations, IterationsMin, IterationsMax)
	case len(v.Salt) < SaltSizeMin || len(v.Salt) > SaltSizeMax:
		return rhumb.Ef(op, rhumb.InvalidArgument, "the salt of the password has %d bytes; use %d to %d", len(v.Salt), SaltSizeMin, SaltSizeMax)
	case len(v.StoredKey) != KeySize || len(v.ServerKey) != KeySize:
		return rhumb.Ef(op, rhumb.InvalidArgument, "the keys of the password have %d and %d bytes; SCRAM-SHA-256 makes keys of %d", len(v.StoredKey), len(v.ServerKey), KeySize)
	}
	return nil
}

// User is a user of the database. A record that is shared must not be modified.
//
// Neither the password nor sessions are part of the record. A session belongs to one connection at one
// node, and Credentials ties the session to this record.
type User struct {
	Name string
	// Verifier verifies the password. A user without one logs in by certificate only.
	Verifier Verifier
	// Disabled takes all rights away, and ends all sessions.
	Disabled bool
	// Roles lists the names of the user's roles, sorted and distinct.
	Roles []string
	// Credentials is the revision of the metadata that created the user or last changed the
	// password. A session that began under another value has ended. Revisions are never reused, so
	// this holds as well for a user that was dropped and created again.
	Credentials uint64
}

// Role is a named set of grants. A record that is shared must not be modified.
type Role struct {
	Name string
	// Grants is sorted by scope and has at most one grant per scope.
	Grants []Grant
}

// ValidateName rejects a name of a user, operator or role that is not 1 to NameSizeMax letters,
// digits, '-', '_', '.' and '@', or begins with '-' or '.'. Names in certificates have the same
// alphabet. The parameter what names the thing in the message.
func ValidateName(what, name string) error {
	const op rhumb.Op = "access.Name"
	if name == "" || len(name) > NameSizeMax {
		return rhumb.Ef(op, rhumb.InvalidArgument, "the name of the %s %.20q has %d characters; names have 1 to %d", what, name, len(name), NameSizeMax)
	}
	for i, c := range []byte(name) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		mark := c == '_' || c == '@' || i > 0 && (c == '-' || c == '.')
		if !alnum && !mark {
			return rhumb.Ef(op, rhumb.InvalidArgument, "the name of the %s %q contains %q; use letters, digits, '-', '_', '.' and '@', and begin with none of '-' and '.'", what, name, rune(c))
		}
	}
	return nil
}
