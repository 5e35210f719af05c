package rhumb

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// FieldKind is the type of a field's value. Kinds stand in stored bytes: append only.
type FieldKind uint8

// The kinds of fields. FieldNull stands only in patches, where it removes the field.
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

// String gives the stable name of the kind.
func (k FieldKind) String() string {
	if k < fieldKindEnd {
		return fieldKindNames[k]
	}
	return fmt.Sprintf("field_kind_%d", uint8(k))
}

// ParseFieldKind reads what FieldKind.String writes.
func ParseFieldKind(s string) (FieldKind, error) {
	const op Op = "rhumb.ParseFieldKind"
	if i := slices.Index(fieldKindNames[:], s); i > 0 {
		return FieldKind(i), nil
	}
	return 0, Ef(op, InvalidArgument, "%q is no field type; use one of %v", s, fieldKindNames[1:])
}

// Point is a place on the earth in degrees, WGS 84.
type Point struct{ Lat, Lon float64 }

// Validate refuses latitudes outside ±90, longitudes outside ±180 and NaN.
func (p Point) Validate() error {
	const op Op = "rhumb.Point"
	if !(p.Lat >= -90 && p.Lat <= 90) {
		return Ef(op, InvalidArgument, "latitude %v is outside -90 to 90", p.Lat)
	}
	if !(p.Lon >= -180 && p.Lon <= 180) {
		return Ef(op, InvalidArgument, "longitude %v is outside -180 to 180", p.Lon)
	}
	return nil
}

// String gives "lat,lon" with as many digits as are needed.
func (p Point) String() string {
	return strconv.FormatFloat(p.Lat, 'f', -1, 64) + "," + strconv.FormatFloat(p.Lon, 'f', -1, 64)
}

// Box is the part of the earth between two parallels and two meridians, in degrees, WGS 84. A box with Min.Lon >
// Max.Lon crosses the antimeridian.
type Box struct{ Min, Max Point }

// Validate refuses corners that are no points, and a box whose southern edge lies north of its northern.
func (b Box) Validate() error {
	const op Op = "rhumb.Box"
	if err := cmp.Or(b.Min.Validate(), b.Max.Validate()); err != nil {
		return err
	}
	if b.Min.Lat > b.Max.Lat {
		return Ef(op, InvalidArgument, "southern edge %v lies north of northern edge %v", b.Min.Lat, b.Max.Lat)
	}
	return nil
}

// String gives "lat,lon,lat,lon": the south-western corner, then the north-eastern.
func (b Box) String() string { return b.Min.String() + "," + b.Max.String() }

// FieldValue is one typed value. The zero value is FieldNull. Make one with StringField and its like.
type FieldValue struct {
	kind FieldKind
	num  uint64      // int64, float64 bits, bool, timestamp in microseconds since 1970
	str  string      // string, bytes
	geo  *[4]float64 // point: lat, lon, 0, 0; box: min lat, min lon, max lat, max lon
}

// StringField makes a text value.
func StringField(s string) FieldValue { return FieldValue{kind: FieldString, str: s} }

// BytesField makes a value of raw bytes; they are copied.
func BytesField(b []byte) FieldValue { return FieldValue{kind: FieldBytes, str: string(b)} }

// Int64Field makes an integer value.
func Int64Field(n int64) FieldValue { return FieldValue{kind: FieldInt64, num: uint64(n)} }

// Float64Field makes a floating-point value.
func Float64Field(f float64) FieldValue {
	return FieldValue{kind: FieldFloat64, num: math.Float64bits(f)}
}

// BoolField makes a truth value.
func BoolField(b bool) FieldValue {
	v := FieldValue{kind: FieldBool}
	if b {
		v.num = 1
	}
	return v
}

// TimestampField makes a time, kept to the microsecond.
func TimestampField(t time.Time) FieldValue {
	return FieldValue{kind: FieldTimestamp, num: uint64(t.UnixMicro())}
}

// PointField makes a location that is a point.
func PointField(p Point) FieldValue {
	return FieldValue{kind: FieldPoint, geo: &[4]float64{p.Lat, p.Lon}}
}

// BoxField makes a location that is a box.
func BoxField(b Box) FieldValue {
	return FieldValue{kind: FieldBox, geo: &[4]float64{b.Min.Lat, b.Min.Lon, b.Max.Lat, b.Max.Lon}}
}

// Kind gives the type of v.
func (v FieldValue) Kind() FieldKind { return v.kind }

// Text gives the string of a FieldString, and the raw bytes of a FieldBytes; "" for other kinds.
func (v FieldValue) Text() string { return v.str }

// Int64 gives the integer of a FieldInt64; 0 for other kinds.
func (v FieldValue) Int64() int64 {
	if v.kind != FieldInt64 {
		return 0
	}
	return int64(v.num)
}

// Float64 gives the number of a FieldFloat64; 0 for other kinds.
func (v FieldValue) Float64() float64 {
	if v.kind != FieldFloat64 {
		return 0
	}
	return math.Float64frombits(v.num)
}

// Bool gives the truth of a FieldBool; false for other kinds.
func (v FieldValue) Bool() bool { return v.kind == FieldBool && v.num != 0 }

// Time gives the time of a FieldTimestamp in UTC; the zero time for other kinds.
func (v FieldValue) Time() time.Time {
	if v.kind != FieldTimestamp {
		return time.Time{}
	}
	return time.UnixMicro(int64(v.num)).UTC()
}

// Point gives the place of a FieldPoint, and ok false for other kinds.
func (v FieldValue) Point() (p Point, ok bool) {
	if v.kind != FieldPoint {
		return Point{}, false
	}
	return Point{v.geo[0], v.geo[1]}, true
}

// Box gives the area of a FieldBox, and ok false for other kinds.
func (v FieldValue) Box() (b Box, ok bool) {
	if v.kind != FieldBox {
		return Box{}, false
	}
	return Box{Point{v.geo[0], v.geo[1]}, Point{v.geo[2], v.geo[3]}}, true
}

// Equal reports whether two values are of one kind and bit for bit the same.
func (v FieldValue) Equal(o FieldValue) bool {
	if v.kind != o.kind || v.num != o.num || v.str != o.str {
		return false
	}
	return v.geo == o.geo || v.geo != nil && o.geo != nil && *v.geo == *o.geo
}

// Compare orders values: null first, then numbers and times of one kind by size, text by its bytes. Values of different
// kinds are ordered by kind, but int64 and float64 compare as numbers.
func (v FieldValue) Compare(o FieldValue) int {
	vn, vok := v.number()
	on, ook := o.number()
	switch {
	case v.kind == o.kind && v.kind == FieldInt64, v.kind == o.kind && v.kind == FieldTimestamp:
		return cmp.Compare(int64(v.num), int64(o.num))
	case vok && ook:
		return cmp.Compare(vn, on)
	case v.kind != o.kind:
		return cmp.Compare(v.kind, o.kind)
	case v.geo != nil:
		return slices.Compare(v.geo[:], o.geo[:])
	}
	return cmp.Or(cmp.Compare(v.num, o.num), cmp.Compare(v.str, o.str))
}

func (v FieldValue) number() (float64, bool) {
	switch v.kind {
	case FieldInt64:
		return float64(int64(v.num)), true
	case FieldFloat64:
		return math.Float64frombits(v.num), true
	}
	return 0, false
}

// Validate refuses unknown kinds and locations that are not on the earth.
func (v FieldValue) Validate() error {
	const op Op = "rhumb.FieldValue"
	switch {
	case v.kind >= fieldKindEnd:
		return Ef(op, InvalidArgument, "field type %d is not known", v.kind)
	case v.kind == FieldPoint:
		p, _ := v.Point()
		return p.Validate()
	case v.kind == FieldBox:
		b, _ := v.Box()
		return b.Validate()
	}
	return nil
}

// String shows the value to a person, and is what ParseField reads.
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

// JSON gives the value as JSON can hold it: nil, a bool, an int64 or a finite float64, and else the text of String.
func (v FieldValue) JSON() any {
	switch v.kind {
	case FieldNull:
		return nil
	case FieldInt64:
		return v.Int64()
	case FieldFloat64:
		if f := v.Float64(); f-f == 0 {
			return f
		}
	case FieldBool:
		return v.Bool()
	}
	return v.String()
}

// ParseField reads a value of the given kind from text, as String writes it. A timestamp may also be seconds since 1970
// with a fraction.
func ParseField(kind FieldKind, s string) (FieldValue, error) {
	const op Op = "rhumb.ParseField"
	bad := func(form string) (FieldValue, error) {
		return FieldValue{}, Ef(op, InvalidArgument, "%q is no %s; write it as %s", s, kind, form)
	}
	var v FieldValue
	switch kind {
	case FieldNull:
	case FieldString:
		v = StringField(s)
	case FieldBytes:
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
		return FieldValue{}, Ef(op, InvalidArgument, "field type %d is not known", kind)
	}
	return v, v.Validate()
}

func parseTime(s string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return time.Time{}, err
	}
	if !(math.Abs(f) < 1e11) {
		return time.Time{}, strconv.ErrRange
	}
	return time.UnixMicro(int64(math.Round(f * 1e6))).UTC(), nil
}

func parseFloats(s string) ([]float64, error) {
	var out []float64
	for part := range splitSeq(s, ',') {
		f, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func splitSeq(s string, sep byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		from := 0
		for i := 0; i <= len(s); i++ {
			if i == len(s) || s[i] == sep {
				if !yield(s[from:i]) {
					return
				}
				from = i + 1
			}
		}
	}
}

// Field is a named value.
type Field struct {
	Name  string
	Value FieldValue
}

// Record is a set of fields, sorted by name, no name twice.
type Record []Field

// NewRecord sorts fields by name and refuses empty, long or repeated names and bad values.
func NewRecord(fields ...Field) (Record, error) {
	r := Record(slices.Clone(fields))
	slices.SortFunc(r, func(a, b Field) int { return cmp.Compare(a.Name, b.Name) })
	return r, r.Validate()
}

// Get gives the value of a field, and ok false when the record has no such field.
func (r Record) Get(name string) (v FieldValue, ok bool) {
	i, ok := slices.BinarySearchFunc(r, name, func(f Field, name string) int { return cmp.Compare(f.Name, name) })
	if !ok {
		return FieldValue{}, false
	}
	return r[i].Value, true
}

// Validate refuses what NewRecord refuses, and a record that is not sorted.
func (r Record) Validate() error {
	const op Op = "rhumb.Record"
	if len(r) > RecordFieldsMax {
		return Ef(op, TooLarge, "%d fields, at most %d are allowed", len(r), RecordFieldsMax)
	}
	for i, f := range r {
		switch {
		case f.Name == "":
			return Ef(op, InvalidArgument, "field %d has an empty name", i)
		case len(f.Name) > FieldNameSizeMax:
			return Ef(op, TooLarge, "field name %.20q… has %d bytes, at most %d are allowed", f.Name, len(f.Name), FieldNameSizeMax)
		case i > 0 && r[i-1].Name == f.Name:
			return Ef(op, InvalidArgument, "field %q stands twice", f.Name)
		case i > 0 && r[i-1].Name > f.Name:
			return Ef(op, InvalidArgument, "field %q is out of order", f.Name)
		}
		if err := f.Value.Validate(); err != nil {
			return Ef(op, KindOf(err), "field %q: %v", f.Name, err)
		}
	}
	return nil
}
