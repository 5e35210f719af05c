package keys

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
)

// A field in a key is one byte for its kind and a payload that sorts as the values do:
//
//	null       nothing
//	string     escaped, ended by 00 00
//	bytes      the same
//	int64      8 bytes, big endian, sign bit flipped
//	float64    8 bytes, big endian; all bits flipped when negative, else the sign bit; NaN is all zero and comes first
//	bool       1 byte, 0 or 1
//	timestamp  as int64, in microseconds since 1970
//
// Values of different kinds sort by kind. One value has one form: -0 is written as 0, and every NaN alike.
const signBit = 1 << 63

// AppendField appends a field in a form whose bytes sort as the values of its kind do. Points and boxes have no order
// and are refused.
func AppendField(dst []byte, v rhumb.FieldValue) ([]byte, error) {
	dst = append(dst, byte(v.Kind()))
	switch v.Kind() {
	case rhumb.FieldNull:
		return dst, nil
	case rhumb.FieldString, rhumb.FieldBytes:
		return AppendEscaped(dst, []byte(v.Text())), nil
	case rhumb.FieldInt64:
		return appendInt64(dst, v.Int64()), nil
	case rhumb.FieldFloat64:
		return binary.BigEndian.AppendUint64(dst, orderFloat(v.Float64())), nil
	case rhumb.FieldBool:
		if v.Bool() {
			return append(dst, 1), nil
		}
		return append(dst, 0), nil
	case rhumb.FieldTimestamp:
		return appendInt64(dst, v.Time().UnixMicro()), nil
	}
	return dst, rhumb.Ef("keys.AppendField", rhumb.InvalidArgument, "a %s has no order and cannot stand in a key", v.Kind())
}

func appendInt64(dst []byte, n int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(n)^signBit)
}

func orderFloat(f float64) uint64 {
	switch bits := math.Float64bits(f); {
	case f != f:
		return 0
	case f == 0:
		return signBit
	case bits&signBit != 0:
		return ^bits
	default:
		return bits | signBit
	}
}

// DecodeField reads what AppendField wrote, and gives the bytes behind it.
func DecodeField(b []byte) (v rhumb.FieldValue, rest []byte, err error) {
	const op rhumb.Op = "keys.DecodeField"
	if len(b) == 0 {
		return v, nil, rhumb.E(op, rhumb.Corrupt, "no kind at offset 0")
	}
	kind, b := rhumb.FieldKind(b[0]), b[1:]
	bad := func(what string) (rhumb.FieldValue, []byte, error) {
		return rhumb.FieldValue{}, nil, rhumb.Ef(op, rhumb.Corrupt, "%s: %s at offset 1", kind, what)
	}
	switch kind {
	case rhumb.FieldNull:
		return v, b, nil
	case rhumb.FieldString, rhumb.FieldBytes:
		text, rest, ok := decodeEscaped(b)
		if !ok {
			return bad("badly escaped or not ended")
		}
		if kind == rhumb.FieldString {
			return rhumb.StringField(string(text)), rest, nil
		}
		return rhumb.BytesField(text), rest, nil
	case rhumb.FieldBool:
		if len(b) < 1 || b[0] > 1 {
			return bad("neither 0 nor 1")
		}
		return rhumb.BoolField(b[0] == 1), b[1:], nil
	case rhumb.FieldInt64, rhumb.FieldFloat64, rhumb.FieldTimestamp:
		if len(b) < 8 {
			return bad("cut short")
		}
	default:
		return bad("no kind that stands in keys")
	}
	bits := binary.BigEndian.Uint64(b)
	switch kind {
	case rhumb.FieldInt64:
		v = rhumb.Int64Field(int64(bits ^ signBit))
	case rhumb.FieldTimestamp:
		v = rhumb.TimestampField(time.UnixMicro(int64(bits ^ signBit)))
	default:
		f, ok := unorderFloat(bits)
		if !ok {
			return bad("a form that is never written")
		}
		v = rhumb.Float64Field(f)
	}
	return v, b[8:], nil
}

func unorderFloat(bits uint64) (float64, bool) {
	if bits == 0 {
		return math.NaN(), true
	}
	f := math.Float64frombits(^bits)
	if bits&signBit != 0 {
		f = math.Float64frombits(bits &^ signBit)
	}
	return f, orderFloat(f) == bits
}
