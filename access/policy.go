package access

import (
	"maps"
	"math/bits"
	"slices"
)

// Policy is the compiled form of all users, roles and grants at one revision. It is immutable. A
// nil policy has no users.
//
// The compiled form is a table of what each user may do, made once per change of the catalog. The
// alternative, evaluating grants per request, costs time in proportion to all grants of a user, on
// the path of every read.
type Policy struct {
	revision uint64
	users    map[string]*Subject
	roles    map[string]*compiledRole
	// oldest is the user with a password whose credentials are the oldest, or nil.
	oldest *User
}

// Subject answers questions about one principal. It is immutable and belongs to one Policy, so a
// request must not keep it for longer than a moment.
type Subject struct {
	source  *User
	cluster Rights
	// everywhere holds rights to all names of all tables, visible that all tables may be seen.
	everywhere Rights
	visible    bool
	roles      []*compiledRole
}

// compiledRole holds the grants of a role in searchable form.
type compiledRole struct {
	source  *Role
	cluster Rights
	all     *nameRights // of the grants for all tables; nil without them
	tables  map[string]*nameRights
}

// nameRights holds the rights to names within a table.
type nameRights struct {
	whole    Rights // to every name
	any      Rights // to some name
	prefixed [rightCount][]string
}

// Subjects of principals whose rights do not depend on the catalog.
var (
	nothing = &Subject{}
	// Pointers, so that IsUnlimited is one comparison.
	everything = &Subject{cluster: ClusterRights, everywhere: TableRights, visible: true}
	otherNode  = &Subject{visible: true}
)

// Compile returns the policy of the given users and roles. Records that previous, which may be nil,
// was compiled from are not compiled again, so that a change costs little more than the records
// that changed. The records must be valid, and must not be modified afterwards.
func Compile(previous *Policy, revision uint64, users []*User, roles []*Role) *Policy {
	p := &Policy{revision: revision, users: make(map[string]*Subject, len(users)), roles: make(map[string]*compiledRole, len(roles))}
	if previous == nil {
		previous = &Policy{}
	}
	// A dropped role changes the users who had it, although no record of a remaining role is new.
	changed := len(roles) != len(previous.roles)
	for _, r := range roles {
		c := previous.roles[r.Name]
		// Records are compared by address: the catalog replaces a record when it changes and never
		// modifies it.
		if c == nil || c.source != r {
			c, changed = compileRole(r), true
		}
		p.roles[r.Name] = c
	}
	for _, u := range users {
		s := previous.users[u.Name]
		// A subject points to compiled roles, so it lives only as long as all of these.
		if s == nil || s.source != u || changed {
			s = p.compileUser(u)
		}
		p.users[u.Name] = s
		if !u.Verifier.IsZero() && (p.oldest == nil || u.Credentials < p.oldest.Credentials) {
			p.oldest = u
		}
	}
	return p
}

// Oldest returns the user whose password was set first of all that exist, or nil. It is found when the policy is
// compiled, so that the answer takes as long with thousands of users as with one.
func (p *Policy) Oldest() *User {
	if p == nil {
		return nil
	}
	return p.oldest
}

// compileUser returns the subject of a user.
func (p *Policy) compileUser(u *User) *Subject {
	s := &Subject{source: u}
	if u.Disabled {
		return s
	}
	for _, name := range u.Roles {
		r := p.roles[name]
		if r == nil {
			continue // deny: the catalog has no such users, and no role has no grants
		}
		s.cluster |= r.cluster
		s.roles = append(s.roles, r)
	}
	// Admin of the cluster implies Admin of every table, but no right to records (see the package
	// comment).
	if s.cluster.Has(Admin) {
		s.cluster, s.everywhere = ClusterRights, Admin
	}
	s.visible = s.cluster.Has(Read)
	return s
}

// compileRole returns the searchable form of a role.
func compileRole(r *Role) *compiledRole {
	c := &compiledRole{source: r, tables: map[string]*nameRights{}}
	for _, g := range r.Grants {
		switch {
		case g.Scope.Cluster:
			c.cluster |= g.Rights
		case g.Scope.Table == AllTables:
			if c.all == nil {
				c.all = &nameRights{}
			}
			c.all.add(g)
		default:
			n := c.tables[g.Scope.Table]
			if n == nil {
				n = &nameRights{}
				c.tables[g.Scope.Table] = n
			}
			n.add(g)
		}
	}
	if c.all != nil {
		c.all.finish()
	}
	for n := range maps.Values(c.tables) {
		n.finish()
	}
	return c
}

// add adds a grant. finish must be called after the last one.
func (n *nameRights) add(g Grant) {
	n.any |= g.Rights
	if g.Scope.Prefix == "" {
		n.whole |= g.Rights
		return
	}
	// Each iteration clears the lowest bit, so the loop runs once per right.
	for r := g.Rights; r != 0; r &= r - 1 {
		i := bits.TrailingZeros8(uint8(r))
		n.prefixed[i] = append(n.prefixed[i], g.Scope.Prefix)
	}
}

// finish makes the prefixes searchable.
func (n *nameRights) finish() {
	for i, prefixes := range n.prefixed {
		// The whole table has the right, so prefixes add nothing.
		if n.whole&(1<<i) != 0 {
			n.prefixed[i] = nil
			continue
		}
		n.prefixed[i] = minimizePrefixes(prefixes)
	}
}

// allowAny reports whether one of the rights covers a name.
func (n *nameRights) allowAny(rights Rights, name []byte) bool {
	if n.whole&rights != 0 {
		return true
	}
	// any spares the searches for rights that no grant of this table has, which is the common
	// refusal.
	for r := rights & n.any; r != 0; r &= r - 1 {
		if hasPrefixOf(n.prefixed[bits.TrailingZeros8(uint8(r))], name) {
			return true
		}
	}
	return false
}

// Revision returns the revision of the metadata that last changed a user, role or grant.
func (p *Policy) Revision() uint64 {
	if p == nil {
		return 0
	}
	return p.revision
}

// User returns the record of a user. It is shared and must not be modified.
func (p *Policy) User(name string) (*User, bool) {
	if p == nil {
		return nil, false
	}
	s, ok := p.users[name]
	if !ok {
		return nil, false
	}
	return s.source, true
}

// Of returns the subject of a principal. It is never nil.
//
// An unknown kind, from a newer version for example, falls through to nothing. A node may be
// anything in the metadata's eyes but never a user: KindNode does not look at the name.
func (p *Policy) Of(who Principal) *Subject {
	switch who.Kind {
	case KindUser:
		if p != nil {
			if s, ok := p.users[who.Name]; ok {
				return s
			}
		}
	case KindInsecure, KindOperator:
		return everything
	case KindNode:
		return otherNode
	}
	return nothing
}

// Allows reports whether a principal has a right, or all of several, to a name of a table.
func (p *Policy) Allows(who Principal, right Rights, table string, name []byte) bool {
	return p.Of(who).Allows(right, table, name)
}

// AllowsTable reports whether a principal may see that a table exists.
func (p *Policy) AllowsTable(who Principal, table string) bool { return p.Of(who).AllowsTable(table) }

// AllowsCluster reports whether a principal has a right, or all of several, to the cluster.
func (p *Policy) AllowsCluster(who Principal, right Rights) bool {
	return p.Of(who).AllowsCluster(right)
}

// Allows reports whether the subject has all of the rights to a name of a table. The table is given
// by name; the name of a table that does not exist is "", which only grants for all tables cover.
// The name of a record that the server has yet to assign is empty, which only grants for whole
// tables cover.
func (s *Subject) Allows(rights Rights, table string, name []byte) bool {
	// Several rights may have several grants, so each is asked for separately.
	for r := rights; r != 0; r &= r - 1 {
		if !s.AllowsAny(r&-r, table, name) {
			return false
		}
	}
	return rights != 0
}

// AllowsAny reports whether the subject has one of the rights to a name of a table.
func (s *Subject) AllowsAny(rights Rights, table string, name []byte) bool {
	if s.everywhere&rights != 0 {
		return true
	}
	for _, r := range s.roles {
		if r.all != nil && r.all.allowAny(rights, name) {
			return true
		}
		if n := r.tables[table]; n != nil && n.allowAny(rights, name) {
			return true
		}
	}
	return false
}

// AllowsTable reports whether the subject may see that a table exists.
func (s *Subject) AllowsTable(table string) bool {
	if s.visible {
		return true
	}
	for _, r := range s.roles {
		if r.all != nil || r.tables[table] != nil {
			return true
		}
	}
	return false
}

// SeesAllTables reports whether the subject may see every table, now and later.
func (s *Subject) SeesAllTables() bool {
	return s.visible || slices.ContainsFunc(s.roles, func(r *compiledRole) bool { return r.all != nil })
}

// IsUnlimited reports whether the subject may do everything. Callers need not ask about each name
// then.
func (s *Subject) IsUnlimited() bool { return s == everything }

// IsKnown reports whether the subject may be answered at all. It returns false without an identity,
// and for a user that does not exist or is disabled.
func (s *Subject) IsKnown() bool {
	return s == everything || s == otherNode || s.source != nil && !s.source.Disabled
}

// AllowsCluster reports whether the subject has all of the rights to the cluster.
func (s *Subject) AllowsCluster(rights Rights) bool { return rights != 0 && s.cluster.Has(rights) }

// Filter returns the names of a table to which the subject has a right.
func (s *Subject) Filter(right Rights, table string) Filter {
	if s.everywhere.Has(right) {
		return Filter{all: true}
	}
	var prefixes []string
	add := func(n *nameRights) (whole bool) {
		if n != nil {
			prefixes = append(prefixes, n.prefixed[bits.TrailingZeros8(uint8(right))]...)
			whole = n.whole.Has(right)
		}
		return whole
	}
	for _, r := range s.roles {
		// Whole beats prefixes, so the other roles need not be looked at.
		if add(r.all) || add(r.tables[table]) {
			return Filter{all: true}
		}
	}
	return Filter{prefixes: minimizePrefixes(prefixes)}
}
