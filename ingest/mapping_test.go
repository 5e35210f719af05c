package ingest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/rhumbdb/rhumb"
)

// TestMap is a transcript of lines and their rows. The command is a format and a mapping: the name
// of a built-in one, or the one that "mapping" read last.
func TestMap(t *testing.T) {
	var own *Mapping
	datadriven.Walk(t, "testdata/map", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "mapping" {
				var err error
				if own, err = ParseMapping([]byte(d.Input)); err != nil {
					return "error: " + err.Error() + "\n"
				}
				return "ok\n"
			}
			m := own
			if len(d.CmdArgs) > 0 {
				m = builtinMapping(t, d.CmdArgs[0].Key)
			}
			return mapLines(t, Format(d.Cmd), m, d.Input)
		})
	})
}

func mapLines(t *testing.T, f Format, m *Mapping, input string) string {
	t.Helper()
	mapper, err := m.Bind(builtinTables(m))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := openLines(t.Context(), strings.NewReader(input))
	if err != nil {
		t.Fatal(err)
	}
	r := &Run{mapper: mapper}
	dec := newDecoder(f, m)
	var out strings.Builder
	for {
		line, number, tooLong, err := lines.next()
		if err != nil {
			return out.String()
		}
		_, ev, skip, err := r.makeEvent(dec, nil, line, number, tooLong)
		switch {
		case err != nil:
			fmt.Fprintf(&out, "line %d: %s: %s\n", number, rhumb.KindOf(err), messageOf(err))
		case skip:
			fmt.Fprintf(&out, "line %d: no event\n", number)
		default:
			writeEvent(&out, m, ev)
		}
	}
}

func writeEvent(out *strings.Builder, m *Mapping, ev Event) {
	fmt.Fprintf(out, "line %d:\n", ev.Line)
	for _, mut := range ev.Mutations {
		fmt.Fprintf(out, "  %s %s %s", mut.Kind, m.Rows[mut.Table-1].Table, rhumb.NameString(mut.Name))
		if mut.Cond.Kind != rhumb.Always {
			fmt.Fprintf(out, " %s(%s)", mut.Cond.Kind, strings.Join(mut.Cond.Fields, ","))
		}
		out.WriteByte('\n')
		record, err := rhumb.DecodeRecord(mut.Value)
		if err != nil {
			fmt.Fprintf(out, "    damaged: %v\n", err)
		}
		for _, f := range record {
			fmt.Fprintf(out, "    %s %s %s\n", f.Name, f.Value.Kind(), f.Value)
		}
	}
}

// TestBuiltinMappings guards that every built-in mapping is valid and can be bound.
func TestBuiltinMappings(t *testing.T) {
	for _, name := range BuiltinMappings() {
		m := builtinMapping(t, name)
		if m.Tables()[0] != name {
			t.Errorf("mapping %s writes table %s first; it is found by that name", name, m.Tables()[0])
		}
		if _, err := m.Bind(builtinTables(m)); err != nil {
			t.Errorf("mapping %s: %v", name, err)
		}
	}
}

// TestBindRefuses guards that rows that cannot share a batch are rejected before anything is read.
func TestBindRefuses(t *testing.T) {
	m := builtinMapping(t, "flights")
	for name, change := range map[string]func(tables []rhumb.Table){
		"another class":          func(tables []rhumb.Table) { tables[1].Class = 2 },
		"another colocate byte":  func(tables []rhumb.Table) { tables[2].Colocate = ':' },
		"no colocate byte":       func(tables []rhumb.Table) { tables[0].Colocate, tables[1].Colocate, tables[2].Colocate = 0, 0, 0 },
		"another location field": func(tables []rhumb.Table) { tables[0].LocationField = "where" },
	} {
		tables := builtinTables(m)
		change(tables)
		if _, err := m.Bind(tables); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%s: got %v, want invalid_argument", name, err)
		}
	}
}

// FuzzParseMapping guards that no mapping file makes the parser panic, and that accepted mappings
// can be bound.
func FuzzParseMapping(f *testing.F) {
	for _, name := range BuiltinMappings() {
		text, _ := BuiltinMapping(name)
		f.Add(text, []byte("id x lat 1 lon 2 _c 1 _s 2"))
	}
	f.Fuzz(func(t *testing.T, text, line []byte) {
		m, err := ParseMapping(text)
		if err != nil {
			return
		}
		mapper, err := m.Bind(builtinTables(m))
		if err != nil {
			if rhumb.KindOf(err) != rhumb.InvalidArgument {
				t.Fatal(err)
			}
			return
		}
		checkEvent(t, mapper, &listDecoder{}, line)
	})
}

// FuzzDecode guards that every line becomes a valid batch, or an error of the kinds for lines.
func FuzzDecode(f *testing.F) {
	f.Add("controlstream", []byte("_c 1 _s 2 id a lat 1.5 lon 2.5 otherPedigrees {aireon wide}"))
	f.Add("ndjson", []byte(`{"_c":1,"_s":2,"id":"a","lat":1.5,"lon":null,"x":{"y":[1]},"z":1e99,"b":true}`))
	f.Add("csv", []byte("a,\"b \"\"c\"\"\",,x\n1,2,3,4"))
	f.Add("tsv", []byte("id\t_c\t_s\nx\t1\t2"))
	mapper, err := builtinMapping(f, "flights").Bind(builtinTables(builtinMapping(f, "flights")))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, format string, input []byte) {
		if _, err := ParseFormat(format); err != nil {
			return
		}
		dec := newDecoder(Format(format), &Mapping{})
		for line := range strings.Lines(string(input)) {
			checkEvent(t, mapper, dec, []byte(strings.TrimSuffix(line, "\n")))
		}
	})
}

var fuzzLine int64

func checkEvent(t *testing.T, mapper *Mapper, dec decoder, line []byte) {
	t.Helper()
	fuzzLine++
	_, ev, skip, err := (&Run{mapper: mapper}).makeEvent(dec, nil, line, fuzzLine, false)
	if err != nil {
		if _, ok := errors.AsType[*rhumb.Error](err); !ok || !(isFault(err) || rhumb.KindOf(err) == rhumb.Incompatible) {
			t.Fatalf("%q: error %v", line, err)
		}
		return
	}
	if skip {
		return
	}
	if string(ev.raw) != string(line) {
		t.Fatalf("the event keeps %q of the line %q", ev.raw, line)
	}
	if err := (&rhumb.Batch{Mutations: ev.Mutations}).Validate(); err != nil && !strings.Contains(err.Error(), "stands twice in the batch") {
		t.Fatalf("%q becomes a batch that is refused: %v", line, err)
	}
}
