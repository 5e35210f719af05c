package api

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Hint is what a failed request tells a client beyond its error.
type Hint struct {
	// Newer is the descriptor that the node knows of the range that refused (NotPrimary). When it names another range,
	// the request was an insert and belongs there. Nil when the node knows no better.
	Newer *rhumb.Range
}

// errorTextMax bounds the text of an error on the wire, in bytes; HTTP/2 peers limit the headers it travels in.
const errorTextMax = 4 << 10

// EncodeError makes the wire form of err, which must not be nil. The texts of causes become part of the message.
func EncodeError(err error, h Hint) *rhumbpb.Error {
	e, ok := errors.AsType[*rhumb.Error](err)
	if !ok {
		e = &rhumb.Error{Msg: err.Error()}
	}
	rng, node := placeOf(e)
	current := rhumb.CurrentOf(err)
	out := &rhumbpb.Error{
		Kind: rhumbpb.Kind(e.Kind), Op: string(e.Op), Message: cut(rhumb.Message(e), errorTextMax), Node: uint32(node),
		Region: uint32(rng.Region), Slot: uint32(rng.Slot),
		CurrentHlc: uint64(current.HLC), CurrentNode: uint32(current.Node),
		RetryAfterUs: uint64(max(rhumb.RetryAfterOf(err), 0).Microseconds()),
	}
	if h.Newer != nil {
		out.Newer = EncodeRange(h.Newer)
	}
	return out
}

// placeOf gives the range and the node that an error or one of its causes names.
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

func cut(s string, size int) string {
	if len(s) > size {
		return s[:size-3] + "..."
	}
	return s
}

// DecodeError reads an error. A kind that this binary does not know becomes Other, whose effect on a write is unknown.
func DecodeError(m *rhumbpb.Error) (*rhumb.Error, Hint) {
	e := &rhumb.Error{
		Op: rhumb.Op(m.GetOp()), Kind: rhumb.Other, Msg: m.GetMessage(), Node: rhumb.NodeID(m.GetNode()),
		Range:   rhumb.RangeID{Region: rhumb.RegionID(m.GetRegion()), Slot: rhumb.Slot(m.GetSlot())},
		Current: rhumb.Version{HLC: rhumb.Timestamp(m.GetCurrentHlc()), Node: rhumb.NodeID(m.GetCurrentNode())},
	}
	if k := m.GetKind(); k >= 0 && int(k) < len(codeOf) {
		e.Kind = rhumb.Kind(k)
	}
	if e.Kind == rhumb.Overloaded {
		e.RetryAfter = DecodeMicros(m.GetRetryAfterUs())
	}
	var h Hint
	if m.GetNewer() != nil {
		h.Newer = DecodeRange(m.GetNewer())
	}
	return e, h
}

// Status makes err into the gRPC status that a handler returns; nil stays nil. An err that already is a status stays
// as it is.
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
	s := status.New(Code(rhumb.Kind(m.Kind)), cut(err.Error(), errorTextMax))
	if d, derr := s.WithDetails(m); derr == nil {
		s = d
	}
	return s.Err()
}

// FromStatus reads the error of a gRPC call, which must not be nil. remote is true when a node of Rhumb answered with it,
// so that its kind can be trusted; otherwise the transport failed, and what became of the request is not known.
func FromStatus(op rhumb.Op, err error) (e *rhumb.Error, h Hint, remote bool) {
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
	msg := s.Message()
	if c := s.Code(); c != codes.Canceled && c != codes.DeadlineExceeded {
		msg = c.String() + ": " + msg
	}
	return &rhumb.Error{Op: op, Kind: KindOfCode(s.Code()), Msg: msg}, Hint{}, false
}
