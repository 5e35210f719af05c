package main

import (
	"encoding/json"
	"fmt"
	"os"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// The forms of output.
const (
	outputTable = "table"
	outputJSON  = "json"
)

var outputs = []string{outputTable, outputJSON}

// print writes data: the document as JSON, or what asTable makes of it.
func (a *app) print(doc any, asTable func(t table.Writer)) error {
	if a.output == outputJSON {
		return a.printJSON(doc)
	}
	t := table.NewWriter()
	style := table.StyleLight
	style.Format.Header = text.FormatDefault
	style.Options = table.Options{SeparateColumns: false, SeparateHeader: false, DrawBorder: false}
	style.Box.PaddingLeft = ""
	style.Box.PaddingRight = "  "
	if a.colored() {
		style.Color.Header = text.Colors{text.Bold}
	}
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	asTable(visibleTable{t})
	_, err := fmt.Fprintln(a.out, t.Render())
	return rhumb.Wrap("rhumb.print", err)
}

// printTitled is print with a line above the table, which no width of columns breaks.
func (a *app) printTitled(doc any, title string, asTable func(t table.Writer)) error {
	if a.output != outputJSON {
		fmt.Fprintln(a.out, visible(title))
	}
	return a.print(doc, asTable)
}

// printJSON writes one document on one line.
func (a *app) printJSON(doc any) error {
	enc := json.NewEncoder(visibleJSON{a.out})
	enc.SetEscapeHTML(false)
	return rhumb.Wrap("rhumb.print", enc.Encode(doc))
}

// colored reports whether the data may be coloured: only on a terminal, and only when nobody objects.
func (a *app) colored() bool {
	return !a.noColor && os.Getenv("NO_COLOR") == "" && isTerminal(a.out)
}

// notef tells a person something that is no data.
func (a *app) notef(format string, args ...any) {
	fmt.Fprintln(a.err, visibleLines(fmt.Sprintf(format, args...)))
}

// counted writes a number of things.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// valueDoc is a stored value as -o json prints it: a record's fields, text, or bytes as 0x….
type valueDoc struct {
	Fields map[string]any `json:"fields,omitempty"`
	Text   *string        `json:"text,omitempty"`
	Bytes  string         `json:"bytes,omitempty"`
	record rhumb.Record
}

func describeValue(stored []byte) (valueDoc, error) {
	if payload, ok := rhumb.DecodeOpaque(stored); ok {
		if utf8.Valid(payload) {
			s := string(payload)
			return valueDoc{Text: &s}, nil
		}
		return valueDoc{Bytes: fmt.Sprintf("0x%x", payload)}, nil
	}
	record, err := rhumb.DecodeRecord(stored)
	if err != nil {
		return valueDoc{}, err
	}
	return valueDoc{Fields: inspect.Fields(record), record: record}, nil
}

// pointDoc is a place as JSON shows it.
type pointDoc = inspect.Place

// line gives a value in one line for a table.
func (d valueDoc) line() string {
	switch {
	case d.Text != nil:
		return *d.Text
	case d.Bytes != "":
		return d.Bytes
	}
	s := ""
	for i, f := range d.record {
		if i > 0 {
			s += " "
		}
		s += f.Name + "=" + f.Value.String()
	}
	return s
}
