package ingest

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rhumbdb/rhumb"
)

// Format is how a line of input holds its pairs.
type Format string

// The formats.
const (
	// Controlstream: a line is a Tcl list of key and value in turn, separated by spaces or tabs ("Overview of popeye").
	Controlstream Format = "controlstream"
	// Surfacestream has the syntax of Controlstream; Roadrunner's fields are more regular.
	Surfacestream Format = "surfacestream"
	// NDJSON: a line is a JSON object. Objects and arrays in it are kept as text.
	NDJSON Format = "ndjson"
	// CSV: comma-separated values (RFC 4180), except that a quoted value may not hold a line break. The first line names
	// the columns unless the mapping does.
	CSV Format = "csv"
	// TSV: values separated by tabs, without quotes. The first line names the columns unless the mapping does.
	TSV Format = "tsv"
)

// Formats lists all formats.
func Formats() []Format { return []Format{Controlstream, Surfacestream, NDJSON, CSV, TSV} }

// ParseFormat reads the name of a format.
func ParseFormat(s string) (Format, error) {
	const op rhumb.Op = "ingest.ParseFormat"
	if slices.Contains(Formats(), Format(s)) {
		return Format(s), nil
	}
	return "", rhumb.Ef(op, rhumb.InvalidArgument, "%q is no format; use one of %v", s, Formats())
}

// FormatOfFile tells the format from a file's name, ".gz" left aside.
func FormatOfFile(name string) (f Format, ok bool) {
	name = strings.TrimSuffix(name, ".gz")
	name = name[strings.LastIndexByte(name, '.')+1:]
	if name == "jsonl" {
		name = string(NDJSON)
	}
	f, err := ParseFormat(name)
	return f, err == nil
}

// valueKind is what a format says about a value by its syntax.
type valueKind uint8

const (
	textValue   valueKind = iota // no type is told: the mapping decides, else it is text
	numberValue                  // JSON number
	boolValue                    // JSON true, false
	nullValue                    // JSON null: the field is to be removed
)

// pair is one key and value of a line. Both may share memory with the line.
type pair struct {
	key, value []byte
	kind       valueKind
}

// decoder cuts a line into pairs, which are appended to dst and hold until the next call. skip says that the line is a
// header or empty, and no event. Errors are of kind InvalidArgument and say what is wrong with the line.
type decoder interface {
	decode(line []byte, dst []pair) (pairs []pair, skip bool, err error)
}

// pairsMax bounds the pairs of one line: a record holds no more fields.
const pairsMax = rhumb.RecordFieldsMax

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

// checkText refuses a line that holds bytes which are no UTF-8.
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
	return rhumb.Ef(op, rhumb.InvalidArgument, "column %d: byte 0x%02x is no UTF-8", at+1, line[at])
}

// listDecoder reads Controlstream and Surfacestream.
type listDecoder struct{ scratch []byte }

func (d *listDecoder) decode(line []byte, dst []pair) ([]pair, bool, error) {
	if err := checkText(opList, line); err != nil {
		return dst, false, err
	}
	s := listScanner{line: line, scratch: d.scratch[:0]}
	pairs, err := s.pairs(dst)
	d.scratch = s.scratch[:0]
	return pairs, err == nil && len(pairs) == 0, err
}

// pairs reads the whole line.
func (s *listScanner) pairs(dst []pair) ([]pair, error) {
	for {
		key, ok, err := s.next()
		if err != nil || !ok {
			return dst, err
		}
		value, ok, err := s.next()
		switch {
		case err != nil:
			return dst, err
		case len(key) == 0:
			return dst, rhumb.Ef(opList, rhumb.InvalidArgument, "pair %d has an empty key", len(dst)+1)
		case !ok:
			return dst, rhumb.Ef(opList, rhumb.InvalidArgument, "the last key, %.40q, has no value", key)
		case len(dst) == pairsMax:
			return dst, rhumb.Ef(opList, rhumb.TooLarge, "more than %d pairs", pairsMax)
		}
		dst = append(dst, pair{key: key, value: value})
	}
}

// rowDecoder reads CSV and TSV.
type rowDecoder struct {
	separator byte
	quotes    bool
	columns   [][]byte
	cells     [][]byte
}

const opRow rhumb.Op = "ingest.row"

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
	if err := d.split(line); err != nil {
		return dst, false, err
	}
	if d.columns == nil {
		return dst, true, d.header()
	}
	if len(d.cells) != len(d.columns) {
		return dst, false, rhumb.Ef(opRow, rhumb.InvalidArgument, "%d values, want %d: %s", len(d.cells), len(d.columns),
			bytes.Join(d.columns, []byte{d.separator}))
	}
	for i, cell := range d.cells {
		dst = append(dst, pair{key: d.columns[i], value: cell})
	}
	return dst, false, nil
}

// header takes the cells of the first line for the names of the columns. A header that cannot be is fatal to the run:
// every line behind it would be misread.
func (d *rowDecoder) header() error {
	for i, cell := range d.cells {
		if i == 0 {
			cell = bytes.TrimPrefix(cell, []byte("\ufeff"))
		}
		repeated := slices.ContainsFunc(d.columns, func(c []byte) bool { return bytes.Equal(c, cell) })
		if len(cell) == 0 || repeated || i == pairsMax {
			return rhumb.Ef(opRow, rhumb.Incompatible, "header: column %d is named %q: empty, repeated, or one too many", i+1, cell)
		}
		d.columns = append(d.columns, bytes.Clone(cell))
	}
	return nil
}

// split cuts a line into cells.
func (d *rowDecoder) split(line []byte) error {
	d.cells = d.cells[:0]
	for {
		cell, rest, more, err := d.cell(line)
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

func (d *rowDecoder) cell(line []byte) (cell, rest []byte, more bool, err error) {
	if !d.quotes || len(line) == 0 || line[0] != '"' {
		cell, rest, more = bytes.Cut(line, []byte{d.separator})
		return cell, rest, more, nil
	}
	doubled := false
	for i := 1; i < len(line); i++ {
		if line[i] != '"' {
			continue
		}
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
		"value %d: the quote is never closed (a quoted value may not hold a line break)", len(d.cells)+1)
}
