package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
)

// What is stored may hold bytes that command a terminal: colours, titles, even keys pressed. Tables, notes and errors show such
// characters escaped, wherever they go; JSON escapes them in its own way. `get --raw` is the one way to have them as they are.

// commands reports whether a terminal may take a character for a command, or show text in another order for it.
func commands(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// visible escapes what a terminal must not see raw, as Go writes it in quotes: \n, \x1b, \u202e. Bytes that are no UTF-8 come
// as \xff.
func visible(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, commands) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case commands(r):
			quoted := fmt.Sprintf("%+q", r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

// visibleLines is visible for text of several lines.
func visibleLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = visible(lines[i])
	}
	return strings.Join(lines, "\n")
}

// visibleTable is a table whose cells are visible.
type visibleTable struct{ table.Writer }

// AppendHeader adds a row of titles.
func (t visibleTable) AppendHeader(row table.Row, configs ...table.RowConfig) {
	t.Writer.AppendHeader(visibleRow(row), configs...)
}

// AppendRow adds a row of data.
func (t visibleTable) AppendRow(row table.Row, configs ...table.RowConfig) {
	t.Writer.AppendRow(visibleRow(row), configs...)
}

func visibleRow(row table.Row) table.Row {
	out := make(table.Row, len(row))
	for i, cell := range row {
		switch cell := cell.(type) {
		case string:
			out[i] = visible(cell)
		case fmt.Stringer, error:
			out[i] = visible(fmt.Sprint(cell))
		default:
			out[i] = cell
		}
	}
	return out
}

// visibleJSON escapes in JSON what its encoder leaves raw although a terminal takes it for a command. It means the same.
type visibleJSON struct{ io.Writer }

// Write takes whole documents.
func (w visibleJSON) Write(p []byte) (int, error) {
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

// hiddenInJSON leaves out the line breaks between documents: within one the encoder has escaped them.
func hiddenInJSON(r rune) bool { return r != '\n' && commands(r) }
