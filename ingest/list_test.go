package ingest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestList is a transcript of Tcl's list syntax. Its contents were compared with tclsh 8.6, which
// knows no characters beyond U+FFFF, such as \U1F600.
func TestList(t *testing.T) {
	datadriven.RunTest(t, "testdata/list.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			var elements []string
			s := listScanner{line: []byte(strings.TrimSuffix(line, "\n"))}
			for {
				element, ok, err := s.next()
				if err != nil {
					elements = append(elements, "error: "+messageOf(err))
				}
				if !ok {
					break
				}
				elements = append(elements, fmt.Sprintf("%q", element))
			}
			out.WriteString(strings.Join(elements, " ") + "\n")
		}
		return out.String()
	})
}

// FuzzList guards that no line makes the scanner panic or loop, that elements without a backslash
// are slices of the line, and that a list written from elements is read as the same elements.
func FuzzList(f *testing.F) {
	for _, seed := range []string{`a b {c {d e}} "f g"`, `{a\} b}`, `\x41 \u00e9 \`, `"open`, `{x}y`, "a\tb\n", `{`, `\7777`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var elements []string
		s := listScanner{line: line}
		for {
			element, ok, err := s.next()
			if err != nil {
				return
			}
			if !ok {
				break
			}
			elements = append(elements, string(element))
			if len(elements) > len(line) {
				t.Fatalf("%d elements from %d bytes", len(elements), len(line))
			}
		}
		again := listScanner{line: []byte(writeList(elements))}
		for i, want := range elements {
			got, ok, err := again.next()
			if err != nil || !ok || string(got) != want {
				t.Fatalf("element %d of %q: got %q, %v, %v, want %q", i, again.line, got, ok, err, want)
			}
		}
	})
}

// writeList writes elements as a list, with a backslash before every special byte.
func writeList(elements []string) string {
	var b strings.Builder
	for _, e := range elements {
		if e == "" {
			b.WriteString("{}")
		}
		for i := range len(e) {
			switch c := e[i]; {
			case c == '\n':
				b.WriteString(`\n`)
			case isListSpace(c) || strings.IndexByte(`{}"\`, c) >= 0:
				b.WriteByte('\\')
				fallthrough
			default:
				b.WriteByte(c)
			}
		}
		b.WriteByte(' ')
	}
	return b.String()
}
