package rhumb

import (
	"bytes"
	"encoding/binary"
	"math"
)

// A stored value is a header byte and a payload. The high four bits of the header are the kind of
// the value, the low four the version of its codec, so that a codec can change without a new
// format:
//
//	0x11  opaque bytes: the payload as the client sent it
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
// A value is valid if its fields are sorted and distinct, and the last one ends where the value
// ends.
const (
	headerOpaque    = 0x11
	headerRecord    = 0x21
	headerTombstone = 0x31
)

// Tombstone is the stored value of a deleted key.
var Tombstone = []byte{headerTombstone}

// IsTombstone reports whether the stored bytes mark a deleted key.
func IsTombstone(value []byte) bool { return len(value) == 1 && value[0] == headerTombstone }

// IsRecord reports whether the stored bytes are a record. It checks only the header.
func IsRecord(value []byte) bool { return len(value) > 0 && value[0] == headerRecord }

// EncodeOpaque appends the stored form of opaque bytes to dst.
func EncodeOpaque(dst, payload []byte) []byte {
	return append(append(dst, headerOpaque), payload...)
}

// DecodeOpaque returns the payload of stored opaque bytes. The payload shares memory with value.
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

// AppendRecordHeader appends the beginning of a stored record with the given number of fields. The
// caller appends the fields in ascending order of their names with AppendFieldName and
// AppendFieldValue. It serves callers that hold a record in a form other than Record and want to
// avoid a conversion.
func AppendRecordHeader(dst []byte, fields int) []byte {
	return binary.AppendUvarint(append(dst, headerRecord), uint64(fields))
}

// AppendFieldName appends the stored form of a field's name. The value must follow.
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

// DecodeRecord decodes and validates a stored record. The result shares no memory with value.
func DecodeRecord(value []byte) (Record, error) {
	const op Op = "rhumb.DecodeRecord"
	it, err := readRecord(op, value)
	if err != nil {
		return nil, err
	}
	// The capacity is bounded because the count comes from the bytes, which may be damaged.
	r := make(Record, 0, min(it.left, 64))
	for {
		f, ok, err := it.nextField()
		if err != nil {
			return nil, err
		}
		if !ok {
			return r, nil
		}
		v, err := f.decodeValue(op)
		if err != nil {
			return nil, err
		}
		r = append(r, Field{string(f.name), v})
	}
}

// RecordField returns one field of a stored record without decoding the others.
func RecordField(value []byte, name string) (v FieldValue, ok bool, err error) {
	const op Op = "rhumb.RecordField"
	it, err := readRecord(op, value)
	if err != nil {
		return v, false, err
	}
	// Fields behind the wanted one are not checked: this is the hot path of conditions and indexes.
	for {
		f, more, err := it.nextField()
		if err != nil || !more {
			return v, false, err
		}
		if string(f.name) == name {
			v, err = f.decodeValue(op)
			return v, err == nil, err
		}
	}
}

// MergeRecord appends to dst the stored record that results from applying patch to base. Fields of
// the patch replace or add fields, null removes a field, and all other fields keep their values. An
// empty base or a tombstone counts as a record without fields. MergeRecord works on encoded bytes
// and decodes no values, so a patch of one field costs a copy of the others.
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
	// The number of fields precedes the fields in the encoding, so a first walk counts them.
	count, err := mergedCount(b, p)
	if err != nil {
		return nil, err
	}
	if count > RecordFieldsMax {
		return nil, Ef(op, TooLarge, "the patched record would have %d fields, more than the %d allowed", count, RecordFieldsMax)
	}
	dst = append(dst, headerRecord)
	dst = binary.AppendUvarint(dst, uint64(count))
	err = mergeFields(b, p, func(f rawField) { dst = append(dst, f.raw...) })
	return dst, err
}

// mergedCount returns the number of fields that merging base b with patch p leaves.
func mergedCount(b, p recordReader) (n int, err error) {
	err = mergeFields(b, p, func(rawField) { n++ })
	return n, err
}

// mergeFields walks both records in ascending order of names and calls keep for each field of the
// result. Both readers are passed by value, so the caller's stay at the start.
func mergeFields(b, p recordReader, keep func(rawField)) error {
	bf, bok, err := b.nextField()
	if err != nil {
		return err
	}
	pf, pok, err := p.nextField()
	if err != nil {
		return err
	}
	for bok || pok {
		// order is negative if the next name is only in the base, positive if it is only in the
		// patch, and 0 if it is in both.
		order := -1
		switch {
		case bok && pok:
			order = bytes.Compare(bf.name, pf.name)
		case pok:
			order = 1
		}
		if order < 0 {
			keep(bf)
			// The patch wins, and a null in the patch drops the field.
		} else if pf.kind != FieldNull {
			keep(pf)
		}
		if order <= 0 {
			if bf, bok, err = b.nextField(); err != nil {
				return err
			}
		}
		if order >= 0 {
			if pf, pok, err = p.nextField(); err != nil {
				return err
			}
		}
	}
	return nil
}

// rawField is one field of an encoded record. Its slices share memory with the record.
type rawField struct {
	name    []byte
	kind    FieldKind
	payload []byte // without the length prefix of strings and bytes
	raw     []byte // the whole encoded field
}

// decodeValue decodes the payload. Its size was checked when the field was read.
func (f rawField) decodeValue(op Op) (FieldValue, error) {
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

// recordReader iterates over an encoded record and checks the order and the bounds of its fields.
// It is a small value that can be copied to walk a record again.
type recordReader struct {
	op   Op     // for errors
	size int    // of the whole record, to compute offsets in errors
	rest []byte // not yet read
	left int    // fields not yet read
	last []byte // name of the field read last
}

// readRecord reads the header of a record.
func readRecord(op Op, value []byte) (recordReader, error) {
	if len(value) == 0 || value[0] != headerRecord {
		return recordReader{}, E(op, InvalidArgument, "value is not a record, but opaque bytes or of an unknown codec; read and write it as bytes")
	}
	n, size := binary.Uvarint(value[1:])
	if size <= 0 || n > RecordFieldsMax {
		return recordReader{}, E(op, Corrupt, "bad number of fields at offset 1")
	}
	return recordReader{op: op, size: len(value), rest: value[1+size:], left: int(n)}, nil
}

// corruptError returns an error that names the current offset.
func (it *recordReader) corruptError(what string) error {
	return Ef(it.op, Corrupt, "record: %s at offset %d of %d", what, it.size-len(it.rest), it.size)
}

// readBytes reads a length and as many bytes.
func (it *recordReader) readBytes(what string) ([]byte, error) {
	n, size := binary.Uvarint(it.rest)
	// The comparison is unsigned and subtracts from the length, so a huge n cannot overflow it.
	if size <= 0 || n > uint64(len(it.rest)-size) {
		return nil, it.corruptError("bad length of " + what)
	}
	b := it.rest[size : size+int(n)]
	it.rest = it.rest[size+int(n):]
	return b, nil
}

// nextField reads the next field. It returns false after the last one.
func (it *recordReader) nextField() (f rawField, ok bool, err error) {
	if it.left == 0 {
		if len(it.rest) != 0 {
			// Trailing bytes would be lost by a merge, so they are reported as damage.
			return f, false, it.corruptError("bytes after the last field")
		}
		return f, false, nil
	}
	start := it.rest
	if f.name, err = it.readBytes("name"); err != nil {
		return f, false, err
	}
	if len(f.name) == 0 || len(f.name) > FieldNameSizeMax || it.last != nil && bytes.Compare(it.last, f.name) >= 0 {
		return f, false, it.corruptError("name empty, long or out of order")
	}
	if len(it.rest) == 0 {
		return f, false, it.corruptError("no type")
	}
	f.kind, it.rest = FieldKind(it.rest[0]), it.rest[1:]
	switch f.kind {
	case FieldString, FieldBytes:
		f.payload, err = it.readBytes("value")
	case FieldInt64, FieldFloat64, FieldTimestamp:
		f.payload, err = it.readFixed(8)
	case FieldBool:
		f.payload, err = it.readFixed(1)
		if err == nil && f.payload[0] > 1 {
			err = it.corruptError("bool is neither 0 nor 1")
		}
	case FieldPoint:
		f.payload, err = it.readFixed(16)
	case FieldBox:
		f.payload, err = it.readFixed(32)
	case FieldNull:
	default:
		err = it.corruptError("unknown type " + f.kind.String())
	}
	if err != nil {
		return f, false, err
	}
	f.raw = start[:len(start)-len(it.rest)]
	it.last = f.name
	it.left--
	return f, true, nil
}

// readFixed reads n bytes.
func (it *recordReader) readFixed(n int) ([]byte, error) {
	if len(it.rest) < n {
		return nil, it.corruptError("value is cut short")
	}
	b := it.rest[:n]
	it.rest = it.rest[n:]
	return b, nil
}
