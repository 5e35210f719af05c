package rhumb

import (
	"bytes"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The bytes of a stored value are a disk and wire format: these may never change under header 0x21.
func TestRecordGolden(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fields []Field
		want   string
	}{
		{"empty", nil, "21 00"},
		{"string", []Field{{"s", StringField("hé")}}, "21 01  01 73 01 03 68c3a9"},
		{"bytes", []Field{{"b", BytesField([]byte{0, 255})}}, "21 01  01 62 02 02 00ff"},
		{"int64", []Field{{"i", Int64Field(-2)}}, "21 01  01 69 03 fffffffffffffffe"},
		{"float64", []Field{{"f", Float64Field(1.5)}}, "21 01  01 66 04 3ff8000000000000"},
		{"bool", []Field{{"t", BoolField(true)}}, "21 01  01 74 05 01"},
		{"timestamp", []Field{{"at", TimestampField(time.UnixMicro(256))}}, "21 01  02 6174 06 0000000000000100"},
		{"point", []Field{{"p", PointField(Point{1, -2})}}, "21 01  01 70 07 3ff0000000000000 c000000000000000"},
		{
			"box",
			[]Field{{"x", BoxField(Box{Point{1, -2}, Point{2, 1}})}},
			"21 01  01 78 08 3ff0000000000000 c000000000000000 4000000000000000 3ff0000000000000",
		},
		{"null", []Field{{"n", FieldValue{}}}, "21 01  01 6e 00"},
		{"two, sorted", []Field{{"b", BoolField(false)}, {"a", StringField("")}}, "21 02  01 61 01 00  01 62 05 00"},
	} {
		r, err := NewRecord(tc.fields...)
		if err != nil {
			t.Fatal(err)
		}
		want := unhex(t, tc.want)
		if got := EncodeRecord(nil, r); !bytes.Equal(got, want) {
			t.Errorf("%s: encoded as %x, want %x", tc.name, got, want)
		}
		if got, err := DecodeRecord(want); err != nil || !equalRecords(got, r) {
			t.Errorf("%s: decoded as %v, %v", tc.name, got, err)
		}
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func equalRecords(a, b Record) bool {
	return slices.EqualFunc(a, b, func(a, b Field) bool { return a.Name == b.Name && a.Value.Equal(b.Value) })
}

func TestDecodeRecordRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     Kind
	}{
		{"nothing", "", InvalidArgument},
		{"opaque bytes", "11 00", InvalidArgument},
		{"tombstone", "31", InvalidArgument},
		{"newer codec", "22 00", InvalidArgument},
		{"no count", "21", Corrupt},
		{"count too large", "21 8120", Corrupt},
		{"fields missing", "21 01", Corrupt},
		{"bytes after the end", "21 00 00", Corrupt},
		{"empty name", "21 01 00 05 01", Corrupt},
		{"name cut short", "21 01 05 61", Corrupt},
		{"no type", "21 01 01 61", Corrupt},
		{"unknown type", "21 01 01 61 09", Corrupt},
		{"value cut short", "21 01 01 61 03 00", Corrupt},
		{"string cut short", "21 01 01 61 01 05 61", Corrupt},
		{"endless length", "21 01 01 61 01 ffffffffffffffffffff01", Corrupt},
		{"bool of 2", "21 01 01 61 05 02", Corrupt},
		{"names out of order", "21 02 01 62 05 00 01 61 05 00", Corrupt},
		{"name twice", "21 02 01 61 05 00 01 61 05 00", Corrupt},
		{"point off the earth", "21 01 01 61 07 4059000000000000 0000000000000000", Corrupt},
		{"point of NaN", "21 01 01 61 07 7ff8000000000000 0000000000000000", Corrupt},
	} {
		if r, err := DecodeRecord(unhex(t, tc.in)); err == nil || KindOf(err) != tc.want {
			t.Errorf("%s: %v, %v; want %v", tc.name, r, err, tc.want)
		} else if tc.want == Corrupt && !strings.Contains(err.Error(), "offset") && !strings.Contains(err.Error(), "field") {
			t.Errorf("%s: the error does not say where: %v", tc.name, err)
		}
	}
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(true).Draw(t, "record")
		b := EncodeRecord([]byte("kept"), r)
		if !bytes.HasPrefix(b, []byte("kept")) {
			t.Fatal("EncodeRecord overwrote what was in dst")
		}
		got, err := DecodeRecord(b[4:])
		if err != nil || !equalRecords(got, r) {
			t.Fatalf("%v is read as %v, %v", r, got, err)
		}
		for _, name := range []string{"a", "bb", "e", "zz"} {
			want, wantOK := r.Get(name)
			v, ok, err := RecordField(b[4:], name)
			if err != nil || ok != wantOK || !v.Equal(want) {
				t.Fatalf("field %s is %v %v %v, want %v %v", name, v, ok, err, want, wantOK)
			}
		}
	})
}

// mergeNaively is what MergeRecord must agree with: decode both, put the patch over the base in a map, encode.
func mergeNaively(base, patch Record) []byte {
	fields := map[string]FieldValue{}
	for _, f := range base {
		fields[f.Name] = f.Value
	}
	for _, f := range patch {
		fields[f.Name] = f.Value
		if f.Value.Kind() == FieldNull {
			delete(fields, f.Name)
		}
	}
	var all []Field
	for name, v := range fields {
		all = append(all, Field{name, v})
	}
	r, _ := NewRecord(all...)
	return EncodeRecord(nil, r)
}

func TestMergeRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, patch := drawRecord(false).Draw(t, "base"), drawRecord(true).Draw(t, "patch")
		eb, ep := EncodeRecord(nil, base), EncodeRecord(nil, patch)
		got, err := MergeRecord([]byte("kept"), eb, ep)
		if want := mergeNaively(base, patch); err != nil || string(got) != "kept"+string(want) {
			t.Fatalf("%v under %v: %x, %v; want %x", base, patch, got, err, want)
		}
		if !bytes.Equal(eb, EncodeRecord(nil, base)) || !bytes.Equal(ep, EncodeRecord(nil, patch)) {
			t.Fatal("MergeRecord changed its arguments")
		}
		// A patch applied twice changes nothing more.
		again, err := MergeRecord(nil, got[4:], ep)
		if err != nil || !bytes.Equal(again, got[4:]) {
			t.Fatalf("the second time: %x, %v; want %x", again, err, got[4:])
		}
	})
}

func TestMergeRecordBases(t *testing.T) {
	patch := EncodeRecord(nil, Record{{"a", FieldValue{}}, {"b", Int64Field(1)}})
	want := EncodeRecord(nil, Record{{"b", Int64Field(1)}})
	for _, base := range [][]byte{nil, {}, Tombstone, EncodeRecord(nil, nil)} {
		if got, err := MergeRecord(nil, base, patch); err != nil || !bytes.Equal(got, want) {
			t.Errorf("base %x: %x, %v; want %x", base, got, err, want)
		}
	}
	opaque := EncodeOpaque(nil, []byte("x"))
	if _, err := MergeRecord(nil, opaque, patch); KindOf(err) != InvalidArgument {
		t.Errorf("opaque base: %v", err)
	}
	if _, err := MergeRecord(nil, nil, opaque); KindOf(err) != InvalidArgument {
		t.Errorf("opaque patch: %v", err)
	}
	for n := 1; n < len(patch); n++ {
		if _, err := MergeRecord(nil, patch[:n], patch); KindOf(err) != Corrupt {
			t.Errorf("base cut to %d bytes: %v", n, err)
		}
		if _, err := MergeRecord(nil, want, patch[:n]); KindOf(err) != Corrupt {
			t.Errorf("patch cut to %d bytes: %v", n, err)
		}
	}
}

func TestMergeRecordBoundsFields(t *testing.T) {
	var base, patch Record
	for i := range RecordFieldsMax {
		name := string([]byte{'a' + byte(i>>12&15), 'a' + byte(i>>8&15), 'a' + byte(i>>4&15), 'a' + byte(i&15)})
		base = append(base, Field{name, BoolField(true)})
	}
	patch = Record{{"zzzz", BoolField(true)}}
	eb := EncodeRecord(nil, base)
	if _, err := MergeRecord(nil, eb, EncodeRecord(nil, patch)); KindOf(err) != TooLarge {
		t.Errorf("one field too many: %v", err)
	}
	patch = append(Record{{base[0].Name, FieldValue{}}}, patch...)
	if _, err := MergeRecord(nil, eb, EncodeRecord(nil, patch)); err != nil {
		t.Errorf("one added and one removed: %v", err)
	}
}

func TestOpaqueAndTombstone(t *testing.T) {
	for _, payload := range [][]byte{nil, {0x31}, []byte("any bytes")} {
		v := EncodeOpaque(nil, payload)
		if got, ok := DecodeOpaque(v); !ok || !bytes.Equal(got, payload) || IsTombstone(v) || IsRecord(v) {
			t.Errorf("opaque %x: stored as %x, read as %x %v", payload, v, got, ok)
		}
	}
	if _, ok := DecodeOpaque(Tombstone); ok || !IsTombstone(Tombstone) || IsRecord(Tombstone) {
		t.Error("the tombstone counts as a value")
	}
	if _, ok := DecodeOpaque(nil); ok || IsTombstone(nil) || IsRecord(nil) {
		t.Error("nothing counts as a value")
	}
}

func seedRecords(add func([]byte)) {
	add(nil)
	add(EncodeRecord(nil, nil))
	add(EncodeRecord(nil, Record{
		{"a", StringField("text")},
		{"b", BytesField([]byte{1})},
		{"c", Int64Field(-1)},
		{"d", Float64Field(math.Pi)},
		{"e", BoolField(true)},
		{"f", TimestampField(time.UnixMicro(1))},
		{"g", PointField(Point{1, 2})},
		{"h", BoxField(Box{Point{1, 2}, Point{3, 4}})},
		{"i", FieldValue{}},
	}))
}

func FuzzDecodeRecord(f *testing.F) {
	seedRecords(func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecord(b)
		if err != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatalf("a decoded record is invalid: %v", err)
		}
		again, err := DecodeRecord(EncodeRecord(nil, r))
		if err != nil || !equalRecords(again, r) {
			t.Fatalf("%v is read back as %v, %v", r, again, err)
		}
	})
}

func FuzzMergeRecord(f *testing.F) {
	var seeds [][]byte
	seedRecords(func(b []byte) { seeds = append(seeds, b) })
	for _, a := range seeds {
		for _, b := range seeds {
			f.Add(a, b)
		}
	}
	f.Fuzz(func(t *testing.T, base, patch []byte) {
		got, err := MergeRecord(nil, base, patch)
		b, berr := DecodeRecord(base)
		p, perr := DecodeRecord(patch)
		if berr != nil || perr != nil {
			return // MergeRecord may accept what it does not look at
		}
		if err != nil {
			if KindOf(err) == TooLarge {
				return
			}
			t.Fatalf("two valid records do not merge: %v", err)
		}
		r, err := DecodeRecord(got)
		if err != nil || !bytes.Equal(EncodeRecord(nil, r), mergeNaively(b, p)) {
			t.Fatalf("%v under %v: %v, %v", b, p, r, err)
		}
	})
}

func BenchmarkMergeRecord(b *testing.B) {
	var base Record
	for i := range 20 {
		base = append(base, Field{string([]byte{'a' + byte(i), 'x'}), StringField("some value")})
	}
	eb := EncodeRecord(nil, base)
	ep := EncodeRecord(nil, Record{{"cx", Int64Field(1)}, {"lat", Float64Field(2)}})
	var buf []byte
	for b.Loop() {
		buf, _ = MergeRecord(buf[:0], eb, ep)
	}
}
