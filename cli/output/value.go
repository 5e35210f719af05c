package output

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// Value is a stored value as -o json prints it: the fields of a record, text, or bytes as 0x and
// hexadecimal digits.
type Value struct {
	Fields map[string]any `json:"fields,omitempty"`
	Text   *string        `json:"text,omitempty"`
	Bytes  string         `json:"bytes,omitempty"`
	Record rhumb.Record   `json:"-"` // the fields with their types, in their order; nil for text and bytes
}

// DescribeValue decodes a stored value.
func DescribeValue(stored []byte) (Value, error) {
	if payload, ok := rhumb.DecodeOpaque(stored); ok {
		// JSON strings cannot hold bytes that are not UTF-8.
		if utf8.Valid(payload) {
			s := string(payload)
			return Value{Text: &s}, nil
		}
		return Value{Bytes: fmt.Sprintf("0x%x", payload)}, nil
	}
	record, err := rhumb.DecodeRecord(stored)
	if err != nil {
		return Value{}, err
	}
	return Value{Fields: inspect.Fields(record), Record: record}, nil
}

// Line returns the value in one line, for a table.
func (v Value) Line() string {
	switch {
	case v.Text != nil:
		return *v.Text
	case v.Bytes != "":
		return v.Bytes
	}
	var b strings.Builder
	for i, f := range v.Record {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(f.Name + "=" + f.Value.String())
	}
	return b.String()
}

// Fault is one thing that is damaged, as -o json prints it. Offset is -1 if the whole file is
// meant.
type Fault struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	What   string `json:"what"`
}

// AppendFaults adds one row for each fault to a table, or a row that says that there is none.
func AppendFaults(t table.Writer, faults []Fault) {
	if len(faults) == 0 {
		t.AppendRow(table.Row{"nothing is damaged"})
		return
	}
	t.AppendHeader(table.Row{"FILE", "OFFSET", "WHAT"})
	for _, f := range faults {
		offset := any(f.Offset)
		if f.Offset < 0 {
			offset = "-" // the whole file
		}
		t.AppendRow(table.Row{f.File, offset, f.What})
	}
}
