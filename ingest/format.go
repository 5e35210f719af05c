package ingest

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rhumbdb/rhumb"
)

// Format is the syntax of the lines of an input.
type Format string

// The formats.
const (
	// Controlstream: a line is a Tcl list that alternates keys and values, separated by spaces or
	// tabs ("Overview of popeye").
	Controlstream Format = "controlstream"
	// Surfacestream has the syntax of Controlstream. The fields of Roadrunner are more regular.
	Surfacestream Format = "surfacestream"
	// NDJSON: a line is a JSON object. Objects and arrays in it are kept as text.
	NDJSON Format = "ndjson"
	// CSV: comma-separated values (RFC 4180), but without line breaks in quoted values. The first
	// line names the columns unless the mapping does.
	CSV Format = "csv"
	// TSV: values separated by tabs, without quotes. The first line names the columns unless the
	// mapping does.
	TSV Format = "tsv"
)

// Formats returns all formats.
func Formats() []Format { return []Format{Controlstream, Surfacestream, NDJSON, CSV, TSV} }

// FormatList names all formats, for messages.
func FormatList() string {
	var names []string
	for _, f := range Formats() {
		names = append(names, string(f))
	}
	return strings.Join(names, ", ")
}

// ParseFormat returns the format with a name.
func ParseFormat(s string) (Format, error) {
	const op rhumb.Op = "ingest.ParseFormat"
	if slices.Contains(Formats(), Format(s)) {
		return Format(s), nil
	}
	return "", rhumb.Ef(op, rhumb.InvalidArgument, "%q is not a format; use one of %s", s, FormatList())
}

// FormatOfFile returns the format that the extension of a file name indicates, ignoring ".gz".
func FormatOfFile(name string) (f Format, ok bool) {
	name = strings.TrimSuffix(name, ".gz")
	name = name[strings.LastIndexByte(name, '.')+1:]
	if name == "jsonl" {
		name = string(NDJSON)
	}
	f, err := ParseFormat(name)
	return f, err == nil
}

// valueKind is the type of a value according to the syntax of the format.
type valueKind uint8

const (
	textValue   valueKind = iota // no type: the mapping decides, and the default is text
	numberValue                  // JSON number
	boolValue                    // JSON true, false
	nullValue                    // JSON null: removes the field
)

// pair is one key and value of a line. Both may share memory with the line.
type pair struct {
	key, value []byte
	kind       valueKind
}

// decoder splits a line into pairs and appends them to dst. The pairs are valid until the next
// call. skip reports that the line is a header or empty, so it is not an event. Errors are of kind
// InvalidArgument and describe the fault of the line; an error of kind Incompatible makes all
// further lines unreadable.
type decoder interface {
	decode(line []byte, dst []pair) (pairs []pair, skip bool, err error)
}

// pairsMax bounds the pairs of one line, since a record holds no more fields.
const pairsMax = rhumb.RecordFieldsMax

// newDecoder returns the decoder of a format.
func newDecoder(f Format, m *Mapping) decoder {
	switch f {
	case NDJSON:
		return jsonDecoder{}
	case CSV:
		return &rowDecoder{separator: ',', quotes: true, columns: columnNames(m.Columns)}
	case TSV:
		return &rowDecoder{separator: '\t', columns: columnNames(m.Columns)}
	}
	return &listDecoder{}
}

// checkText rejects a line that is not valid UTF-8.
func checkText(op rhumb.Op, line []byte) error {
	if utf8.Valid(line) {
		return nil
	}
	at := 0
	for at < len(line) {
		r, size := utf8.DecodeRune(line[at:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		at += size
	}
	return rhumb.Ef(op, rhumb.InvalidArgument, "column %d: byte 0x%02x is not valid UTF-8", at+1, line[at])
}

// listDecoder decodes Controlstream and Surfacestream.
type listDecoder struct{ scratch []byte }

func (d *listDecoder) decode(line []byte, dst []pair) ([]pair, bool, error) {
	// Strings in Rhumb are UTF-8.
	if err := checkText(opList, line); err != nil {
		return dst, false, err
	}
	s := listScanner{line: line, scratch: d.scratch[:0]}
	pairs, err := s.readPairs(dst)
	// The scanner may have grown the scratch memory, which is reused for the next line.
	d.scratch = s.scratch[:0]
	return pairs, err == nil && len(pairs) == 0, err
}

// readPairs reads the whole line.
func (s *listScanner) readPairs(dst []pair) ([]pair, error) {
	for {
		key, ok, err := s.next()
		if err != nil || !ok {
			return dst, err
		}
		value, ok, err := s.next()
		switch {
		case err != nil:
			return dst, err
		// Checked before the value: the end of the line after an empty key is reported as an empty
		// key.
		case len(key) == 0:
			return dst, rhumb.Ef(opList, rhumb.InvalidArgument, "pair %d has an empty key", len(dst)+1)
		case !ok:
			return dst, rhumb.Ef(opList, rhumb.InvalidArgument, "the last key, %.40q, has no value", key)
		case len(dst) == pairsMax:
			return dst, rhumb.Ef(opList, rhumb.TooLarge, "the line has more than %d pairs", pairsMax)
		}
		dst = append(dst, pair{key: key, value: value})
	}
}

// rowDecoder decodes CSV and TSV.
type rowDecoder struct {
	separator byte
	quotes    bool
	columns   [][]byte
	cells     [][]byte
}

const opRow rhumb.Op = "ingest.row"

// columnNames converts the column names of a mapping.
func columnNames(names []string) (out [][]byte) {
	for _, n := range names {
		out = append(out, []byte(n))
	}
	return out
}

func (d *rowDecoder) decode(line []byte, dst []pair) ([]pair, bool, error) {
	if len(line) == 0 {
		return dst, true, nil
	}
	if err := checkText(opRow, line); err != nil {
		return dst, false, err
	}
	if err := d.splitCells(line); err != nil {
		return dst, false, err
	}
	// Columns from the mapping are set at the start, and then the first line is data.
	if d.columns == nil {
		return dst, true, d.readHeader()
	}
	if len(d.cells) != len(d.columns) {
		return dst, false, rhumb.Ef(opRow, rhumb.InvalidArgument, "the line has %d values, want %d: %s", len(d.cells), len(d.columns),
			bytes.Join(d.columns, []byte{d.separator}))
	}
	for i, cell := range d.cells {
		dst = append(dst, pair{key: d.columns[i], value: cell})
	}
	return dst, false, nil
}

// readHeader uses the cells of the first line as the names of the columns. An invalid header ends
// the run, because every line after it would be misread.
func (d *rowDecoder) readHeader() error {
	for i, cell := range d.cells {
		// Spreadsheets begin files with a byte order mark, which would become part of the first
		// name.
		if i == 0 {
			cell = bytes.TrimPrefix(cell, []byte("\ufeff"))
		}
		repeated := slices.ContainsFunc(d.columns, func(c []byte) bool { return bytes.Equal(c, cell) })
		if len(cell) == 0 || repeated || i == pairsMax {
			return rhumb.Ef(opRow, rhumb.Incompatible, "header: column %d has the name %q, which is empty, repeated, or one too many", i+1, cell)
		}
		// Cloned, because columns outlive the block of the line.
		d.columns = append(d.columns, bytes.Clone(cell))
	}
	return nil
}

// splitCells splits a line into cells.
func (d *rowDecoder) splitCells(line []byte) error {
	d.cells = d.cells[:0]
	for {
		cell, rest, more, err := d.nextCell(line)
		if err != nil {
			return err
		}
		d.cells = append(d.cells, cell)
		if !more {
			return nil
		}
		line = rest
	}
}

// nextCell returns the first cell of a line, and the remaining cells, if there are any.
func (d *rowDecoder) nextCell(line []byte) (cell, rest []byte, more bool, err error) {
	if !d.quotes || len(line) == 0 || line[0] != '"' {
		cell, rest, more = bytes.Cut(line, []byte{d.separator})
		return cell, rest, more, nil
	}
	doubled := false
	for i := 1; i < len(line); i++ {
		if line[i] != '"' {
			continue
		}
		// Two quotes within a quoted value represent one.
		if i+1 < len(line) && line[i+1] == '"' {
			doubled = true
			i++
			continue
		}
		cell, rest = line[1:i], line[i+1:]
		if doubled {
			cell = bytes.ReplaceAll(cell, []byte(`""`), []byte(`"`))
		}
		if len(rest) == 0 {
			return cell, nil, false, nil
		}
		if rest[0] != d.separator {
			return nil, nil, false, rhumb.Ef(opRow, rhumb.InvalidArgument, "value %d: want %q after the closing quote, found %q", len(d.cells)+1, d.separator, rest[0])
		}
		return cell, rest[1:], true, nil
	}
	return nil, nil, false, rhumb.Ef(opRow, rhumb.InvalidArgument,
		"value %d: the quote is never closed (a quoted value cannot contain a line break)", len(d.cells)+1)
}
