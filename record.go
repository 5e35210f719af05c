package rhumb

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FieldKind is the type of a field's value. Kinds are stored on disk: append only.
type FieldKind uint8

// The kinds of fields. FieldNull occurs only in patches, where it removes the field.
const (
	FieldNull      FieldKind = 0
	FieldString    FieldKind = 1
	FieldBytes     FieldKind = 2
	FieldInt64     FieldKind = 3
	FieldFloat64   FieldKind = 4
	FieldBool      FieldKind = 5
	FieldTimestamp FieldKind = 6
	FieldPoint     FieldKind = 7
	FieldBox       FieldKind = 8

	fieldKindEnd FieldKind = 9
)

var fieldKindNames = [fieldKindEnd]string{"null", "string", "bytes", "int64", "float64", "bool", "timestamp", "point", "box"}

// String returns the stable name of the kind.
func (k FieldKind) String() string {
	if k < fieldKindEnd {
		return fieldKindNames[k]
	}
	return fmt.Sprintf("field_kind_%d", uint8(k))
}

// ParseFieldKind parses the format of FieldKind.String. It rejects null, which is not a type of
// stored fields.
func ParseFieldKind(s string) (FieldKind, error) {
	const op Op = "rhumb.ParseFieldKind"
	if i := slices.Index(fieldKindNames[:], s); i > 0 {
		return FieldKind(i), nil
	}
	return 0, Ef(op, InvalidArgument, "%q is not a field type; use one of %s", s, strings.Join(fieldKindNames[1:], ", "))
}

// Point is a position on the earth in degrees, WGS 84.
type Point struct{ Lat, Lon float64 }

// Validate rejects latitudes outside ±90, longitudes outside ±180 and NaN.
func (p Point) Validate() error {
	const op Op = "rhumb.Point"
	// Both conditions are negated because a comparison with NaN is false.
	if !(p.Lat >= -90 && p.Lat <= 90) {
		return Ef(op, InvalidArgument, "latitude %v is not between -90 and 90; write a point as LAT,LON", p.Lat)
	}
	if !(p.Lon >= -180 && p.Lon <= 180) {
		return Ef(op, InvalidArgument, "longitude %v is not between -180 and 180; write a point as LAT,LON", p.Lon)
	}
	return nil
}

// String returns "lat,lon" with as many digits as are needed to parse the same point.
func (p Point) String() string {
	return strconv.FormatFloat(p.Lat, 'f', -1, 64) + "," + strconv.FormatFloat(p.Lon, 'f', -1, 64)
}

// Box is the area between two parallels and two meridians, in degrees, WGS 84. A box with Min.Lon >
// Max.Lon crosses the antimeridian.
type Box struct{ Min, Max Point }

// Validate rejects invalid corners, and a southern edge that is north of the northern edge.
func (b Box) Validate() error {
	const op Op = "rhumb.Box"
	if err := cmp.Or(b.Min.Validate(), b.Max.Validate()); err != nil {
		return err
	}
	if b.Min.Lat > b.Max.Lat {
		return Ef(op, InvalidArgument, "southern edge %v is north of northern edge %v; write the south-western corner first", b.Min.Lat, b.Max.Lat)
	}
	return nil
}

// String returns "lat,lon,lat,lon": the south-western corner, then the north-eastern one.
func (b Box) String() string { return b.Min.String() + "," + b.Max.String() }

// FieldValue is one typed value. The zero value is FieldNull. StringField and similar functions
// return other values.
type FieldValue struct {
	kind FieldKind
	num  uint64      // int64, float64 bits, bool, timestamp in microseconds since 1970
	str  string      // string, bytes
	geo  *[4]float64 // point: lat, lon, 0, 0; box: min lat, min lon, max lat, max lon
}

// StringField returns a text value.
func StringField(s string) FieldValue { return FieldValue{kind: FieldString, str: s} }

// BytesField returns a value of raw bytes. It copies b.
func BytesField(b []byte) FieldValue { return FieldValue{kind: FieldBytes, str: string(b)} }

// Int64Field returns an integer value.
func Int64Field(n int64) FieldValue { return FieldValue{kind: FieldInt64, num: uint64(n)} }

// Float64Field returns a floating-point value.
func Float64Field(f float64) FieldValue {
	return FieldValue{kind: FieldFloat64, num: math.Float64bits(f)}
}

// BoolField returns a truth value.
func BoolField(b bool) FieldValue {
	v := FieldValue{kind: FieldBool}
	if b {
		v.num = 1
	}
	return v
}

// TimestampField returns a time value, truncated to microseconds.
func TimestampField(t time.Time) FieldValue {
	return FieldValue{kind: FieldTimestamp, num: uint64(t.UnixMicro())}
}

// PointField returns a location that is a point.
func PointField(p Point) FieldValue {
	return FieldValue{kind: FieldPoint, geo: &[4]float64{p.Lat, p.Lon}}
}

// BoxField returns a location that is a box.
func BoxField(b Box) FieldValue {
	return FieldValue{kind: FieldBox, geo: &[4]float64{b.Min.Lat, b.Min.Lon, b.Max.Lat, b.Max.Lon}}
}

// Kind returns the type of v.
func (v FieldValue) Kind() FieldKind { return v.kind }

// Text returns the string of a FieldString or the raw bytes of a FieldBytes. It returns "" for
// other kinds.
func (v FieldValue) Text() string { return v.str }

// Int64 returns the integer of a FieldInt64, or 0 for other kinds.
func (v FieldValue) Int64() int64 {
	if v.kind != FieldInt64 {
		return 0
	}
	return int64(v.num)
}

// Float64 returns the number of a FieldFloat64, or 0 for other kinds.
func (v FieldValue) Float64() float64 {
	if v.kind != FieldFloat64 {
		return 0
	}
	return math.Float64frombits(v.num)
}

// Bool returns the truth value of a FieldBool, or false for other kinds.
func (v FieldValue) Bool() bool { return v.kind == FieldBool && v.num != 0 }

// Time returns the time of a FieldTimestamp in UTC, or the zero time for other kinds.
func (v FieldValue) Time() time.Time {
	if v.kind != FieldTimestamp {
		return time.Time{}
	}
	return time.UnixMicro(int64(v.num)).UTC()
}

// Point returns the position of a FieldPoint. It returns false for other kinds.
func (v FieldValue) Point() (p Point, ok bool) {
	if v.kind != FieldPoint {
		return Point{}, false
	}
	return Point{v.geo[0], v.geo[1]}, true
}

// Box returns the area of a FieldBox. It returns false for other kinds.
func (v FieldValue) Box() (b Box, ok bool) {
	if v.kind != FieldBox {
		return Box{}, false
	}
	return Box{Point{v.geo[0], v.geo[1]}, Point{v.geo[2], v.geo[3]}}, true
}

// Equal reports whether two values have the same kind and are identical bit by bit, NaN included.
func (v FieldValue) Equal(o FieldValue) bool {
	if v.kind != o.kind || v.num != o.num || v.str != o.str {
		return false
	}
	return v.geo == o.geo || v.geo != nil && o.geo != nil && *v.geo == *o.geo
}

// Compare orders values: null first, then numbers and times of one kind by value and text by its
// bytes. Values of different kinds are ordered by kind, except that int64 and float64 compare as
// numbers.
func (v FieldValue) Compare(o FieldValue) int {
	vn, vok := v.asFloat()
	on, ook := o.asFloat()
	switch {
	// Two integers compare as integers: converted to float64, large ones would compare as equal.
	case v.kind == o.kind && v.kind == FieldInt64, v.kind == o.kind && v.kind == FieldTimestamp:
		return cmp.Compare(int64(v.num), int64(o.num))
	case vok && ook:
		// cmp.Compare orders NaN before every number, so the order stays total.
		return cmp.Compare(vn, on)
	case v.kind != o.kind:
		return cmp.Compare(v.kind, o.kind)
	case v.geo != nil:
		return slices.Compare(v.geo[:], o.geo[:])
	}
	return cmp.Or(cmp.Compare(v.num, o.num), cmp.Compare(v.str, o.str))
}

// asFloat returns the value of an int64 or a float64.
func (v FieldValue) asFloat() (float64, bool) {
	switch v.kind {
	case FieldInt64:
		return float64(int64(v.num)), true
	case FieldFloat64:
		return math.Float64frombits(v.num), true
	}
	return 0, false
}

// Validate rejects unknown kinds and locations that are not on the earth.
func (v FieldValue) Validate() error {
	const op Op = "rhumb.FieldValue"
	switch {
	case v.kind >= fieldKindEnd:
		return Ef(op, InvalidArgument, "field type %d is unknown; this binary may be older than the data", v.kind)
	case v.kind == FieldPoint:
		p, _ := v.Point()
		return p.Validate()
	case v.kind == FieldBox:
		b, _ := v.Box()
		return b.Validate()
	}
	return nil
}

// String formats the value for people. ParseField parses the same format.
func (v FieldValue) String() string {
	switch v.kind {
	case FieldNull:
		return "null"
	case FieldString:
		return v.str
	case FieldBytes:
		return "0x" + hex.EncodeToString([]byte(v.str))
	case FieldInt64:
		return strconv.FormatInt(int64(v.num), 10)
	case FieldFloat64:
		return strconv.FormatFloat(v.Float64(), 'g', -1, 64)
	case FieldBool:
		return strconv.FormatBool(v.num != 0)
	case FieldTimestamp:
		return v.Time().Format(time.RFC3339Nano)
	case FieldPoint:
		p, _ := v.Point()
		return p.String()
	case FieldBox:
		b, _ := v.Box()
		return b.String()
	}
	return v.kind.String()
}

// JSON returns the value in a form that JSON can hold: nil, a bool, an int64, a finite float64, or
// otherwise the text of String.
func (v FieldValue) JSON() any {
	switch v.kind {
	case FieldNull:
		return nil
	case FieldInt64:
		return v.Int64()
	case FieldFloat64:
		// The difference is NaN for NaN and for infinities, which JSON cannot hold.
		if f := v.Float64(); f-f == 0 {
			return f
		}
	case FieldBool:
		return v.Bool()
	}
	return v.String()
}

// ParseField parses a value of the given kind in the format of FieldValue.String. A timestamp may
// also be seconds since 1970 with a fraction.
func ParseField(kind FieldKind, s string) (FieldValue, error) {
	const op Op = "rhumb.ParseField"
	bad := func(form string) (FieldValue, error) {
		return FieldValue{}, Ef(op, InvalidArgument, "%q is not of type %s; write it as %s", s, kind, form)
	}
	var v FieldValue
	switch kind {
	case FieldNull:
	case FieldString:
		v = StringField(s)
	case FieldBytes:
		// Text without 0x is accepted as the bytes of the text: ParseName treats names the same way.
		b, err := ParseName(s)
		if err != nil {
			return bad("0x and hexadecimal digits")
		}
		v = BytesField(b)
	case FieldInt64:
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return bad("a whole number of at most 64 bits")
		}
		v = Int64Field(n)
	case FieldFloat64:
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return bad("a number")
		}
		v = Float64Field(f)
	case FieldBool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return bad("true or false")
		}
		v = BoolField(b)
	case FieldTimestamp:
		t, err := parseTime(s)
		if err != nil {
			return bad("2026-01-02T15:04:05Z or seconds since 1970")
		}
		v = TimestampField(t)
	case FieldPoint, FieldBox:
		f, err := parseFloats(s)
		switch {
		case err == nil && kind == FieldPoint && len(f) == 2:
			v = PointField(Point{f[0], f[1]})
		case err == nil && kind == FieldBox && len(f) == 4:
			v = BoxField(Box{Point{f[0], f[1]}, Point{f[2], f[3]}})
		case kind == FieldPoint:
			return bad("LAT,LON")
		default:
			return bad("LAT,LON,LAT,LON (south-west, north-east)")
		}
	default:
		return FieldValue{}, Ef(op, InvalidArgument, "field type %d is unknown", kind)
	}
	// The text may be well formed and still denote no place on the earth.
	return v, v.Validate()
}

// parseTime parses RFC 3339 or seconds since 1970.
func parseTime(s string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return time.Time{}, err
	}
	// 1e11 seconds is the year 5138. The bound keeps the product with 1e6 inside an int64, and is
	// negated because a comparison with NaN is false.
	if !(math.Abs(f) < 1e11) {
		return time.Time{}, strconv.ErrRange
	}
	return time.UnixMicro(int64(math.Round(f * 1e6))).UTC(), nil
}

// parseFloats parses numbers that are separated by commas.
func parseFloats(s string) ([]float64, error) {
	var out []float64
	for part := range strings.SplitSeq(s, ",") {
		f, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// Field is a named value.
type Field struct {
	Name  string
	Value FieldValue
}

// Record is a set of fields in ascending order of their names, without duplicates.
type Record []Field

// NewRecord returns a record of the given fields, sorted by name. It rejects empty, long and
// repeated names and invalid values.
func NewRecord(fields ...Field) (Record, error) {
	r := Record(slices.Clone(fields))
	slices.SortFunc(r, func(a, b Field) int { return cmp.Compare(a.Name, b.Name) })
	return r, r.Validate()
}

// Get returns the value of a field. It returns false if the record has no such field.
func (r Record) Get(name string) (v FieldValue, ok bool) {
	i, ok := slices.BinarySearchFunc(r, name, func(f Field, name string) int { return cmp.Compare(f.Name, name) })
	if !ok {
		return FieldValue{}, false
	}
	return r[i].Value, true
}

// Validate rejects whatever NewRecord rejects, and a record that is not sorted.
func (r Record) Validate() error {
	const op Op = "rhumb.Record"
	if len(r) > RecordFieldsMax {
		return Ef(op, TooLarge, "record has %d fields, more than the %d allowed", len(r), RecordFieldsMax)
	}
	for i, f := range r {
		switch {
		case f.Name == "":
			return Ef(op, InvalidArgument, "field %d has an empty name; names of fields have 1 to %d bytes", i+1, FieldNameSizeMax)
		case len(f.Name) > FieldNameSizeMax:
			return Ef(op, TooLarge, "field name %.20q… has %d bytes; names of fields have 1 to %d bytes", f.Name, len(f.Name), FieldNameSizeMax)
		case i > 0 && r[i-1].Name == f.Name:
			return Ef(op, InvalidArgument, "field %q appears twice; name each field once", f.Name)
		case i > 0 && r[i-1].Name > f.Name:
			return Ef(op, InvalidArgument, "field %q is out of order; fields are sorted by name", f.Name)
		}
		if err := f.Value.Validate(); err != nil {
			return Ef(op, KindOf(err), "field %q: %v", f.Name, err)
		}
	}
	return nil
}
