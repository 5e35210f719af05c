package rhumb

import (
	"bytes"
	"encoding/binary"
	"math"
)

// A stored value is one header byte and a payload. The high four bits of the header are the value's kind, the low four
// the version of its codec, so that a codec can change without a change of format:
//
//	0x11  opaque bytes: the payload as the client gave it
//	0x21  record:       uvarint(fields), then per field, sorted by name:
//	                    uvarint(len(name)) name kind(1) payload
//	                    string, bytes  uvarint(len) bytes
//	                    int64          8 bytes, big endian, two's complement
//	                    float64        8 bytes, big endian, IEEE 754
//	                    bool           1 byte, 0 or 1
//	                    timestamp      8 bytes, big endian, microseconds since 1970
//	                    point          lat, lon: two float64
//	                    box            min lat, min lon, max lat, max lon: four float64
//	                    null           nothing; only in a patch, where it removes the field
//	0x31  tombstone:    no payload
//
// A value is valid when its fields are sorted, distinct and end exactly at its end.
const (
	headerOpaque    = 0x11
	headerRecord    = 0x21
	headerTombstone = 0x31
)

// Tombstone is the stored value of a deleted key.
var Tombstone = []byte{headerTombstone}

// IsTombstone reports whether stored bytes say that the key was deleted.
func IsTombstone(value []byte) bool { return len(value) == 1 && value[0] == headerTombstone }

// IsRecord reports whether stored bytes hold a record.
func IsRecord(value []byte) bool { return len(value) > 0 && value[0] == headerRecord }

// EncodeOpaque appends the stored form of opaque bytes to dst.
func EncodeOpaque(dst, payload []byte) []byte {
	return append(append(dst, headerOpaque), payload...)
}

// DecodeOpaque gives the payload of stored opaque bytes; it shares memory with value.
func DecodeOpaque(value []byte) (payload []byte, ok bool) {
	if len(value) == 0 || value[0] != headerOpaque {
		return nil, false
	}
	return value[1:], true
}

// EncodeRecord appends the stored form of a record to dst. The record must be valid.
func EncodeRecord(dst []byte, r Record) []byte {
	dst = AppendRecordHeader(dst, len(r))
	for _, f := range r {
		dst = AppendFieldValue(AppendFieldName(dst, f.Name), f.Value)
	}
	return dst
}

// AppendRecordHeader begins the stored form of a record of so many fields. The fields follow, sorted by name, each by
// AppendFieldName and AppendFieldValue: for those who hold a record in another form than a Record.
func AppendRecordHeader(dst []byte, fields int) []byte {
	return binary.AppendUvarint(append(dst, headerRecord), uint64(fields))
}

// AppendFieldName appends the stored form of a field's name; its value follows.
func AppendFieldName(dst []byte, name string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(name))), name...)
}

// AppendFieldValue appends the stored form of a field's value.
func AppendFieldValue(dst []byte, v FieldValue) []byte {
	dst = append(dst, byte(v.kind))
	switch v.kind {
	case FieldString, FieldBytes:
		dst = binary.AppendUvarint(dst, uint64(len(v.str)))
		return append(dst, v.str...)
	case FieldInt64, FieldFloat64, FieldTimestamp:
		return binary.BigEndian.AppendUint64(dst, v.num)
	case FieldBool:
		return append(dst, byte(v.num))
	case FieldPoint:
		return appendFloats(dst, v.geo[:2])
	case FieldBox:
		return appendFloats(dst, v.geo[:])
	}
	return dst
}

func appendFloats(dst []byte, fs []float64) []byte {
	for _, f := range fs {
		dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(f))
	}
	return dst
}

// DecodeRecord reads a stored record and validates it; the result shares no memory with value.
func DecodeRecord(value []byte) (Record, error) {
	const op Op = "rhumb.DecodeRecord"
	it, err := readRecord(op, value)
	if err != nil {
		return nil, err
	}
	r := make(Record, 0, min(it.left, 64))
	for {
		f, ok, err := it.next()
		if err != nil {
			return nil, err
		}
		if !ok {
			return r, nil
		}
		v, err := f.value(op)
		if err != nil {
			return nil, err
		}
		r = append(r, Field{string(f.name), v})
	}
}

// RecordField gives one field of a stored record without decoding the others.
func RecordField(value []byte, name string) (v FieldValue, ok bool, err error) {
	const op Op = "rhumb.RecordField"
	it, err := readRecord(op, value)
	if err != nil {
		return v, false, err
	}
	for {
		f, more, err := it.next()
		if err != nil || !more {
			return v, false, err
		}
		if string(f.name) == name {
			v, err = f.value(op)
			return v, err == nil, err
		}
	}
}

// MergeRecord appends to dst the stored record that base becomes under patch: fields of the patch replace or add,
// null removes, all others stay as they are. An empty base or a tombstone is the record without fields. It works on
// encoded bytes in one pass, without decoding values (row P3: sparse update).
func MergeRecord(dst, base, patch []byte) ([]byte, error) {
	const op Op = "rhumb.MergeRecord"
	if len(base) == 0 || IsTombstone(base) {
		base = []byte{headerRecord, 0}
	}
	b, err := readRecord(op, base)
	if err != nil {
		return nil, err
	}
	p, err := readRecord(op, patch)
	if err != nil {
		return nil, err
	}
	count, err := mergedCount(b, p)
	if err != nil {
		return nil, err
	}
	if count > RecordFieldsMax {
		return nil, Ef(op, TooLarge, "the record would have %d fields, at most %d are allowed", count, RecordFieldsMax)
	}
	dst = append(dst, headerRecord)
	dst = binary.AppendUvarint(dst, uint64(count))
	err = mergeFields(b, p, func(f rawField) { dst = append(dst, f.raw...) })
	return dst, err
}

func mergedCount(b, p recordReader) (n int, err error) {
	err = mergeFields(b, p, func(rawField) { n++ })
	return n, err
}

// mergeFields walks both records in the order of names and calls keep for each field of the result.
func mergeFields(b, p recordReader, keep func(rawField)) error {
	bf, bok, err := b.next()
	if err != nil {
		return err
	}
	pf, pok, err := p.next()
	if err != nil {
		return err
	}
	for bok || pok {
		order := -1
		switch {
		case bok && pok:
			order = bytes.Compare(bf.name, pf.name)
		case pok:
			order = 1
		}
		if order < 0 {
			keep(bf)
		} else if pf.kind != FieldNull {
			keep(pf)
		}
		if order <= 0 {
			if bf, bok, err = b.next(); err != nil {
				return err
			}
		}
		if order >= 0 {
			if pf, pok, err = p.next(); err != nil {
				return err
			}
		}
	}
	return nil
}

// rawField is one field of an encoded record; its slices share memory with the record.
type rawField struct {
	name    []byte
	kind    FieldKind
	payload []byte // without the length of strings and bytes
	raw     []byte // the whole encoded field
}

func (f rawField) value(op Op) (FieldValue, error) {
	v := FieldValue{kind: f.kind}
	switch f.kind {
	case FieldString, FieldBytes:
		v.str = string(f.payload)
	case FieldInt64, FieldFloat64, FieldTimestamp:
		v.num = binary.BigEndian.Uint64(f.payload)
	case FieldBool:
		v.num = uint64(f.payload[0])
	case FieldPoint, FieldBox:
		v.geo = new([4]float64)
		for i := range len(f.payload) / 8 {
			v.geo[i] = math.Float64frombits(binary.BigEndian.Uint64(f.payload[8*i:]))
		}
	}
	if err := v.Validate(); err != nil {
		return v, Ef(op, Corrupt, "field %q: %v", f.name, err)
	}
	return v, nil
}

// recordReader walks an encoded record field by field, checking order and bounds.
type recordReader struct {
	op   Op
	size int
	rest []byte
	left int
	last []byte
}

func readRecord(op Op, value []byte) (recordReader, error) {
	if len(value) == 0 || value[0] != headerRecord {
		return recordReader{}, E(op, InvalidArgument, "the value is no record: it holds opaque bytes or an unknown codec")
	}
	n, size := binary.Uvarint(value[1:])
	if size <= 0 || n > RecordFieldsMax {
		return recordReader{}, E(op, Corrupt, "bad number of fields at offset 1")
	}
	return recordReader{op: op, size: len(value), rest: value[1+size:], left: int(n)}, nil
}

func (it *recordReader) corrupt(what string) error {
	return Ef(it.op, Corrupt, "record: %s at offset %d of %d", what, it.size-len(it.rest), it.size)
}

func (it *recordReader) bytes(what string) ([]byte, error) {
	n, size := binary.Uvarint(it.rest)
	if size <= 0 || n > uint64(len(it.rest)-size) {
		return nil, it.corrupt("bad length of " + what)
	}
	b := it.rest[size : size+int(n)]
	it.rest = it.rest[size+int(n):]
	return b, nil
}

func (it *recordReader) next() (f rawField, ok bool, err error) {
	if it.left == 0 {
		if len(it.rest) != 0 {
			return f, false, it.corrupt("bytes after the last field")
		}
		return f, false, nil
	}
	start := it.rest
	if f.name, err = it.bytes("name"); err != nil {
		return f, false, err
	}
	if len(f.name) == 0 || len(f.name) > FieldNameSizeMax || it.last != nil && bytes.Compare(it.last, f.name) >= 0 {
		return f, false, it.corrupt("name empty, long or out of order")
	}
	if len(it.rest) == 0 {
		return f, false, it.corrupt("no type")
	}
	f.kind, it.rest = FieldKind(it.rest[0]), it.rest[1:]
	switch f.kind {
	case FieldString, FieldBytes:
		f.payload, err = it.bytes("value")
	case FieldInt64, FieldFloat64, FieldTimestamp:
		f.payload, err = it.fixed(8)
	case FieldBool:
		f.payload, err = it.fixed(1)
		if err == nil && f.payload[0] > 1 {
			err = it.corrupt("bool is neither 0 nor 1")
		}
	case FieldPoint:
		f.payload, err = it.fixed(16)
	case FieldBox:
		f.payload, err = it.fixed(32)
	case FieldNull:
	default:
		err = it.corrupt("unknown type " + f.kind.String())
	}
	if err != nil {
		return f, false, err
	}
	f.raw = start[:len(start)-len(it.rest)]
	it.last = f.name
	it.left--
	return f, true, nil
}

func (it *recordReader) fixed(n int) ([]byte, error) {
	if len(it.rest) < n {
		return nil, it.corrupt("value is cut short")
	}
	b := it.rest[:n]
	it.rest = it.rest[n:]
	return b, nil
}
