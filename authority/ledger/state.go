package ledger

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Token holds the facts in the ledger about one token.
type Token struct {
	ID string
	// Secret is the hash of the secret.
	Secret string
	// Node and Founder are authoritative; the claims of a token are not.
	Node    string
	Founder bool
	// Created is the time of the record, Expires the end of the token.
	Created time.Time
	Expires time.Time
	// Used is the time of its use, Key the hash of the key that used it.
	Used time.Time
	Key  string
	// Removed is set once an operator removed it, Late once it expired without use, Void if the
	// ledger lost records while the token existed.
	Removed, Late, Void bool
}

// State names the state of a token at a time.
//
// The order of the cases is the order of authority: decisions of operators come before acts of
// nodes, and both before the passing of time. A used token stays used after a gap, so that its node
// may repeat the request.
func (t *Token) State(now time.Time) string {
	switch {
	case t.Removed:
		return "removed"
	case !t.Used.IsZero():
		return "used"
	case t.Void:
		return "void"
	case t.Late || now.After(t.Expires):
		return "expired"
	}
	return "open"
}

// Certificate is a certificate that the authority signed.
type Certificate struct {
	// Seq is the number of the record.
	Seq uint64
	// Key is the hash of the certified key, Why the occasion.
	Serial, Role, Name, Key, Why string
	// Authority is the hash of the key that signed it.
	Authority string
	// Issued is the time of the record.
	Issued, Expires time.Time
	// Revoked is set if it must not be renewed.
	Revoked bool
	// RevokedWhy is the reason of the first revocation, if one was given.
	RevokedWhy string
}

// State is the sum of the records of a ledger. Callers of Update and View must not keep or change
// it.
//
// The state is in memory as a whole. At the maximal size of the file that is a few gigabytes, but a
// cluster of a hundred nodes reaches ten megabytes after three years.
type State struct {
	// Cluster is the cluster of the ledger; empty if the first record was lost.
	Cluster string
	// Adopted is set if the cluster is older than the authority.
	Adopted bool
	// head identifies the newest record, and last is its time.
	head Head
	last time.Time
	// Records counts the records, Gaps those of kind gap. LastGap is the time of the newest gap.
	Records, Gaps int
	LastGap       time.Time
	// Tokens holds all tokens by ID, and tokenOrder the same tokens, oldest first. Tokens are never
	// forgotten: their number is bounded by the size of the file.
	Tokens     map[string]*Token
	tokenOrder []*Token
	// Certificates holds all certificates in the order of their records.
	Certificates []*Certificate
	// bySerial and newest find certificates; the key of newest is the role and the name.
	bySerial map[string]*Certificate
	newest   map[string]*Certificate
	// revoked holds, by role and name, the time up to which issued certificates are not renewed.
	// Certificates whose record was lost are covered too.
	revoked map[string]time.Time
	// hashes holds the head after each record, to compare with the heads that nodes bring back.
	hashes map[uint64]Hash
	// Rotations counts the changes of the key.
	Rotations int
}

// newState returns the state of a ledger without records.
func newState() *State {
	return &State{
		Tokens: map[string]*Token{}, bySerial: map[string]*Certificate{}, newest: map[string]*Certificate{},
		revoked: map[string]time.Time{}, hashes: map[uint64]Hash{},
	}
}

// Head returns the head of the ledger.
func (s *State) Head() Head { return s.head }

// Now returns the time of the ledger: the wall clock, but never before the newest record. A clock
// that was set back makes no expired token valid again.
func (s *State) Now(wall time.Time) time.Time {
	if wall.Before(s.last) {
		return s.last
	}
	return wall
}

// TokensInOrder returns all tokens, oldest first.
func (s *State) TokensInOrder() []*Token { return s.tokenOrder }

// Founder returns the token that allows, or allowed, a node to create the cluster, or nil.
func (s *State) Founder(now time.Time) *Token {
	for i := len(s.tokenOrder) - 1; i >= 0; i-- {
		t := s.tokenOrder[i]
		if state := t.State(now); t.Founder && (state == "open" || state == "used") {
			return t
		}
	}
	return nil
}

// Certificate returns the certificate with a serial.
func (s *State) Certificate(serial string) (*Certificate, bool) {
	c, ok := s.bySerial[serial]
	return c, ok
}

// Newest returns the newest certificate of a role and name.
func (s *State) Newest(role, name string) (*Certificate, bool) {
	c, ok := s.newest[role+"/"+name]
	return c, ok
}

// IsRevoked reports whether a certificate must not be renewed. A certificate whose record was lost
// has the issue time that its holder presents.
func (s *State) IsRevoked(serial, role, name string, issued time.Time) bool {
	if c, ok := s.bySerial[serial]; ok && c.Revoked {
		return true
	}
	until, ok := s.revoked[role+"/"+name]
	return ok && !issued.After(until)
}

// IsKeyRevoked reports whether a certificate of a bearer with a key, given as the hash, was revoked. A revocation by serial number
// means the key too: whoever has it must not get another certificate for it by repeating a request.
func (s *State) IsKeyRevoked(role, name, key string) bool {
	for _, c := range s.Certificates {
		if c.Revoked && c.Role == role && c.Name == name && c.Key == key {
			return true
		}
	}
	return false
}

// Holds reports whether the ledger contains the history up to a head.
func (s *State) Holds(h Head) bool {
	have, ok := s.hashes[h.Seq]
	return ok && have == h.Hash
}

// apply adds a record whose text is on disk or will be.
//
// It checks before it changes anything, so that a refused record leaves the state as it was and the
// caller can report the offset.
func (s *State) apply(r Record, text []byte) error {
	switch {
	case s.head.Seq == 0 && (r.Kind != Made && r.Kind != Gap):
		return fmt.Errorf("the first record has the kind %q, want %q", r.Kind, Made)
	// A missing number is a removed line. Only a gap may skip numbers, because it admits the loss.
	case r.Kind == Gap && r.Seq <= s.head.Seq, r.Kind != Gap && r.Seq != s.head.Seq+1:
		return fmt.Errorf("record %d follows record %d", r.Seq, s.head.Seq)
	case r.Time.Before(s.last):
		return fmt.Errorf("record %d of %v is older than the record before it", r.Seq, r.Time)
	}
	if err := s.applyKind(&r); err != nil {
		return err
	}
	s.head = Head{r.Seq, s.head.Hash.chainAfter(text)}
	s.hashes[r.Seq] = s.head.Hash
	s.last = r.Time
	s.Records++
	return nil
}

// applyKind applies the part of a record that depends on its kind. It returns an error for records
// that contradict the earlier ones: the file is then damaged, even if all checksums fit.
func (s *State) applyKind(r *Record) error {
	t := s.Tokens[r.Token]
	switch r.Kind {
	case Made:
		if s.Cluster != "" && s.Cluster != r.Cluster {
			return fmt.Errorf("record %d names another cluster, %.40s", r.Seq, r.Cluster)
		}
		s.Cluster, s.Adopted = r.Cluster, r.Why == WhyAdopted
	case Created:
		if t != nil {
			return fmt.Errorf("token %.40s is created twice", r.Token)
		}
		t = &Token{ID: r.Token, Secret: r.Secret, Node: r.Name, Founder: r.Founder, Created: r.Time, Expires: r.Expires}
		s.Tokens[t.ID], s.tokenOrder = t, append(s.tokenOrder, t)
	case Used, Removed, Expired:
		if t == nil {
			return fmt.Errorf("record %d is about token %.40s, which no record created", r.Seq, r.Token)
		}
		switch r.Kind {
		case Used:
			t.Used, t.Key = r.Time, r.Key
		case Removed:
			t.Removed = true
		default:
			t.Late = true
		}
	case Issued:
		c := &Certificate{
			Seq: r.Seq, Serial: r.Serial, Role: r.Role, Name: r.Name, Key: r.Key, Why: r.Why, Authority: r.Authority,
			Issued: r.Time, Expires: r.Expires,
		}
		s.Certificates = append(s.Certificates, c)
		s.bySerial[c.Serial], s.newest[c.Role+"/"+c.Name] = c, c
	case Revoked:
		revoke := func(c *Certificate) {
			if !c.Revoked {
				c.Revoked, c.RevokedWhy = true, r.Why
			}
		}
		if c, ok := s.bySerial[r.Serial]; ok {
			revoke(c)
		}
		if r.Serial == "" {
			s.revoked[r.Role+"/"+r.Name] = r.Time
			for _, c := range s.Certificates {
				if c.Role == r.Role && c.Name == r.Name {
					revoke(c)
				}
			}
		}
	case Rotated:
		s.Rotations++
	case Gap:
		s.Gaps++
		s.LastGap = r.Time
		for _, t := range s.tokenOrder {
			t.Void = true
		}
	}
	return nil
}

// opLedger is the operation of errors about a ledger.
const opLedger rhumb.Op = "ledger.Ledger"
