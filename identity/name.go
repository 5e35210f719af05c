package identity

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// Role is the kind of the bearer of a certificate. Roles are never interchangeable.
//
// Roles take the place of host names in this package. A server certificate of the web names a host,
// which is of no use to nodes that move between addresses; here the question is only whether the
// other side is a node, a client or the authority of this cluster.
type Role uint8

// The roles.
const (
	RoleNode Role = iota + 1
	RoleUser
	RoleOperator
	RoleAuthority

	roleEnd
)

var roleNames = [roleEnd]string{"none", "node", "user", "operator", "authority"}

func (r Role) String() string {
	if r < roleEnd {
		return roleNames[r]
	}
	return fmt.Sprintf("role_%d", uint8(r))
}

// ParseRole parses the format of Role.String.
func ParseRole(s string) (Role, error) {
	for r := RoleNode; r < roleEnd; r++ {
		if roleNames[r] == s {
			return r, nil
		}
	}
	return 0, rhumb.Ef("identity.ParseRole", rhumb.InvalidArgument, "role %q is unknown; roles are node, user, operator and authority", s)
}

// server and client report which side of a connection a role may take.
func (r Role) server() bool { return r == RoleNode || r == RoleAuthority }
func (r Role) client() bool { return r == RoleNode || r == RoleUser || r == RoleOperator }

// usages returns the extended key usages of certificates of the role.
func (r Role) usages() string {
	switch {
	case r.server() && r.client():
		return "serverAuth and clientAuth"
	case r.server():
		return "serverAuth without clientAuth"
	}
	return "clientAuth without serverAuth"
}

// Usages returns the extended key usages that certificates of the role have. Verification accepts
// no others.
func (r Role) Usages() (usages []x509.ExtKeyUsage) {
	if r.server() {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	if r.client() {
		usages = append(usages, x509.ExtKeyUsageClientAuth)
	}
	return usages
}

// NameSizeMax is the maximum size of a name in bytes.
const NameSizeMax = 63

// scheme is the scheme of the URI in a certificate.
const scheme = "rhumb"

// Name identifies the bearer of a certificate.
type Name struct {
	Cluster rhumb.ClusterID
	Role    Role
	Name    string
}

// String returns the URI "rhumb://<cluster>/<role>/<name>".
func (n Name) String() string {
	return scheme + "://" + n.Cluster.String() + "/" + n.Role.String() + "/" + n.Name
}

// Short returns "role name", for messages in which the cluster is known.
func (n Name) Short() string { return n.Role.String() + " " + n.Name }

// URI returns the form that a certificate holds as a subject alternative name.
func (n Name) URI() *url.URL {
	return &url.URL{Scheme: scheme, Host: n.Cluster.String(), Path: "/" + n.Role.String() + "/" + n.Name}
}

// Validate rejects a name that no certificate may hold.
func (n Name) Validate() error {
	const op rhumb.Op = "identity.Name"
	if n.Cluster.IsZero() {
		return rhumb.E(op, rhumb.InvalidArgument, "the name has no cluster")
	}
	if n.Role == 0 || n.Role >= roleEnd {
		return rhumb.Ef(op, rhumb.InvalidArgument, "%s is no role; roles are node, user, operator and authority", n.Role)
	}
	return ValidateName(n.Role, n.Name)
}

// ValidateName rejects names that members of a role cannot have. Names of nodes appear in host
// names and metrics, so they are narrower than those of users.
func ValidateName(r Role, name string) error {
	const op rhumb.Op = "identity.ValidateName"
	if r == RoleNode {
		return rhumb.Wrap(op, rhumb.ValidateNodeName(name))
	}
	ok := len(name) >= 1 && len(name) <= NameSizeMax && name[0] != '-' && name[0] != '.'
	for i := range len(name) {
		c := name[i]
		ok = ok && (isLower(c|0x20) && c < 0x80 || isDigit(c) || strings.IndexByte("-_.@", c) >= 0)
	}
	if !ok {
		return rhumb.Ef(op, rhumb.InvalidArgument, "%s name %q: names have 1 to %d letters, digits, '-', '_', '.' and '@', and begin with none of '-' and '.'", r, name, NameSizeMax)
	}
	return nil
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// Parse parses the format of Name.String. Each name has one form only: another spelling of the
// cluster or an escaped character is an error, so that two URIs that differ never name the same
// bearer.
func Parse(uri string) (Name, error) {
	const op rhumb.Op = "identity.Parse"
	// A certificate of any origin may hold a long URI; the error quotes the beginning only.
	bad := func(why string) (Name, error) {
		return Name{}, rhumb.Ef(op, rhumb.InvalidArgument, "name %.100q %s; names are like rhumb://<cluster>/node/eu-1", uri, why)
	}
	rest, ok := strings.CutPrefix(uri, scheme+"://")
	if !ok {
		return bad("does not begin with " + scheme + "://")
	}
	// No URL parser: it would accept escapes, user names, ports and empty segments, and two
	// spellings of one name could pass different checks.
	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return bad("does not have three parts")
	}
	cluster, err := rhumb.ParseUUID(parts[0])
	// ParseUUID accepts upper case. The second condition leaves one spelling only.
	if err != nil || cluster.String() != parts[0] {
		return bad("has no cluster of 32 hexadecimal digits in lower case")
	}
	role, err := ParseRole(parts[1])
	if err != nil {
		return bad("has none of the roles node, user, operator and authority")
	}
	n := Name{Cluster: cluster, Role: role, Name: parts[2]}
	return n, n.Validate()
}

// fromSPIFFE returns the name in a SPIFFE ID "spiffe://<trust
// domain>/rhumb/<cluster>/<role>/<name>", in the form of Name.String. The trust domain has no
// meaning: who may issue such certificates is decided by the CA file.
func fromSPIFFE(uri string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(uri, "spiffe://")
	if !ok {
		return "", false
	}
	domain, path, _ := strings.Cut(rest, "/")
	rest, ok = strings.CutPrefix(path, scheme+"/")
	// The alphabet of trust domains. A port or a user would be no SPIFFE ID.
	for i := range len(domain) {
		c := domain[i]
		ok = ok && (isLower(c) || isDigit(c) || c == '-' || c == '.' || c == '_')
	}
	return scheme + "://" + rest, ok && domain != ""
}

// FromCertificate returns the name in a certificate. It does not verify the certificate.
//
// The common name and the DNS names are ignored. Many authorities let their clients choose these,
// while a URI takes a rule of the issuer. Exactly one name is allowed, because with two the reader
// could check one and the writer could mean the other.
func FromCertificate(cert *x509.Certificate) (Name, error) {
	var found []string
	for _, u := range cert.URIs {
		if u.Scheme == scheme {
			found = append(found, u.String())
		}
		// A certificate of SPIFFE must not have a second URI, so the name is the path of the only
		// one.
		if name, ok := fromSPIFFE(u.String()); ok {
			found = append(found, name)
		}
	}
	switch len(found) {
	case 0:
		return Name{}, rejectf(ReasonNoName, "the certificate (subject %q, serial %s) has no URI rhumb://<cluster>/<role>/<name>", cert.Subject, SerialOf(cert))
	case 1:
		n, err := Parse(found[0])
		if err != nil {
			return Name{}, rejectf(ReasonNoName, "the certificate with serial %s: %s", SerialOf(cert), rhumb.Message(err))
		}
		return n, nil
	}
	return Name{}, rejectf(ReasonSeveralNames, "the certificate with serial %s has %d names, such as %.100q and %.100q; exactly one is allowed", SerialOf(cert), len(found), found[0], found[1])
}
