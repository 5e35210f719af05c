// Package access decides what callers may do. It holds the users, roles and grants of a cluster as
// plain data, and compiles them into a [Policy], which answers questions.
//
// A [Principal] is an identified caller. A [User] has roles, a [Role] has grants, and a [Grant] names
// a [Scope] and the [Rights] in it. A scope is the names with one prefix in one table or in all
// tables, or the cluster. Nothing is allowed that no grant allows: there are no negative grants, so
// the order of grants has no meaning.
//
// # Principals
//
// The kind of a principal decides where its rights originate:
//
//   - KindNobody may do nothing. It is the principal of a context that carries none.
//   - KindInsecure is every caller of a node that runs with --insecure, and may do everything.
//   - KindOperator holds a certificate that the authority issued for emergencies, and may do everything,
//     whatever the catalog says.
//   - KindNode is another node of the cluster. It sees all tables, because it replicates them, and has no
//     right to records as a client. Which services nodes may call is the decision of their servers.
//   - KindUser has the rights of its roles. A user that does not exist or is disabled may do nothing.
//
// # Rights
//
// Read, Write, Delete and Watch concern records. Admin of a table allows to create it and to change
// its options, but not to read its records. Any right within a table shows that the table exists.
//
// Two rights exist for the cluster. Read shows the state of the cluster: its nodes, ranges and all
// tables, but no record. Admin includes that, Admin of all tables, and all changes of the cluster, its users,
// roles and grants. It includes no right to records. A cluster admin can take such a right, and the
// grant remains visible.
//
// # Tables and prefixes
//
// Grants name tables, not their IDs, so that a right may be granted before the table exists. The
// caller of a Policy looks the name up in the same catalog. A table that does not exist has the name
// "", which only grants for all tables cover: for everybody else, a table that does not exist and one
// that is hidden are the same.
//
// A prefix is bytes, not text, and has no separator of its own: "a" covers "a", "a/1" and "ab". Grants
// of one role for one table and for all tables add up, as do those of several roles. Per right, a role
// keeps only the prefixes that begin with no other one. They select disjoint intervals of names, so
// one binary search decides, and a scan by prefix becomes a few scans of permitted intervals
// (Filter.Within).
//
// # Passwords
//
// A User has a Verifier, from which its password cannot be computed, only guessed. The type prints,
// logs and encodes as JSON without its contents.
//
// # Cost
//
// A question costs one lookup per role of the user and one binary search of the prefixes of a role,
// and allocates nothing. A Policy is immutable and may be used by any number of goroutines.
//
// # Testing
//
// A reference evaluator that walks all grants answers random questions about random policies, and the
// compiled policy must agree.
package access
