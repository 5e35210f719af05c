package access

import (
	"context"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// Kind is how a caller was identified. Kinds cross the wire between nodes: append only.
type Kind uint8

// The kinds of principals. The package comment describes their rights.
const (
	KindNobody   Kind = 0
	KindInsecure Kind = 1
	KindOperator Kind = 2
	KindNode     Kind = 3
	KindUser     Kind = 4

	kindEnd Kind = 5
)

var kindNames = [kindEnd]string{"nobody", "insecure", "operator", "node", "user"}

// String returns the stable name of the kind.
func (k Kind) String() string {
	if k < kindEnd {
		return kindNames[k]
	}
	return fmt.Sprintf("kind_%d", uint8(k))
}

// Principal is an identified caller. The zero value is a caller without an identity, who may do
// nothing. The type is comparable on purpose.
//
// It holds a name and no rights. Rights are looked up at the moment of use in the policy of the
// node that decides, so that a principal which is stored, queued or forwarded cannot outlive a
// revocation.
type Principal struct {
	Kind Kind
	// Name is the name of the node, operator or user, as in its certificate or login.
	Name string
}

// String returns the principal as messages and logs show it, such as "user ann".
func (p Principal) String() string {
	switch p.Kind {
	case KindNobody:
		return "a caller without an identity"
	case KindInsecure:
		return "a caller of an insecure node"
	}
	return p.Kind.String() + " " + p.Name
}

// CanBeForwarded reports whether a node may send a request of the principal to another node. Nodes
// have no requests of their own as clients, and nobody has no rights anywhere.
func (p Principal) CanBeForwarded() bool {
	switch p.Kind {
	// An insecure node knows nobody, so a name would be an invention of the sender.
	case KindInsecure:
		return p.Name == ""
	case KindOperator, KindUser:
		return ValidateName("principal", p.Name) == nil
	}
	return false
}

// contextKey is the key of the principal in a context.
type contextKey struct{}

// WithPrincipal returns a context that carries the principal of a request.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns the principal that a context carries. Without one, it returns the zero
// Principal, who may do nothing, and false.
func FromContext(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(contextKey{}).(Principal)
	return p, ok
}

// ErrAnonymous rejects a request without an identity where one is needed.
var ErrAnonymous = rhumb.E("access", rhumb.Unauthenticated,
	"the node does not know who asks; connect with a certificate (--cert and --key) or log in (--user)")
