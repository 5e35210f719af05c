package rhumb

import (
	"errors"
	"fmt"
	"strings"
)

// Kind says what sort of thing went wrong, so that a program can decide what to do. Kinds cross the wire and stand in
// scripts: append only, never renumber.
type Kind uint8

// The kinds. "Not applied" means that the write certainly had no effect.
const (
	// Other is an error of no kind below; its effect on a write is unknown.
	Other Kind = 0
	// InvalidArgument: the request is wrong whatever the state; not applied. Correct it.
	InvalidArgument Kind = 1
	// NotFound: the record, table, region or node does not exist; not applied.
	NotFound Kind = 2
	// AlreadyExists: what should be made exists; not applied.
	AlreadyExists Kind = 3
	// ConditionFailed: a condition of the write does not hold; not applied. Read again.
	ConditionFailed Kind = 4
	// NotPrimary: this node does not order the range's writes; not applied. The error may carry the newer descriptor.
	NotPrimary Kind = 5
	// Unavailable: the range, node or metadata group cannot serve now; not applied. Retry with backoff.
	Unavailable Kind = 6
	// Overloaded: a named bound is reached; not applied. Retry later, or send less.
	Overloaded Kind = 7
	// Unknown: the write may or may not have been applied. Retry with the same request id, or read.
	Unknown Kind = 8
	// Corrupt: stored or received bytes fail their checksum or format; the error names file and offset.
	Corrupt Kind = 9
	// Unauthenticated and PermissionDenied: who you are, what you may do; not applied.
	Unauthenticated  Kind = 10
	PermissionDenied Kind = 11
	// DeadlineExceeded: no answer in time. For a write it is reported as Unknown instead once it was sent.
	DeadlineExceeded Kind = 12
	// Canceled: the caller gave up before the request was sent; not applied.
	Canceled Kind = 13
	// TooLarge: a named limit on size is passed; not applied.
	TooLarge Kind = 14
	// DiskFull: the store refuses writes to keep room for reads and collection; not applied.
	DiskFull Kind = 15
	// WrongCluster: the other side belongs to another cluster, or its identity is not the registered one.
	WrongCluster Kind = 16
	// Incompatible: a format, protocol or codec version that this binary does not support.
	Incompatible Kind = 17
	// Conflict: a compare-and-set on metadata lost to another change; not applied. Read again.
	Conflict Kind = 18
	// Expired: a request id older than the deduplication window; whether it was applied cannot be known any more.
	Expired Kind = 19
	// Internal: a broken invariant. Report it.
	Internal Kind = 20

	kindEnd Kind = 21
)

var kindNames = [kindEnd]string{
	"other", "invalid_argument", "not_found", "already_exists", "condition_failed", "not_primary", "unavailable",
	"overloaded", "unknown_outcome", "corrupt", "unauthenticated", "permission_denied", "deadline_exceeded", "canceled",
	"too_large", "disk_full", "wrong_cluster", "incompatible", "conflict", "expired", "internal",
}

// String gives the stable name of the kind, as it stands in JSON output and metrics.
func (k Kind) String() string {
	if k < kindEnd {
		return kindNames[k]
	}
	return fmt.Sprintf("kind_%d", uint8(k))
}

// Kinds lists every kind in order, for tests and documents.
func Kinds() []Kind {
	out := make([]Kind, kindEnd)
	for i := range out {
		out[i] = Kind(i)
	}
	return out
}

// NotApplied reports whether a write that failed with this kind certainly had no effect.
func (k Kind) NotApplied() bool {
	switch k {
	case Other, Unknown, Corrupt, DeadlineExceeded, Expired, Internal:
		return false
	}
	return k < kindEnd
}

// Op names an operation, "package.Func" or "package.Type.Method".
type Op string

// Error is the one error type that crosses Rhumb's boundaries. Fields that do not apply are zero.
type Error struct {
	// Op is the innermost operation that failed.
	Op Op
	// Kind decides what a caller does.
	Kind Kind
	// Range and Node say where, when known.
	Range RangeID
	Node  NodeID
	// Current is the version that the key has (ConditionFailed); zero when it is absent or not known.
	Current Version
	// Msg says what was wrong, where, and what to do.
	Msg string
	// Err is the cause, if any. It does not cross the wire; its text does, as part of Msg.
	Err error
}

// Error gives "op: message: cause", with range and node where they are set.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(string(e.Op))
		b.WriteString(": ")
	}
	b.WriteString(e.Kind.String())
	if !e.Range.IsZero() {
		fmt.Fprintf(&b, " (range %s)", e.Range)
	}
	if e.Node != NoNode {
		fmt.Fprintf(&b, " (node %s)", e.Node)
	}
	if e.Msg != "" {
		b.WriteString(": ")
		b.WriteString(e.Msg)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is lets errors.Is(err, ErrNotFound) match by kind: a target without Op and Msg matches every error of its Kind.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Msg == "" && t.Kind == e.Kind
}

// Sentinels for errors.Is, one for each kind that a caller commonly asks about.
var (
	ErrNotFound        = &Error{Kind: NotFound}
	ErrConditionFailed = &Error{Kind: ConditionFailed}
	ErrUnavailable     = &Error{Kind: Unavailable}
	ErrUnknown         = &Error{Kind: Unknown}
	ErrOverloaded      = &Error{Kind: Overloaded}
	ErrCorrupt         = &Error{Kind: Corrupt}
)

// E builds an error. The message says what was wrong, where, and what to do.
func E(op Op, kind Kind, msg string) *Error { return &Error{Op: op, Kind: kind, Msg: msg} }

// Ef is E with a format.
func Ef(op Op, kind Kind, format string, args ...any) *Error {
	return &Error{Op: op, Kind: kind, Msg: fmt.Sprintf(format, args...)}
}

// Wrap gives err an operation. It keeps the kind of an *Error and says Other of anything else; nil stays nil.
func Wrap(op Op, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: KindOf(err), Err: err}
}

// WrapKind gives err an operation and a kind; nil stays nil.
func WrapKind(op Op, kind Kind, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: kind, Err: err}
}

// Message gives what err says to a person: the messages of its chain, without the operations that it passed through and
// without its kind, which whoever shows it knows.
func Message(err error) string {
	e, ok := err.(*Error)
	switch {
	case !ok:
		return err.Error()
	case e.Err == nil && e.Msg == "":
		return e.Kind.String()
	case e.Err == nil:
		return e.Msg
	case e.Msg == "":
		return Message(e.Err)
	}
	return e.Msg + ": " + Message(e.Err)
}

// CurrentOf gives the version that the key of a write has whose condition failed, and zero for a key that is absent, for
// one that is not known, and for errors of other kinds.
func CurrentOf(err error) Version {
	if KindOf(err) != ConditionFailed {
		return Version{}
	}
	for e, ok := errors.AsType[*Error](err); ok; e, ok = errors.AsType[*Error](e.Err) {
		if !e.Current.IsZero() {
			return e.Current
		}
	}
	return Version{}
}

// KindOf gives the kind of the outermost *Error in err's chain, or Other.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Other
}
