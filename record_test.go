package rhumb

import (
	"cmp"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPointValidate(t *testing.T) {
	for _, tc := range []struct {
		p  Point
		ok bool
	}{
		{Point{0, 0}, true},
		{Point{90, 180}, true},
		{Point{-90, -180}, true},
		{Point{90.0000001, 0}, false},
		{Point{0, -180.0000001}, false},
		{Point{math.NaN(), 0}, false},
		{Point{0, math.NaN()}, false},
		{Point{math.Inf(1), 0}, false},
	} {
		if err := tc.p.Validate(); (err == nil) != tc.ok {
			t.Errorf("%v: %v", tc.p, err)
		}
	}
}

func TestBoxValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    Box
		ok   bool
	}{
		{"plain", Box{Point{1, 2}, Point{3, 4}}, true},
		{"a point", Box{Point{1, 2}, Point{1, 2}}, true},
		{"over the antimeridian", Box{Point{1, 170}, Point{3, -170}}, true},
		{"upside down", Box{Point{3, 2}, Point{1, 4}}, false},
		{"bad corner", Box{Point{1, 2}, Point{91, 4}}, false},
	} {
		if err := tc.b.Validate(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestParseField(t *testing.T) {
	at := time.Date(2015, 2, 3, 4, 5, 6, 789e3, time.UTC)
	for _, tc := range []struct {
		kind FieldKind
		in   string
		want FieldValue
		ok   bool
	}{
		{FieldString, "", StringField(""), true},
		{FieldString, "LX 318", StringField("LX 318"), true},
		{FieldBytes, "0x00ff", BytesField([]byte{0, 255}), true},
		{FieldBytes, "plain", BytesField([]byte("plain")), true},
		{FieldBytes, "0x0", FieldValue{}, false},
		{FieldInt64, "-9223372036854775808", Int64Field(math.MinInt64), true},
		{FieldInt64, "9223372036854775808", FieldValue{}, false},
		{FieldInt64, "1.5", FieldValue{}, false},
		{FieldFloat64, "-1.5e3", Float64Field(-1500), true},
		{FieldFloat64, "fast", FieldValue{}, false},
		{FieldBool, "true", BoolField(true), true},
		{FieldBool, "0", BoolField(false), true},
		{FieldBool, "yes", FieldValue{}, false},
		{FieldTimestamp, "2015-02-03T04:05:06.000789Z", TimestampField(at), true},
		{FieldTimestamp, "1422936306.000789", TimestampField(at), true},
		{FieldTimestamp, "1422936306", TimestampField(at.Truncate(time.Second)), true},
		{FieldTimestamp, "1e300", FieldValue{}, false},
		{FieldTimestamp, "nan", FieldValue{}, false},
		{FieldTimestamp, "noon", FieldValue{}, false},
		{FieldPoint, "47.4,8.5", PointField(Point{47.4, 8.5}), true},
		{FieldPoint, "91,0", FieldValue{}, false},
		{FieldPoint, "0,181", FieldValue{}, false},
		{FieldPoint, "nan,0", FieldValue{}, false},
		{FieldPoint, "47.4", FieldValue{}, false},
		{FieldPoint, "1,2,3", FieldValue{}, false},
		{FieldPoint, "", FieldValue{}, false},
		{FieldBox, "1,2,3,4", BoxField(Box{Point{1, 2}, Point{3, 4}}), true},
		{FieldBox, "3,2,1,4", FieldValue{}, false},
		{FieldBox, "1,2", FieldValue{}, false},
		{FieldNull, "whatever", FieldValue{}, true},
		{fieldKindEnd, "1", FieldValue{}, false},
	} {
		got, err := ParseField(tc.kind, tc.in)
		if (err == nil) != tc.ok || tc.ok && !got.Equal(tc.want) {
			t.Errorf("%v %q: %v, %v; want %v, ok %v", tc.kind, tc.in, got, err, tc.want, tc.ok)
		}
		if err != nil && KindOf(err) != InvalidArgument {
			t.Errorf("%v %q: kind %v", tc.kind, tc.in, KindOf(err))
		}
	}
}

// What String writes, ParseField reads.
func TestParseFieldReadsString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawValue().Draw(t, "value")
		got, err := ParseField(v.Kind(), v.String())
		if err != nil || !got.Equal(v) && !(math.IsNaN(v.Float64()) && math.IsNaN(got.Float64())) {
			t.Fatalf("%v %q is read as %v, %v", v.Kind(), v, got, err)
		}
	})
}

func TestParseFieldKind(t *testing.T) {
	for k := FieldString; k < fieldKindEnd; k++ {
		if got, err := ParseFieldKind(k.String()); err != nil || got != k {
			t.Errorf("%v: %v, %v", k, got, err)
		}
	}
	for _, bad := range []string{"", "null", "int", "field_kind_9"} {
		if _, err := ParseFieldKind(bad); KindOf(err) != InvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Each accessor answers for its own kind and gives the zero value for all others.
func TestFieldAccessors(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	p, b := Point{1, 2}, Box{Point{1, 2}, Point{3, 4}}
	for _, tc := range []struct {
		v    FieldValue
		kind FieldKind
	}{
		{FieldValue{}, FieldNull},
		{StringField("x"), FieldString},
		{BytesField([]byte("x")), FieldBytes},
		{Int64Field(-5), FieldInt64},
		{Float64Field(2.5), FieldFloat64},
		{BoolField(true), FieldBool},
		{TimestampField(at), FieldTimestamp},
		{PointField(p), FieldPoint},
		{BoxField(b), FieldBox},
	} {
		v, k := tc.v, tc.kind
		gotPoint, isPoint := v.Point()
		gotBox, isBox := v.Box()
		switch {
		case v.Kind() != k,
			(v.Text() == "x") != (k == FieldString || k == FieldBytes),
			(v.Int64() == -5) != (k == FieldInt64), k != FieldInt64 && v.Int64() != 0,
			(v.Float64() == 2.5) != (k == FieldFloat64), k != FieldFloat64 && v.Float64() != 0,
			v.Bool() != (k == FieldBool),
			v.Time().Equal(at) != (k == FieldTimestamp), k != FieldTimestamp && !v.Time().IsZero(),
			isPoint != (k == FieldPoint), isPoint && gotPoint != p,
			isBox != (k == FieldBox), isBox && gotBox != b:
			t.Errorf("%v %v: wrong answer", k, v)
		}
	}
}

func TestFieldCompare(t *testing.T) {
	early, late := time.UnixMicro(-5), time.UnixMicro(5)
	for _, tc := range []struct {
		a, b FieldValue
		want int
	}{
		{FieldValue{}, StringField(""), -1},
		{StringField("a"), StringField("b"), -1},
		{StringField("b"), StringField("ab"), 1},
		{Int64Field(-1), Int64Field(1), -1},
		{Int64Field(2), Float64Field(2), 0},
		{Int64Field(2), Float64Field(2.5), -1},
		{Float64Field(-1), Int64Field(0), -1},
		{TimestampField(early), TimestampField(late), -1},
		{BoolField(false), BoolField(true), -1},
		{PointField(Point{1, 2}), PointField(Point{1, 3}), -1},
		{StringField("zzz"), Int64Field(0), -1},
	} {
		if got := tc.a.Compare(tc.b); got != tc.want {
			t.Errorf("%v compared with %v: %d, want %d", tc.a, tc.b, got, tc.want)
		}
		if got := tc.b.Compare(tc.a); got != -tc.want {
			t.Errorf("%v compared with %v: %d, want %d", tc.b, tc.a, got, -tc.want)
		}
	}
}

func TestNewRecord(t *testing.T) {
	one := Int64Field(1)
	long := strings.Repeat("n", FieldNameSizeMax)
	many := make([]Field, RecordFieldsMax+1)
	for i := range many {
		many[i] = Field{strings.Repeat("x", 1+i%200) + string(rune('a'+i/200)), one}
	}
	for _, tc := range []struct {
		name   string
		fields []Field
		want   Kind
	}{
		{"empty", nil, Other},
		{"sorted", []Field{{"a", one}, {"b", one}}, Other},
		{"unsorted", []Field{{"b", one}, {"a", one}}, Other},
		{"longest name", []Field{{long, one}}, Other},
		{"name too long", []Field{{long + "n", one}}, TooLarge},
		{"no name", []Field{{"", one}}, InvalidArgument},
		{"twice", []Field{{"a", one}, {"b", one}, {"a", one}}, InvalidArgument},
		{"bad point", []Field{{"at", PointField(Point{91, 0})}}, InvalidArgument},
		{"bad box", []Field{{"in", BoxField(Box{Point{2, 0}, Point{1, 0}})}}, InvalidArgument},
		{"unknown kind", []Field{{"a", FieldValue{kind: fieldKindEnd}}}, InvalidArgument},
		{"too many", many, TooLarge},
		{"as many as allowed", many[1:], Other},
	} {
		r, err := NewRecord(tc.fields...)
		if KindOf(err) != tc.want || (err == nil) != (tc.want == Other) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		for i := 1; i < len(r) && err == nil; i++ {
			if cmp.Compare(r[i-1].Name, r[i].Name) >= 0 {
				t.Errorf("%s: not sorted", tc.name)
			}
		}
	}
	if err := (Record{{"b", one}, {"a", one}}).Validate(); KindOf(err) != InvalidArgument {
		t.Errorf("an unsorted record is valid: %v", err)
	}
}

func TestRecordGet(t *testing.T) {
	r, err := NewRecord(Field{"b", Int64Field(2)}, Field{"a", Int64Field(1)})
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := r.Get("b"); !ok || v.Int64() != 2 {
		t.Errorf("b: %v %v", v, ok)
	}
	if v, ok := r.Get("c"); ok || v.Kind() != FieldNull {
		t.Errorf("c: %v %v", v, ok)
	}
}

// drawValue draws any value but null.
func drawValue() *rapid.Generator[FieldValue] {
	lat, lon := rapid.Float64Range(-90, 90), rapid.Float64Range(-180, 180)
	return rapid.OneOf(
		rapid.Map(rapid.String(), StringField),
		rapid.Map(rapid.SliceOf(rapid.Byte()), BytesField),
		rapid.Map(rapid.Int64(), Int64Field),
		rapid.Map(rapid.Float64(), Float64Field),
		rapid.Map(rapid.Bool(), BoolField),
		// years 1 to 9999, as RFC 3339 can write
		rapid.Map(rapid.Int64Range(-62135596800e6, 253402300799e6), func(us int64) FieldValue {
			return TimestampField(time.UnixMicro(us))
		}),
		rapid.Custom(func(t *rapid.T) FieldValue {
			return PointField(Point{lat.Draw(t, "lat"), lon.Draw(t, "lon")})
		}),
		rapid.Custom(func(t *rapid.T) FieldValue {
			a, b := lat.Draw(t, "lat"), lat.Draw(t, "lat")
			return BoxField(Box{Point{min(a, b), lon.Draw(t, "lon")}, Point{max(a, b), lon.Draw(t, "lon")}})
		}),
	)
}

// drawRecord draws a record of a few fields from a small alphabet of names, so that two of them share some.
func drawRecord(nulls bool) *rapid.Generator[Record] {
	name := rapid.StringMatching(`[a-e]{1,2}`)
	value := drawValue()
	if nulls {
		value = rapid.OneOf(value, rapid.Just(FieldValue{}))
	}
	field := rapid.Custom(func(t *rapid.T) Field { return Field{name.Draw(t, "name"), value.Draw(t, "value")} })
	return rapid.Custom(func(t *rapid.T) Record {
		fields := rapid.SliceOfNDistinct(field, 0, 8, func(f Field) string { return f.Name }).Draw(t, "fields")
		r, err := NewRecord(fields...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	})
}

func TestFieldJSON(t *testing.T) {
	for _, tc := range []struct {
		v    FieldValue
		want any
	}{
		{FieldValue{}, nil},
		{StringField("x"), "x"},
		{BytesField([]byte{1}), "0x01"},
		{Int64Field(-5), int64(-5)},
		{Float64Field(2.5), 2.5},
		{Float64Field(math.Inf(1)), "+Inf"},
		{BoolField(true), true},
		{PointField(Point{1, 2}), Point{1, 2}.String()},
	} {
		if got := tc.v.JSON(); got != tc.want {
			t.Errorf("%v: %#v, want %#v", tc.v, got, tc.want)
		}
	}
}
