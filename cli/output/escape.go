package output

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Stored bytes may contain sequences that control a terminal: colors, titles, even simulated key
// presses. Tables, notes and errors escape such characters wherever they are written, because
// output is often paged or pasted later. JSON escapes them by its own rules. `rhumb get --raw` is
// the only way to get them unescaped.

// controlsTerminal reports whether a terminal may interpret a character as a command, or reorder
// the text around it.
func controlsTerminal(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Escape returns s with every character that a terminal may interpret escaped as in a quoted Go
// string: \n, \x1b, \u202e. Bytes that are not UTF-8 become \xff.
func Escape(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, controlsTerminal) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case controlsTerminal(r):
			quoted := fmt.Sprintf("%+q", r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

// EscapeLines is like Escape but keeps line breaks.
func EscapeLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Escape(lines[i])
	}
	return strings.Join(lines, "\n")
}

// escapedTable escapes the text of every cell. A writer that escaped the rendered table would also
// escape the line breaks and colors of the table itself.
type escapedTable struct{ table.Writer }

// AppendHeader adds a row of titles.
func (t escapedTable) AppendHeader(row table.Row, configs ...table.RowConfig) {
	t.Writer.AppendHeader(escapeRow(row), configs...)
}

// AppendRow adds a row of data.
func (t escapedTable) AppendRow(row table.Row, configs ...table.RowConfig) {
	t.Writer.AppendRow(escapeRow(row), configs...)
}

func escapeRow(row table.Row) table.Row {
	out := make(table.Row, len(row))
	for i, cell := range row {
		switch cell := cell.(type) {
		case string:
			out[i] = Escape(cell)
		case fmt.Stringer, error:
			out[i] = Escape(fmt.Sprint(cell))
		default:
			out[i] = cell // a number or a bool: the table aligns it by its type
		}
	}
	return out
}

// escapedJSON escapes characters that encoding/json leaves as they are but that a terminal may
// interpret, such as the C1 controls. The document keeps its meaning.
type escapedJSON struct{ io.Writer }

// Write writes whole documents: a rune that is split between two calls would be lost.
func (w escapedJSON) Write(p []byte) (int, error) {
	if !bytes.ContainsFunc(p, hiddenInJSON) {
		return w.Writer.Write(p)
	}
	var b bytes.Buffer
	for _, r := range string(p) {
		if hiddenInJSON(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	if _, err := w.Writer.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// hiddenInJSON excludes the line break, which separates documents. Line breaks within a document
// are already escaped.
func hiddenInJSON(r rune) bool { return r != '\n' && controlsTerminal(r) }
