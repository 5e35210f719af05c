package api

import (
	"errors"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
)

// Hint is additional information for the client of a failed request.
type Hint struct {
	// Newer is the descriptor of the range, for NotPrimary. If it describes another range, the
	// request was an insert and belongs there. Nil if the node knows no newer descriptor.
	Newer *rhumb.Range
	// Unread is set in the error that ends a stream if the node has read no request of it.
	Unread bool
}

// errorTextMax bounds the text of an error in bytes. The text travels in HTTP/2 headers, whose size
// peers limit.
const errorTextMax = 4 << 10

// EncodeError returns the wire form of err, which must not be nil. The message includes the texts
// of all causes, because causes do not travel.
func EncodeError(err error, h Hint) *rhumbpb.Error {
	e, ok := errors.AsType[*rhumb.Error](err)
	if !ok {
		// An error from outside gets no kind, so clients draw no conclusion from it.
		e = &rhumb.Error{Msg: err.Error()}
	}
	// Any error of the chain may name the range or the node. The outermost that does counts.
	rng, node := placeOf(e)
	current := rhumb.CurrentOf(err)
	out := &rhumbpb.Error{
		Kind: rhumbpb.Kind(e.Kind), Op: string(e.Op), Message: cutText(rhumb.Message(e), errorTextMax), Node: uint32(node),
		Region: uint32(rng.Region), Slot: uint32(rng.Slot),
		CurrentHlc: uint64(current.HLC), CurrentNode: uint32(current.Node),
		RetryAfterUs: uint64(max(rhumb.RetryAfterOf(err), 0).Microseconds()), Unread: h.Unread,
	}
	// The client can use the descriptor at once, without asking for metadata.
	if h.Newer != nil {
		out.Newer = EncodeRange(h.Newer)
	}
	return out
}

// placeOf returns the range and the node that an error or one of its causes names.
func placeOf(e *rhumb.Error) (rng rhumb.RangeID, node rhumb.NodeID) {
	for ok := true; ok; e, ok = errors.AsType[*rhumb.Error](e.Err) {
		if rng.IsZero() {
			rng = e.Range
		}
		if node == rhumb.NoNode {
			node = e.Node
		}
	}
	return rng, node
}

// cutText cuts s to at most size bytes.
func cutText(s string, size int) string {
	if len(s) > size {
		return s[:size-3] + "..."
	}
	return s
}

// DecodeError returns an error from its wire form. A kind that this binary does not know becomes
// Other, whose effect on a write is unknown.
func DecodeError(m *rhumbpb.Error) (*rhumb.Error, Hint) {
	e := &rhumb.Error{
		Op: rhumb.Op(m.GetOp()), Kind: rhumb.Other, Msg: m.GetMessage(), Node: rhumb.NodeID(m.GetNode()),
		Range:   rhumb.RangeID{Region: rhumb.RegionID(m.GetRegion()), Slot: rhumb.Slot(m.GetSlot())},
		Current: rhumb.Version{HLC: rhumb.Timestamp(m.GetCurrentHlc()), Node: rhumb.NodeID(m.GetCurrentNode())},
	}
	if k := m.GetKind(); k >= 0 && int(k) < len(codeOf) {
		e.Kind = rhumb.Kind(k)
	}
	// No other kind promises that waiting helps.
	if e.Kind == rhumb.Overloaded || e.Kind == rhumb.Unavailable {
		e.RetryAfter = DecodeMicros(m.GetRetryAfterUs())
	}
	h := Hint{Unread: m.GetUnread()}
	if m.GetNewer() != nil {
		h.Newer = DecodeRange(m.GetNewer())
	}
	return e, h
}

// Status returns the gRPC status of err for a handler, or nil if err is nil. An err that already is
// a status is returned unchanged.
func Status(err error, h Hint) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*rhumb.Error](err); !ok {
		if s, ok := status.FromError(err); ok {
			return s.Err()
		}
	}
	m := EncodeError(err, h)
	s := status.New(Code(rhumb.Kind(m.Kind)), cutText(err.Error(), errorTextMax))
	// Details fail to marshal only by a programming error. The status then carries the text alone.
	if d, derr := s.WithDetails(m); derr == nil {
		s = d
	}
	return s.Err()
}

// quoted holds the phrases after which gRPC quotes the error of a dialer, of a TLS handshake, and of a
// connection that the server ended at once. The last one stands around every other error of a connection.
var quoted = []string{"Error while dialing: ", "authentication handshake failed: ", "error reading server preface: ", "failed to write client preface: ", `connection error: desc = "`}

// unquote returns the error that gRPC quotes in the text of a failed connection.
func unquote(text string) string {
	for _, phrase := range quoted {
		if _, said, ok := strings.Cut(text, phrase); ok {
			// gRPC quotes its text, with quotes inside it escaped.
			plain, err := strconv.Unquote(`"` + said)
			if err != nil {
				plain = strings.TrimSuffix(said, `"`)
			}
			return strings.TrimPrefix(plain, "transport: ")
		}
	}
	return text
}

// FromStatus returns the error of a failed gRPC call. remote reports whether a node answered with
// the error, so that its kind is conclusive. Otherwise the transport failed, and the outcome of the
// request is unknown.
func FromStatus(op rhumb.Op, err error) (e *rhumb.Error, h Hint, remote bool) {
	// An error of this process, for example of an interceptor: no status was received.
	if e, ok := errors.AsType[*rhumb.Error](err); ok {
		return e, Hint{}, false
	}
	s, _ := status.FromError(err)
	for _, d := range s.Details() {
		if m, ok := d.(*rhumbpb.Error); ok {
			e, h := DecodeError(m)
			return e, h, true
		}
	}
	_, msg, _ := identity.ParseRefusal(unquote(s.Message()))
	// These codes say no more than their message and the kind of the error; the others distinguish, for example, a
	// reset stream from a failure of the handler.
	if c := s.Code(); c != codes.Canceled && c != codes.DeadlineExceeded && c != codes.Unavailable {
		msg = c.String() + ": " + msg
	}
	return &rhumb.Error{Op: op, Kind: KindOfCode(s.Code()), Msg: msg}, Hint{}, false
}

// RefusalOf returns why no connection could be made for a failed gRPC call, if the cause is a certificate or the
// lack of one and so does not pass by waiting. ok is false for every other error. FromStatus returns Unavailable for
// both: the request was certainly not handled, and another node may accept the caller.
func RefusalOf(err error) (r identity.Refusal, ok bool) {
	s, isStatus := status.FromError(err)
	if err == nil || !isStatus || s.Code() != codes.Unavailable || len(s.Details()) > 0 {
		return identity.Refusal{}, false
	}
	r, _, ok = identity.ParseRefusal(unquote(s.Message()))
	return r, ok
}
