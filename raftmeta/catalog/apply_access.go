package catalog

import (
	"bytes"
	"iter"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
)

// accessBook holds the users and roles of a State, sorted by name, with the policy compiled from
// them. It is immutable. Both lists are bounded and change seldom, so a change copies a list of
// pointers.
//
// The compiled policy is derived and never stored: every replica compiles it from the same records,
// and a later version may compile them in another way without a change of the format.
type accessBook struct {
	users []*access.User
	roles []*access.Role
	// revision is that of the last change of a user or role.
	revision uint64
	// policy is compiled from the users and roles. In a state of ApplyDeferred it may be that of an earlier revision.
	policy *access.Policy
}

// compiled returns the book with the policy of its own revision.
func (b *accessBook) compiled() *accessBook {
	if b == nil || b.policy.Revision() == b.revision {
		return b
	}
	c := *b
	c.policy = access.Compile(b.policy, b.revision, b.users, b.roles)
	return &c
}

// Access returns what callers may do. The policy of a cluster without users is nil, which denies
// users everything. A state of ApplyDeferred compiles the policy in each call.
func (s *State) Access() *access.Policy {
	if s == nil || s.access == nil {
		return nil
	}
	return s.access.compiled().policy
}

// WithPolicy returns the state with a compiled policy, so that Access costs nothing.
func (s *State) WithPolicy() *State {
	b := s.access.compiled()
	if b == s.access {
		return s
	}
	next := *s
	next.access = b
	return &next
}

// Users yields all users, ordered by name. The records are shared and must not be modified.
func (s *State) Users() iter.Seq[*access.User] { return slices.Values(s.book().users) }

// Roles yields all roles, ordered by name. The records are shared and must not be modified.
func (s *State) Roles() iter.Seq[*access.Role] { return slices.Values(s.book().roles) }

// User returns the user with the given name.
func (s *State) User(name string) (*access.User, bool) {
	i, ok := findUser(s.book().users, name)
	if !ok {
		return nil, false
	}
	return s.book().users[i], true
}

// Role returns the role with the given name.
func (s *State) Role(name string) (*access.Role, bool) {
	i, ok := findRole(s.book().roles, name)
	if !ok {
		return nil, false
	}
	return s.book().roles[i], true
}

// book returns the users and roles, which may be none.
func (s *State) book() *accessBook {
	if s.access == nil {
		return &accessBook{}
	}
	return s.access
}

func findUser(users []*access.User, name string) (int, bool) {
	return slices.BinarySearchFunc(users, name, func(u *access.User, name string) int { return strings.Compare(u.Name, name) })
}

func findRole(roles []*access.Role, name string) (int, bool) {
	return slices.BinarySearchFunc(roles, name, func(r *access.Role, name string) int { return strings.Compare(r.Name, name) })
}

// editBook returns a copy of the users and roles that the transaction may change, and notes the
// change. The policy is compiled after the transaction.
func (t *tx) editBook() *accessBook {
	b := *t.book()
	b.users, b.roles = slices.Clone(b.users), slices.Clone(b.roles)
	t.access = &b
	t.changes.Access = true
	return t.access
}

// putUser stores a user.
func (t *tx) putUser(u *access.User) {
	b := t.editBook()
	if i, ok := findUser(b.users, u.Name); ok {
		b.users[i] = u
	} else {
		b.users = slices.Insert(b.users, i, u)
	}
}

// putRole stores a role.
func (t *tx) putRole(r *access.Role) {
	b := t.editBook()
	if i, ok := findRole(b.roles, r.Name); ok {
		b.roles[i] = r
	} else {
		b.roles = slices.Insert(b.roles, i, r)
	}
}

// dateAccess notes the revision of the new state if a command changed users or roles. The policy is then out of date.
func (t *tx) dateAccess(revision uint64) {
	if t.changes.Access {
		t.access.revision = revision
	}
}

// nextRevision returns the revision that the command creates.
func (t *tx) nextRevision() uint64 { return t.revision + 1 }

// applyTo creates the user. The number of a user is its name: grants of a dropped user do not
// exist, since roles carry them, so a new user of the name inherits nothing but the certificates
// that still name it.
func (c CreateUser) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CreateUser"
	roles := slices.Clone(c.Roles)
	slices.Sort(roles)
	roles = slices.Compact(roles)
	if len(roles) == 0 {
		roles = nil // as decoding yields it
	}
	if u, ok := t.User(c.Name); ok {
		// A repetition finds the earlier result.
		if sameVerifier(u.Verifier, c.Verifier) && slices.Equal(u.Roles, roles) && !u.Disabled {
			return Result{}
		}
		return refuse(op, rhumb.AlreadyExists, "user %s already exists; choose another name, or change the user with `rhumb user passwd` and `rhumb role assign`", c.Name)
	}
	if err := access.ValidateName("user", c.Name); err != nil {
		return refuseErr(op, err)
	}
	if err := validateVerifier(c.Verifier); err != nil {
		return refuseErr(op, err)
	}
	if n := len(t.book().users); n >= access.UsersMax {
		return refuse(op, rhumb.TooLarge, "user %s was not created: the cluster has %d users, which is the limit", c.Name, n)
	}
	if len(roles) > access.UserRolesMax {
		return refuse(op, rhumb.TooLarge, "user %s would have %d roles; the limit is %d", c.Name, len(roles), access.UserRolesMax)
	}
	for _, r := range roles {
		if _, ok := t.Role(r); !ok {
			return refuseRole(op, r)
		}
	}
	t.putUser(&access.User{Name: c.Name, Verifier: c.Verifier, Roles: roles, Credentials: t.nextRevision()})
	return Result{}
}

// validateVerifier returns an error if a verifier that exists is implausible.
func validateVerifier(v access.Verifier) error {
	if v.IsZero() {
		return nil
	}
	return v.Validate()
}

func sameVerifier(a, b access.Verifier) bool {
	return a.Iterations == b.Iterations && bytes.Equal(a.Salt, b.Salt) && bytes.Equal(a.StoredKey, b.StoredKey) && bytes.Equal(a.ServerKey, b.ServerKey)
}

// refuseUser refuses a command about a user that does not exist.
func refuseUser(op rhumb.Op, name string) Result {
	return refuse(op, rhumb.NotFound, "user %q does not exist; list users with `rhumb user ls`", name)
}

// refuseRole refuses a command about a role that does not exist.
func refuseRole(op rhumb.Op, name string) Result {
	return refuse(op, rhumb.NotFound, "role %q does not exist; list roles with `rhumb role ls`, or create it with `rhumb role create`", name)
}

// applyTo changes the user. A changed verifier has new credentials, by which nodes recognize
// sessions that began with the former password.
func (c SetUser) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetUser"
	u, ok := t.User(c.Name)
	if !ok {
		return refuseUser(op, c.Name)
	}
	next := *u
	if c.Verifier != nil {
		if err := validateVerifier(*c.Verifier); err != nil {
			return refuseErr(op, err)
		}
		// The same verifier again is a repetition and must not end the sessions that began since.
		if !sameVerifier(u.Verifier, *c.Verifier) {
			next.Verifier, next.Credentials = *c.Verifier, t.nextRevision()
		}
	}
	if c.Disabled != nil {
		next.Disabled = *c.Disabled
	}
	if next.Disabled != u.Disabled || next.Credentials != u.Credentials {
		t.putUser(&next)
	}
	return Result{}
}

// applyTo removes the user. Its sessions end at each node when the change arrives there.
func (c DropUser) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.DropUser"
	i, ok := findUser(t.book().users, c.Name)
	if !ok {
		return refuseUser(op, c.Name)
	}
	b := t.editBook()
	b.users = slices.Delete(b.users, i, i+1)
	return Result{}
}

// applyTo creates the role. A role of the name without grants may be the work of an earlier
// attempt, and is success; one with grants has meaning to somebody, and is not.
func (c CreateRole) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CreateRole"
	if r, ok := t.Role(c.Name); ok {
		if len(r.Grants) == 0 {
			return Result{}
		}
		return refuse(op, rhumb.AlreadyExists, "role %s already exists and has %d grants; list them with `rhumb grant ls`", c.Name, len(r.Grants))
	}
	if err := access.ValidateName("role", c.Name); err != nil {
		return refuseErr(op, err)
	}
	if n := len(t.book().roles); n >= access.RolesMax {
		return refuse(op, rhumb.TooLarge, "role %s was not created: the cluster has %d roles, which is the limit", c.Name, n)
	}
	t.putRole(&access.Role{Name: c.Name})
	return Result{}
}

// applyTo removes the role. Without Cascade a role in use stays, because its users would lose
// rights that the caller may not have thought of.
func (c DropRole) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.DropRole"
	i, ok := findRole(t.book().roles, c.Name)
	if !ok {
		return refuseRole(op, c.Name)
	}
	var holders []*access.User
	for u := range t.Users() {
		if slices.Contains(u.Roles, c.Name) {
			holders = append(holders, u)
		}
	}
	if len(holders) > 0 && !c.Cascade {
		return refuse(op, rhumb.Conflict, "%d users have role %s, for example %s; take the role from them with `rhumb role unassign`, or from all at once with --force", len(holders), c.Name, holders[0].Name)
	}
	for _, u := range holders {
		t.putUser(withoutRole(u, c.Name))
	}
	b := t.editBook()
	b.roles = slices.Delete(b.roles, i, i+1)
	return Result{}
}

// withoutRole returns a copy of a user without one of its roles.
func withoutRole(u *access.User, role string) *access.User {
	next := *u
	next.Roles = slices.DeleteFunc(slices.Clone(u.Roles), func(r string) bool { return r == role })
	if len(next.Roles) == 0 {
		next.Roles = nil // as decoding yields it
	}
	return &next
}

// applyTo changes one role of the user. Roles are assigned one by one, so that two administrators
// who change different roles at the same time do not undo each other's work.
func (c AssignRole) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.AssignRole"
	u, ok := t.User(c.User)
	if !ok {
		return refuseUser(op, c.User)
	}
	if _, ok := t.Role(c.Role); !ok {
		return refuseRole(op, c.Role)
	}
	i, has := slices.BinarySearch(u.Roles, c.Role)
	switch {
	// Done already, for example by a repetition.
	case has != c.Remove:
		return Result{}
	case c.Remove:
		t.putUser(withoutRole(u, c.Role))
		return Result{}
	case len(u.Roles) >= access.UserRolesMax:
		return refuse(op, rhumb.TooLarge, "user %s has %d roles, which is the limit; take one away, or make one role of several", c.User, len(u.Roles))
	}
	next := *u
	next.Roles = slices.Insert(slices.Clone(u.Roles), i, c.Role)
	t.putUser(&next)
	return Result{}
}

// applyTo changes one grant. Added and removed rights are two sets, so that `grant` and `revoke` of
// different rights commute.
func (c AlterGrant) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.AlterGrant"
	r, ok := t.Role(c.Role)
	if !ok {
		return refuseRole(op, c.Role)
	}
	if err := (access.Grant{Scope: c.Scope, Rights: c.Add | c.Remove}).Validate(); err != nil {
		return refuseErr(op, err)
	}
	i, has := slices.BinarySearchFunc(r.Grants, c.Scope, func(g access.Grant, s access.Scope) int { return g.Scope.Compare(s) })
	var old access.Rights
	if has {
		old = r.Grants[i].Rights
	}
	// Removing wins over adding within one command, so a contradiction denies.
	rights := (old | c.Add) &^ c.Remove
	if rights == old {
		return Result{}
	}
	if !has {
		if err := t.checkNewGrant(c.Scope); err != nil {
			return refuseErr(op, err)
		}
	}
	next := &access.Role{Name: r.Name, Grants: slices.Clone(r.Grants)}
	switch {
	case !has:
		next.Grants = slices.Insert(next.Grants, i, access.Grant{Scope: c.Scope, Rights: rights})
	case rights == 0:
		next.Grants = slices.Delete(next.Grants, i, i+1)
	default:
		next.Grants[i].Rights = rights
	}
	if len(next.Grants) == 0 {
		next.Grants = nil // as decoding yields it
	}
	t.putRole(next)
	return Result{}
}

// applyTo marks the table. It is final, because readers of shared memory cannot learn about a
// right that ends: whoever has opened an image keeps it.
func (c RefuseSnapshot) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RefuseSnapshot"
	table, ok := t.TableByName(c.Table)
	if !ok {
		return refuse(op, rhumb.NotFound, "table %q does not exist; list tables with `rhumb table ls`", c.Table)
	}
	if table.Snapshot != rhumb.SnapshotNever {
		// Readers share the old record, so a copy is changed.
		next := *table
		next.Snapshot = rhumb.SnapshotNever
		t.putTable(&next)
	}
	return Result{Table: table.ID, Class: table.Class}
}

// checkNewGrant returns an error if the cluster has no room for another grant.
//
// The bounds are those of memory at every node, and of the time in which a policy is compiled while
// the metadata group waits.
func (t *tx) checkNewGrant(s access.Scope) error {
	const op rhumb.Op = "catalog.Grant"
	grants, prefixes := t.book().size()
	if grants >= access.GrantsMax {
		return rhumb.Ef(op, rhumb.TooLarge, "the cluster has %d grants, which is the limit; grant longer prefixes to fewer roles, or whole tables", grants)
	}
	if prefixes+len(s.Prefix) > access.PrefixBytesMax {
		return rhumb.Ef(op, rhumb.TooLarge, "the prefixes of all grants have %d bytes, and %d is the limit; use shorter prefixes", prefixes, access.PrefixBytesMax)
	}
	return nil
}

// size returns the number of grants and the bytes of their prefixes.
func (b *accessBook) size() (grants, prefixBytes int) {
	for _, r := range b.roles {
		grants += len(r.Grants)
		for _, g := range r.Grants {
			prefixBytes += len(g.Scope.Prefix)
		}
	}
	return grants, prefixBytes
}

// checkAccess checks users and roles: sorted by name, valid, within the bounds, and each role of a
// user exists.
//
// It runs on states that are read from disk or from another node. A state that breaks an invariant
// must not become the base of decisions about rights, so the node refuses it and does not repair
// it.
func (s *State) checkAccess() error {
	b := s.book()
	grants, prefixes := b.size()
	if len(b.users) > access.UsersMax || len(b.roles) > access.RolesMax || grants > access.GrantsMax || prefixes > access.PrefixBytesMax {
		return brokenInvariant("there are %d users, %d roles, %d grants and %d bytes of prefixes, more than the limits", len(b.users), len(b.roles), grants, prefixes)
	}
	if b.revision > s.revision {
		return brokenInvariant("users or roles changed at revision %d, after the present one, %d", b.revision, s.revision)
	}
	for i, r := range b.roles {
		if i > 0 && b.roles[i-1].Name >= r.Name || access.ValidateName("role", r.Name) != nil {
			return brokenInvariant("role %q is out of order or has an invalid name", r.Name)
		}
		for j, g := range r.Grants {
			if j > 0 && r.Grants[j-1].Scope.Compare(g.Scope) >= 0 || g.Validate() != nil {
				return brokenInvariant("grant %d of role %s is out of order or invalid", j, r.Name)
			}
		}
	}
	for i, u := range b.users {
		if i > 0 && b.users[i-1].Name >= u.Name || access.ValidateName("user", u.Name) != nil || validateVerifier(u.Verifier) != nil {
			return brokenInvariant("user %q is out of order or has an invalid name or verifier", u.Name)
		}
		if u.Credentials == 0 || u.Credentials > s.revision || len(u.Roles) > access.UserRolesMax {
			return brokenInvariant("user %s has too many roles, or credentials of revision %d after the present one, %d", u.Name, u.Credentials, s.revision)
		}
		for j, role := range u.Roles {
			if _, ok := s.Role(role); !ok || j > 0 && u.Roles[j-1] >= role {
				return brokenInvariant("role %q of user %s does not exist or is out of order", role, u.Name)
			}
		}
	}
	return nil
}
