package rhumb

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind classifies an error, so that a program can decide how to react. Kinds cross the wire and
// appear in scripts: append only, never renumber.
type Kind uint8

// The kinds. "Not applied" means that the write certainly had no effect.
const (
	// Other is an error without a kind of its own. Whether a write was applied is unknown.
	Other Kind = 0
	// InvalidArgument: the request is wrong in any state; not applied. Correct the request.
	InvalidArgument Kind = 1
	// NotFound: the record, table, region or node does not exist; not applied.
	NotFound Kind = 2
	// AlreadyExists: the thing to create already exists; not applied.
	AlreadyExists Kind = 3
	// ConditionFailed: a condition of the write does not hold; not applied. Read again, then
	// decide.
	ConditionFailed Kind = 4
	// NotPrimary: this node does not order the writes of the range; not applied. The error may
	// carry a newer descriptor of the range.
	NotPrimary Kind = 5
	// Unavailable: the range, node or metadata group cannot serve at the moment; not applied. Retry
	// with backoff.
	Unavailable Kind = 6
	// Overloaded: a named bound is reached; not applied. Retry later, or send less.
	Overloaded Kind = 7
	// Unknown: the write may or may not have been applied. Retry it with the same request id, or
	// read.
	Unknown Kind = 8
	// Corrupt: stored or received bytes fail their checksum or format. The error names file and
	// offset.
	Corrupt Kind = 9
	// Unauthenticated and PermissionDenied: the caller is not identified, or may not do this; not
	// applied.
	Unauthenticated  Kind = 10
	PermissionDenied Kind = 11
	// DeadlineExceeded: no answer arrived in time. A write that was already sent reports Unknown
	// instead.
	DeadlineExceeded Kind = 12
	// Canceled: the caller stopped waiting before the request was sent; not applied.
	Canceled Kind = 13
	// TooLarge: the request exceeds a named size limit; not applied.
	TooLarge Kind = 14
	// DiskFull: the store rejects writes to keep space for reads and garbage collection; not applied.
	DiskFull Kind = 15
	// WrongCluster: the peer belongs to another cluster, or its identity is not the registered one.
	WrongCluster Kind = 16
	// Incompatible: this binary does not support a format, protocol or codec version.
	Incompatible Kind = 17
	// Conflict: a compare-and-set on metadata lost to another change; not applied. Read again.
	Conflict Kind = 18
	// Expired: the request id is older than the deduplication window. Whether the write was applied can
	// no longer be determined.
	Expired Kind = 19
	// Internal: an invariant is broken. Report it.
	Internal Kind = 20

	kindEnd Kind = 21
)

var kindNames = [kindEnd]string{
	"other", "invalid_argument", "not_found", "already_exists", "condition_failed", "not_primary", "unavailable",
	"overloaded", "unknown_outcome", "corrupt", "unauthenticated", "permission_denied", "deadline_exceeded", "canceled",
	"too_large", "disk_full", "wrong_cluster", "incompatible", "conflict", "expired", "internal",
}

// String returns the stable name of the kind, as JSON output and metrics show it.
func (k Kind) String() string {
	if k < kindEnd {
		return kindNames[k]
	}
	// A newer node may send a kind that this binary does not know.
	return fmt.Sprintf("kind_%d", uint8(k))
}

// Kinds returns every kind in ascending order, for tests and documents.
func Kinds() []Kind {
	out := make([]Kind, kindEnd)
	for i := range out {
		out[i] = Kind(i)
	}
	return out
}

// NotApplied reports whether a write that failed with this kind certainly had no effect. A client
// may send such a write again under a new request id.
func (k Kind) NotApplied() bool {
	switch k {
	case Other, Unknown, Corrupt, DeadlineExceeded, Expired, Internal:
		return false
	}
	// A kind from a newer node may mean anything, so it does not count as "not applied".
	return k < kindEnd
}

// Op names an operation as "package.Func" or "package.Type.Method". It is for logs; people read
// Message.
type Op string

// Error is the only error type that crosses package and process boundaries. Unused fields are zero.
type Error struct {
	// Op is the innermost operation that failed.
	Op Op
	// Kind tells a caller how to react.
	Kind Kind
	// Range and Node say where the error occurred, if known.
	Range RangeID
	Node  NodeID
	// Current is the version of the key, for ConditionFailed. It is zero if the key is absent or
	// its version is unknown.
	Current Version
	// RetryAfter is the recommended wait before the next try, for Overloaded and Unavailable. It is zero if no wait is known.
	RetryAfter time.Duration
	// Msg says what failed, with the value, then why, then what to do. It names no Go type and no
	// kind.
	Msg string
	// Err is the cause, if any. It does not cross the wire; its text becomes part of the message
	// there.
	Err error
}

// Error returns "op: kind: message: cause", with range and node if they are set. This form is for
// logs and developers; use Message for people.
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

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrNotFound) match by kind: a target without Op and Msg matches every
// error of its Kind.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Msg == "" && t.Kind == e.Kind
}

// Sentinels for errors.Is, one for each kind that callers commonly check.
var (
	ErrNotFound        = &Error{Kind: NotFound}
	ErrConditionFailed = &Error{Kind: ConditionFailed}
	ErrUnavailable     = &Error{Kind: Unavailable}
	ErrUnknown         = &Error{Kind: Unknown}
	ErrOverloaded      = &Error{Kind: Overloaded}
	ErrCorrupt         = &Error{Kind: Corrupt}
)

// E returns an error. The message says what failed, with the value, then why, then what to do.
func E(op Op, kind Kind, msg string) *Error { return &Error{Op: op, Kind: kind, Msg: msg} }

// Ef is like E but formats the message. An error among args contributes its Message rather than its
// Error text, so that operations and kinds of causes do not pile up in what a person reads.
func Ef(op Op, kind Kind, format string, args ...any) *Error {
	for i, arg := range args {
		if err, ok := arg.(error); ok {
			args = slices.Clone(args) // the caller may own the slice
			args[i] = Message(err)
		}
	}
	return &Error{Op: op, Kind: kind, Msg: fmt.Sprintf(format, args...)}
}

// Wrap returns err with an operation added. It keeps the kind of an *Error and uses Other for any
// other error; nil stays nil.
func Wrap(op Op, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: KindOf(err), Err: err}
}

// WrapKind returns err with an operation and a kind added; nil stays nil.
func WrapKind(op Op, kind Kind, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: kind, Err: err}
}

// Message returns the text of err for people: the messages of its chain, without operations and kinds.
// Callers show the kind separately where it matters.
func Message(err error) string {
	e, ok := err.(*Error)
	switch {
	case !ok:
		// Another error type, such as fmt's, may wrap an *Error and quote its whole text.
		text := err.Error()
		if inner, ok := errors.AsType[*Error](err); ok {
			text = strings.Replace(text, inner.Error(), Message(inner), 1)
		}
		return text
	case e.Err == nil && e.Msg == "":
		// Nothing else is known, and an empty message would be worse than the kind.
		return e.Kind.String()
	case e.Err == nil:
		return e.Msg
	case e.Msg == "":
		return Message(e.Err)
	}
	return e.Msg + ": " + Message(e.Err)
}

// CurrentOf returns the current version of the key whose condition failed. It returns zero if the
// key is absent, if its version is unknown, and for errors of other kinds.
func CurrentOf(err error) Version {
	if KindOf(err) != ConditionFailed {
		return Version{}
	}
	// Callers wrap the error of the primary; the version is in the innermost one.
	for e, ok := errors.AsType[*Error](err); ok; e, ok = errors.AsType[*Error](e.Err) {
		if !e.Current.IsZero() {
			return e.Current
		}
	}
	return Version{}
}

// RetryAfterOf returns the recommended wait before a request that was refused as Overloaded or Unavailable is tried again. It returns
// zero if no wait is known, and for errors of other kinds.
func RetryAfterOf(err error) time.Duration {
	if k := KindOf(err); k != Overloaded && k != Unavailable {
		return 0
	}
	for e, ok := errors.AsType[*Error](err); ok; e, ok = errors.AsType[*Error](e.Err) {
		if e.RetryAfter != 0 {
			return e.RetryAfter
		}
	}
	return 0
}

// KindOf returns the kind of the outermost *Error in err's chain, or Other if there is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Other
}
