package access

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// Rights is a set of rights, as bits. They are stored on disk and cross the wire: append only.
type Rights uint8

// The rights. Within a table they concern the names of a grant's prefix; for the cluster only Read
// and Admin exist.
const (
	// Each value is a bit that is written out, so that a new right cannot shift the meaning of
	// stored ones as iota would.
	Read   Rights = 1
	Write  Rights = 2
	Delete Rights = 4
	Watch  Rights = 8
	Admin  Rights = 16

	rightsEnd Rights = 32
)

// TableRights are all rights of a table, ClusterRights all rights of the cluster.
const (
	TableRights   = rightsEnd - 1
	ClusterRights = Read | Admin
)

// rightCount is the number of rights.
const rightCount = 5

var rightNames = [rightCount]string{"read", "write", "delete", "watch", "admin"}

// Has reports whether r contains all rights of o.
func (r Rights) Has(o Rights) bool { return r&o == o }

// Names returns the stable names of the rights, in the order of their bits.
func (r Rights) Names() []string {
	var names []string
	for ; r != 0; r &= r - 1 {
		if i := bits.TrailingZeros8(uint8(r)); i < rightCount {
			names = append(names, rightNames[i])
		} else {
			names = append(names, fmt.Sprintf("right_%d", i))
		}
	}
	return names
}

// String lists the rights, separated by commas.
func (r Rights) String() string { return strings.Join(r.Names(), ",") }

// ParseRights parses the format of Rights.String.
func ParseRights(s string) (r Rights, err error) {
	for name := range strings.SplitSeq(s, ",") {
		i := slices.Index(rightNames[:], strings.TrimSpace(name))
		if i < 0 {
			return 0, rhumb.Ef("access.ParseRights", rhumb.InvalidArgument, "%q is not a right; use %s, separated by commas", name, strings.Join(rightNames[:], ", "))
		}
		r |= 1 << i
	}
	return r, nil
}

// AllTables is the table of a scope that covers every table, existing or not.
const AllTables = "*"

// Scope is the part of the database that a grant covers. The type is comparable on purpose.
//
// Prefixes rather than patterns: a prefix is an interval of the sorted names, which a scan can skip
// to. A pattern such as "*/private" would have to be asked about every name.
type Scope struct {
	// Cluster selects the cluster; then Table and Prefix are empty.
	Cluster bool
	// Table is the name of a table, which need not exist yet, or AllTables.
	Table string
	// Prefix begins the names of the records. The empty prefix is the whole table.
	Prefix string
}

// String returns the scope as messages show it.
func (s Scope) String() string {
	switch {
	case s.Cluster:
		return "the cluster"
	case s.Table == AllTables && s.Prefix == "":
		return "all tables"
	case s.Table == AllTables:
		return "names that begin with " + rhumb.NameString([]byte(s.Prefix)) + " in all tables"
	case s.Prefix == "":
		return "table " + s.Table
	}
	return "names that begin with " + rhumb.NameString([]byte(s.Prefix)) + " in table " + s.Table
}

// Rights returns the rights that exist in the scope.
func (s Scope) Rights() Rights {
	if s.Cluster {
		return ClusterRights
	}
	return TableRights
}

// Overlaps reports whether a request can be in both scopes.
func (s Scope) Overlaps(o Scope) bool {
	if s.Cluster || o.Cluster {
		return s.Cluster && o.Cluster
	}
	if s.Table != o.Table && s.Table != AllTables && o.Table != AllTables {
		return false
	}
	return strings.HasPrefix(s.Prefix, o.Prefix) || strings.HasPrefix(o.Prefix, s.Prefix)
}

// Related returns the grants of a role other than that in the scope of g which allow, somewhere in this scope, a right of g. Their
// scopes are wider or narrower than that of g.
func Related(grants []Grant, g Grant) (related []Grant) {
	for _, o := range grants {
		if o.Scope != g.Scope && o.Rights&g.Rights != 0 && o.Scope.Overlaps(g.Scope) {
			related = append(related, Grant{o.Scope, o.Rights & g.Rights})
		}
	}
	return related
}

// Compare orders scopes: the cluster first, then by table, then by prefix.
func (s Scope) Compare(o Scope) int {
	if s.Cluster != o.Cluster {
		if s.Cluster {
			return -1
		}
		return 1
	}
	if c := strings.Compare(s.Table, o.Table); c != 0 {
		return c
	}
	return strings.Compare(s.Prefix, o.Prefix)
}

// Validate rejects a scope that can be wrong in any state of the cluster.
func (s Scope) Validate() error {
	const op rhumb.Op = "access.Scope"
	switch {
	case s.Cluster && (s.Table != "" || s.Prefix != ""):
		return rhumb.E(op, rhumb.InvalidArgument, "a grant is for the cluster or for a table, not for both; make two grants")
	case s.Cluster || s.Table == AllTables:
	case s.Table == "":
		return rhumb.E(op, rhumb.InvalidArgument, `the grant names neither a table nor the cluster; name a table, "*" for all tables, or the cluster`)
	default:
		if err := rhumb.ValidateTableName(s.Table); err != nil {
			return err
		}
	}
	if len(s.Prefix) > rhumb.NameSizeMax {
		return rhumb.Ef(op, rhumb.TooLarge, "the prefix has %d bytes; names of records have at most %d", len(s.Prefix), rhumb.NameSizeMax)
	}
	return nil
}

// Grant allows some rights in a scope.
type Grant struct {
	Scope  Scope
	Rights Rights
}

// Validate rejects a grant that can be wrong in any state of the cluster.
func (g Grant) Validate() error {
	const op rhumb.Op = "access.Grant"
	if err := g.Scope.Validate(); err != nil {
		return err
	}
	if g.Rights == 0 || !g.Scope.Rights().Has(g.Rights) {
		return rhumb.Ef(op, rhumb.InvalidArgument, "rights %q do not exist for %s; use some of %s", g.Rights.String(), g.Scope, g.Scope.Rights())
	}
	return nil
}
