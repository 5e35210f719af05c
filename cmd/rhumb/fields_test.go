package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/output"
)

// TestAssignments guards how FIELD=VALUE is parsed.
func TestAssignments(t *testing.T) {
	for arg, want := range map[string]string{
		"a=text":                               "string text",
		"a=":                                   "string ",
		"a=x=y":                                "string x=y",
		"a=12":                                 "int64 12",
		"a=-1.5e3":                             "float64 -1500",
		"a=007":                                "string 007",
		"a=NaN":                                "string NaN",
		"a=true":                               "bool true",
		"a=null":                               "string null",
		"a=9223372036854775807":                "int64 9223372036854775807",
		"a=-9223372036854775808":               "int64 -9223372036854775808",
		"a=9223372036854775808":                "error",
		"a=-9223372036854775809":               "error",
		"a:float64=9223372036854775808":        "float64 9.223372036854776e+18",
		"a:string=18446744073709551615":        "string 18446744073709551615",
		"a=9223372036854775808.0":              "float64 9.223372036854776e+18",
		"a=1e308":                              "float64 1e+308",
		"a=1e400":                              "error",
		"a=-1e400":                             "error",
		"a=1e-400":                             "error",
		"a=0e-400":                             "float64 0",
		"a=1e400x":                             "string 1e400x",
		"a= 1e400":                             "string  1e400",
		`a="1e400"`:                            `string "1e400"`,
		"a=[1e400]":                            "string [1e400]",
		"a:null=":                              "null null",
		"a:string=12":                          "string 12",
		"a:float64=12":                         "float64 12",
		"a:timestamp=1700000000":               "timestamp 2023-11-14T22:13:20Z",
		"a:bytes=0x00ff":                       "bytes 0x00ff",
		"location=47.4,8.5":                    "point 47.4,8.5",
		"location=47,8,48,9":                   "box 47,8,48,9",
		"location:string=here":                 "string here",
		"location=91,0":                        "error",
		"location=NaN,0":                       "error",
		"location=here":                        "error",
		"a:int=3":                              "error",
		"a:int64=x":                            "error",
		"novalue":                              "error",
		"=x":                                   "error",
		strings.Repeat("f", 256) + "=too long": "error",
	} {
		record, err := parseAssignments([]string{arg}, "location")
		got := "error"
		if err == nil {
			got = record[0].Value.Kind().String() + " " + record[0].Value.String()
		} else if k := rhumb.KindOf(err); k != rhumb.InvalidArgument && k != rhumb.TooLarge {
			t.Errorf("%.40s: %v", arg, err)
		}
		if got != want {
			t.Errorf("%.40s: %s, want %s (%v)", arg, got, want, err)
		}
	}
	if _, err := parseAssignments([]string{"\xff=1"}, "location"); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("a name that JSON cannot hold: %v", err)
	}
	if _, err := parseAssignments([]string{"a=1", "a=2"}, "location"); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("a field twice: %v", err)
	}
}

// TestFieldsJSON guards that fields printed by -o json parse back to the same values and types.
func TestFieldsJSON(t *testing.T) {
	record, err := rhumb.NewRecord(
		rhumb.Field{Name: "b", Value: rhumb.BoolField(true)},
		rhumb.Field{Name: "bytes", Value: rhumb.BytesField([]byte{0, 0xff, 0x1b})},
		rhumb.Field{Name: "bytes:empty", Value: rhumb.BytesField(nil)},
		rhumb.Field{Name: "bytes like text", Value: rhumb.StringField("0x00ff")},
		rhumb.Field{Name: "colon:", Value: rhumb.StringField("s")},
		rhumb.Field{Name: "colon:point", Value: rhumb.PointField(rhumb.Point{Lat: 1, Lon: 2})},
		rhumb.Field{Name: "colon:int64", Value: rhumb.StringField("12")},
		rhumb.Field{Name: "colon:x", Value: rhumb.Int64Field(5)},
		rhumb.Field{Name: "colon:y", Value: rhumb.BoolField(false)},
		rhumb.Field{Name: "false", Value: rhumb.StringField("false")},
		rhumb.Field{Name: "f whole", Value: rhumb.Float64Field(38000)},
		rhumb.Field{Name: "f zero", Value: rhumb.Float64Field(math.Copysign(0, -1))},
		rhumb.Field{Name: "f large", Value: rhumb.Float64Field(1e21)},
		rhumb.Field{Name: "f largest", Value: rhumb.Float64Field(math.MaxFloat64)},
		rhumb.Field{Name: "f least", Value: rhumb.Float64Field(math.SmallestNonzeroFloat64)},
		rhumb.Field{Name: "f nan", Value: rhumb.Float64Field(math.NaN())},
		rhumb.Field{Name: "f inf", Value: rhumb.Float64Field(math.Inf(-1))},
		rhumb.Field{Name: "i least", Value: rhumb.Int64Field(math.MinInt64)},
		rhumb.Field{Name: "n like text", Value: rhumb.StringField("12")},
		rhumb.Field{Name: "no utf8", Value: rhumb.StringField("\xff\x1b")},
		rhumb.Field{Name: "null", Value: rhumb.StringField("null")},
		rhumb.Field{Name: "t", Value: rhumb.TimestampField(time.UnixMicro(1_700_000_000_123_456))},
		rhumb.Field{Name: "t before", Value: rhumb.TimestampField(time.UnixMicro(-1))},
		rhumb.Field{Name: "t like text", Value: rhumb.StringField("2026-01-02T15:04:05Z")},
		rhumb.Field{Name: "f", Value: rhumb.Float64Field(1.5)},
		rhumb.Field{Name: "i", Value: rhumb.Int64Field(math.MaxInt64)},
		rhumb.Field{Name: "p", Value: rhumb.PointField(rhumb.Point{Lat: -90, Lon: 180})},
		rhumb.Field{Name: "q", Value: rhumb.BoxField(rhumb.Box{Min: rhumb.Point{Lat: 1, Lon: 179}, Max: rhumb.Point{Lat: 2, Lon: -179}})},
		rhumb.Field{Name: "s", Value: rhumb.StringField("ä \"<&>\" \x01")},
	)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := output.DescribeValue(rhumb.EncodeRecord(nil, record))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(doc.Fields)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
	again, err := parseFieldsJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range record {
		if !again[i].Value.Equal(f.Value) || again[i].Name != f.Name {
			t.Errorf("%s: %s came back as %s", f.Name, f.Value, again[i].Value)
		}
	}
	for _, bad := range []string{`{"a":[1]}`, `{"a":{"lat":1}}`, `{"a":{"lat":91,"lon":0}}`, `{"a:int64":"x"}`, `{"a:box":{"lat":1,"lon":2}}`, `{"a:string":{"bytes":"0xz"}}`, `{"a":{"bytes":"0x00"}}`, `{"a":{"lat":1,"lon":2,"alt":3}}`, `[]`, `{} {}`, `{"":1}`, ``} {
		if record, err := parseFieldsJSON([]byte(bad)); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%s: %v, %v; want invalid_argument", bad, record, err)
		}
	}
}

// TestNumbersKeepTheirDigits guards that a number without a type is refused if no type of numbers
// holds it, and that the error shows how to write it with one; and that a name appears once.
func TestNumbersKeepTheirDigits(t *testing.T) {
	long := strings.Repeat("1", 1_000)
	for _, tc := range []struct{ text, want string }{
		{`c=18446744073709551615`, `write c:float64=18446744073709551615 to round it, or c:string=18446744073709551615 to keep its digits`},
		{`a=1e400`, `write a:string=1e400 to keep it as text`},
		{`a=1e-400`, `write a:float64=1e-400 to store 0, or a:string=1e-400`},
		{`a=` + long, `1111… is larger than any float64`},
		{`{"a":9223372036854775808}`, `write "a:float64":9223372036854775808 to round it, or "a:string":9223372036854775808`},
		{`{"a":-9223372036854775809}`, `write "a:float64":-9223372036854775809 to round it`},
		{`{"a":1e400}`, `write "a:string":1e400 to keep it as text`},
		{`{"a":1,"b":[{}],"a":2}`, `"a" appears twice`},
		{`{"a":1,"\u0061":2}`, `"a" appears twice`},
		{`{"a":1,"a:string":2}`, `"a" appears twice`},
		{`{"p":{"lat":1,"lon":2,"lat":3}}`, `"lat" appears twice`},
		{``, `write {} for a record without fields`},
	} {
		parse := func() (rhumb.Record, error) { return parseAssignments([]string{tc.text}, "") }
		if !strings.Contains(tc.text, "=") {
			parse = func() (rhumb.Record, error) { return parseFieldsJSON([]byte(tc.text)) }
		}
		record, err := parse()
		if rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 300 {
			t.Errorf("%.60s: %v, %.400v; want %s", tc.text, record, err, tc.want)
		}
	}
	// What the errors propose is accepted, and so are equal names in different objects and lists.
	for text, want := range map[string]string{
		`{"a:float64":9223372036854775808}`:                       "float64",
		`{"a:string":9223372036854775808}`:                        "string",
		`{"a:string":1e400}`:                                      "string",
		`{"a":{"min":{"lat":1,"lon":2},"max":{"lat":2,"lon":3}}}`: "box",
	} {
		if record, err := parseFieldsJSON([]byte(text)); err != nil || record[0].Value.Kind().String() != want {
			t.Errorf("%s: %v, %v; want a %s", text, record, err, want)
		}
	}
	if _, err := parseBatch([]byte(`{"op":"put","table":"t","name":"a","name":"b","text":"x"}`)); err == nil || !strings.Contains(err.Error(), `"name" appears twice`) {
		t.Errorf("a line with two names: %v", err)
	}
}

// TestValueFlags guards that a value is given in exactly one way, of which an empty text is one, and
// that a directory is an invalid argument.
func TestValueFlags(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		line, want string // an error, or "" for a value of no bytes without fields
	}{
		{"--text=", ""},
		{"--file=" + empty, ""},
		{"--file=" + dir, "is a directory; name a file"},
		{"--json=", "write {} for a record without fields"},
		{"", "exactly one way"},
		{"--text= a=1", "exactly one way"},
		{"--text= --json={}", "exactly one way"},
		{"--text=x --file=", "exactly one way"},
	} {
		var f valueFlags
		c := &cobra.Command{}
		f.register(c, true)
		if err := c.ParseFlags(strings.Fields(tc.line)); err != nil {
			t.Fatal(err)
		}
		value, err := f.encode(inputs{}, c.Flags().Args(), "")
		switch {
		case tc.want == "" && (err != nil || !bytes.Equal(value, rhumb.EncodeOpaque(nil, nil))):
			t.Errorf("%s: %q, %v; want an empty value", tc.line, value, err)
		case tc.want != "" && (rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %q, %v; want invalid_argument: %s", tc.line, value, err, tc.want)
		}
	}
}

// TestFieldsJSONCannotFail guards that a record with any numbers can be printed, although JSON has
// no NaN.
func TestFieldsJSONCannotFail(t *testing.T) {
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		doc, err := output.DescribeValue(rhumb.EncodeRecord(nil, rhumb.Record{{Name: "f", Value: rhumb.Float64Field(f)}}))
		if _, jsonErr := json.Marshal(doc); err != nil || jsonErr != nil {
			t.Error(err, jsonErr)
		}
	}
	if _, err := output.DescribeValue([]byte{0x77}); rhumb.KindOf(err) == rhumb.Other {
		t.Errorf("an unknown codec: %v", err)
	}
}

// FuzzFields guards that no text makes the parsers panic, and that every result is a
// valid record.
func FuzzFields(f *testing.F) {
	f.Add(`a:int64=3`, `{"a":{"lat":1,"lon":2},"b:bytes":"0x00"}`)
	f.Fuzz(func(t *testing.T, assignment, text string) {
		if record, err := parseAssignments([]string{assignment}, "location"); err == nil && record.Validate() != nil {
			t.Errorf("%q: %v", assignment, record.Validate())
		}
		if record, err := parseFieldsJSON([]byte(text)); err == nil && record.Validate() != nil {
			t.Errorf("%q: %v", text, record.Validate())
		}
	})
}

// TestBatchLine guards the meaning of a line of a batch, and that incomplete lines are rejected.
func TestBatchLine(t *testing.T) {
	for line, want := range map[string]string{
		`{"op":"put","table":"t","name":"n","fields":{"a":1}}`:                                         "put always",
		`{"op":"put","table":"t","name":"n","text":"","if":"absent"}`:                                  "put if-absent",
		`{"op":"put","table":"t","name":"n","bytes":"0xff","if":"present"}`:                            "put if-present",
		`{"op":"patch","table":"t","name":"n","fields":{"a":null,"n":2},"if":"newer","by":["n"]}`:      "patch if-newer",
		`{"op":"delete","table":"t","name":"0x00","if":"version","version":"115964116992000001@3"}`:    "delete if-version",
		`{"op":"insert","table":"t","fields":{}}`:                                                      "insert always",
		`{"op":"upsert","table":"t","name":"n","fields":{}}`:                                           "error",
		`{"op":"put","table":"t","name":"n"}`:                                                          "error",
		`{"op":"put","table":"t","name":"n","fields":{},"text":"x"}`:                                   "error",
		`{"op":"put","table":"t","name":"","text":"x"}`:                                                "error",
		`{"op":"insert","table":"t","name":"n","text":"x"}`:                                            "error",
		`{"op":"delete","table":"t","name":"n","if":"version"}`:                                        "error",
		`{"op":"patch","table":"t","name":"n","fields":{},"if":"newer"}`:                               "error",
		`{"op":"put","table":"t","name":"n","text":"x","version":"115964116992000001@3"}`:              "error",
		`{"op":"put","table":"t","name":"n","text":"x","if":"maybe"}`:                                  "error",
		`{"op":"put","table":"t","name":"0xz","text":"x"}`:                                             "error",
		`{"op":"put","table":"t","name":"` + strings.Repeat("n", rhumb.NameSizeMax+1) + `","text":""}`: "error",
	} {
		lines, err := parseBatch([]byte(line))
		got := "error"
		if err == nil {
			m, merr := lines[0].mutation(1)
			if err = merr; err == nil {
				got = m.Kind.String() + " " + m.Cond.Kind.String()
			}
		}
		if got != want {
			t.Errorf("%.90s: %s, want %s (%v)", line, got, want, err)
		}
	}
}
