package output

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rhumbdb/rhumb"
)

// asYAML prints documents as YAML and returns the text.
func asYAML(t testing.TB, docs ...any) string {
	t.Helper()
	var b bytes.Buffer
	p := &Printer{Out: &b, Format: YAML}
	for _, d := range docs {
		if err := p.PrintDocument(d); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestYAML guards the text of documents: the order of keys, quotes where a reader could take text
// for something else, numbers with all their digits, and separators between documents.
func TestYAML(t *testing.T) {
	doc := json.RawMessage(`{"b":1,"a":"x y","yes":"no","n":null,"list":[],"map":{},"big":18446744073709551615,"f":38000.0,"e":1e21,
		"time":"2026-01-02T15:04:05Z","addr":"127.0.0.1:7600","esc":"\u001b[31m\u202e","lines":"a\nb","nested":[{"x":-1.5e-7,"t":true}],"empty":"","dot":"1.2.3"}`)
	want := `b: 1
a: x y
"yes": "no"
"n": null
list: []
map: {}
big: 18446744073709551615
f: 38000.0
e: 1.0e+21
time: "2026-01-02T15:04:05Z"
addr: "127.0.0.1:7600"
esc: "\e[31m\u202e"
lines: "a\nb"
nested:
  - x: -1.5e-7
    t: true
empty: ""
dot: "1.2.3"
---
a: b
`
	if got := asYAML(t, doc, map[string]string{"a": "b"}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestLines guards that a list is one line for each element as jsonl and one line as json, and that
// lines of JSON become documents of YAML.
func TestLines(t *testing.T) {
	for format, want := range map[string]string{JSONL: "1\n2\n", JSON: "[1,2]\n", Table: "[1,2]\n", YAML: "- 1\n- 2\n"} {
		var b bytes.Buffer
		p := &Printer{Out: &b, Format: format}
		if err := p.PrintDocument([]int{1, 2}); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v", format, b.String(), err)
		}
	}
	for format, want := range map[string]string{JSONL: "{\"a\":1}\n{\"a\":2}\n", YAML: "a: 1\n---\na: 2\n"} {
		var b bytes.Buffer
		w := (&Printer{Out: &b, Format: format}).Lines()
		for _, part := range []string{`{"a":`, "1}\n{", `"a":2}`, "\n"} {
			if _, err := io.WriteString(w, part); err != nil {
				t.Fatal(err)
			}
		}
		if b.String() != want {
			t.Errorf("%s: %q", format, b.String())
		}
	}
}

// TestErrors guards that an error is a document in the form that was asked for, also if only the
// command line names the form.
func TestErrors(t *testing.T) {
	failure := rhumb.E("test", rhumb.NotFound, "there is no table x: a\x1b")
	for _, format := range []string{JSON, JSONL, YAML} {
		for _, p := range []*Printer{{Format: format}, {Format: Table}} {
			var b bytes.Buffer
			p.Err = &b
			asked := ""
			if p.Format == Table {
				asked = format
			}
			p.PrintError(failure, asked)
			var doc struct {
				Error struct{ Kind, Message string }
			}
			if err := yaml.Unmarshal(b.Bytes(), &doc); err != nil || doc.Error.Kind != "not_found" || !strings.HasSuffix(doc.Error.Message, "a\x1b") {
				t.Errorf("%s: %q, %v", format, b.String(), err)
			}
			if strings.Contains(b.String(), "\x1b") {
				t.Errorf("%s: an escape is raw in %q", format, b.String())
			}
		}
	}
}

// FuzzYAML guards that the YAML of any document means the same as its JSON, and that nothing in it
// controls a terminal.
func FuzzYAML(f *testing.F) {
	f.Add([]byte(`{"a":[1,"x",{"b":null}],"yes":"on"}`))
	f.Add([]byte(`"\u2028 \u0085 \ufeff : # & * ! | > % @"`))
	f.Add([]byte(`["<<","=","~","0x1f","0o7","1_000","12:30","2026-01-02","- a","? b",".inf","!!str"]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var want any
		if json.Unmarshal(text, &want) != nil {
			return
		}
		again, err := json.Marshal(want) // one value, UTF-8, no key twice
		if err != nil {
			return
		}
		out := asYAML(t, json.RawMessage(again))
		var got any
		if err := yaml.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if got = floats(got); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is %#v, want %#v", out, got, want)
		}
		if i := strings.IndexFunc(out, hiddenInJSON); i >= 0 {
			t.Fatalf("%q holds %q", out, out[i:])
		}
	})
}

// floats turns the numbers of a decoded document into float64, as encoding/json decodes them.
func floats(v any) any {
	switch v := v.(type) {
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case []any:
		for i := range v {
			v[i] = floats(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = floats(v[k])
		}
	}
	return v
}
