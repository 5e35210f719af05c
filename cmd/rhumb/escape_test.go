package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
)

// hostile is text that controls a terminal: a title, colors, a C1 sequence, a line that replaces
// another one, text in the wrong order, and bytes that are not UTF-8.
const hostile = "a\x1b]0;owned\x07\x1b[31mred\x7f\u009b2J\r\nline\t\u202eabc\u2066\u2028\xff\xc0z"

// TestNothingCommandsTheTerminal guards that stored text, names and errors reach a terminal only
// escaped, in tables, titles, notes, errors and JSON, and that JSON keeps its meaning.
func TestNothingCommandsTheTerminal(t *testing.T) {
	var stdout, stderr bytes.Buffer
	a := newApp(streams{out: &stdout, err: &stderr})
	reads := &readCommands{a.session}
	record, err := rhumb.NewRecord(rhumb.Field{Name: "f\x1b[0m", Value: rhumb.StringField(hostile)})
	must(err)
	value, err := output.DescribeValue(rhumb.EncodeRecord(nil, record))
	must(err)
	opaque, err := output.DescribeValue(rhumb.EncodeOpaque(nil, []byte(strings.ToValidUTF8(hostile, "?"))))
	must(err)
	for _, v := range []output.Value{value, opaque} {
		must(reads.printRecord(recordDoc{Table: hostile, Name: hostile, Region: hostile, Value: v, Receipt: &receiptDoc{Region: hostile}}))
		must(reads.printRecords([]recordDoc{{Name: hostile, Region: hostile, Value: v}}))
	}
	must(a.PrintTitled(nil, hostile, func(t table.Writer) {
		t.AppendHeader(table.Row{hostile})
		t.AppendRow(table.Row{record[0].Value, errors.New(hostile)})
	}))
	a.Notef("the region is %s", hostile)
	a.PrintError(rhumb.E("test", rhumb.NotFound, "there is no table "+hostile), "")
	a.Format = output.JSON
	must(a.PrintDocument(opaque))
	a.PrintError(rhumb.E("test", rhumb.NotFound, "there is no table "+hostile), "")
	for name, text := range map[string]string{"stdout": stdout.String(), "stderr": stderr.String()} {
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && output.Escape(string(r)) != string(r) }); i >= 0 {
			t.Errorf("%s holds %q raw", name, text[i:min(i+8, len(text))])
		}
	}
	for _, want := range []string{`a\x1b]0;owned\a\x1b[31mred\x7f\u009b2J\r\nline\t\u202eabc\u2066\u2028\xff\xc0z`, `f\x1b[0m`} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("tables lack %s:\n%s", want, stdout.String())
		}
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	var again output.Value
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &again); err != nil || *again.Text != strings.ToValidUTF8(hostile, "?") {
		t.Errorf("JSON %s means %v, %v", lines[len(lines)-1], again.Text, err)
	}
}

// TestRaw guards that --raw writes an opaque value byte for byte, and rejects records with fields.
func TestRaw(t *testing.T) {
	var stdout bytes.Buffer
	a := &readCommands{newApp(streams{out: &stdout}).session}
	if err := a.writeRaw(rhumb.EncodeOpaque(nil, []byte(hostile))); err != nil || stdout.String() != hostile {
		t.Errorf("%q, %v", stdout.String(), err)
	}
	if err := a.writeRaw(rhumb.EncodeRecord(nil, nil)); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("a record with fields: %v", err)
	}
}

// The note that more records follow comes after the records, where it is seen, and continues after
// the last of them.
func TestScanNoteIsLast(t *testing.T) {
	var out bytes.Buffer
	rc := &readCommands{&session{Printer: &output.Printer{Out: &out, Err: &out, Format: output.Table}}}
	value := rhumb.EncodeRecord(nil, nil)
	a := rhumb.Item{Key: rhumb.Key{Name: []byte("aaa")}, Value: value}
	b := rhumb.Item{Key: rhumb.Key{Name: []byte("bbb")}, Value: value}
	records := func(yield func(rhumb.Item, error) bool) { _ = yield(a, nil) && yield(b, nil) }
	if err := rc.printScan(names{}, "notes", records, 1); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; len(lines) != 3 || !strings.Contains(last, "--after "+client.ScanToken(a)) {
		t.Errorf("a scan with a limit printed %q, want the header, a record and the note", lines)
	}
}
