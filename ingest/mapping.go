package ingest

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rhumbdb/rhumb"
)

// Mapping says how the pairs of a line become rows of tables. docs/ingest.md describes its file.
type Mapping struct {
	// Format is taken when nobody names another.
	Format Format `yaml:"format"`
	// Columns name the columns of CSV and TSV; without them the first line does.
	Columns []string `yaml:"columns"`
	// Null lists the values that count as absent, for example "" and \N.
	Null []string `yaml:"null"`
	// DefaultType is the type of the fields that Fields leaves out: a field type, or "auto", which takes JSON's numbers
	// and truth values for what they are and everything else for text. Default "auto".
	DefaultType string `yaml:"default_type"`
	// Fields gives types to keys: string, bytes, int64, float64, bool, timestamp, point, box.
	Fields map[string]string `yaml:"fields"`
	// Time makes a timestamp of one key.
	Time *TimeMapping `yaml:"time"`
	// Location makes a point or box of two or four keys.
	Location *LocationMapping `yaml:"location"`
	// Order lists the keys that grow from event to event of one record. Without it a feed that is played again
	// overwrites what is there.
	Order []string `yaml:"order"`
	// Rows says which tables get a row. The first is the record whose home and whose order count.
	Rows []RowMapping `yaml:"rows"`
}

// TimeMapping renames a key that holds the time of the event.
type TimeMapping struct {
	Field string `yaml:"field"`
	From  string `yaml:"from"`
	// Keep also keeps the key under its own name.
	Keep bool `yaml:"keep"`
}

// LocationMapping names the keys that hold latitude and longitude: one each make a point, two each the box around both.
type LocationMapping struct {
	Field string   `yaml:"field"`
	Lat   []string `yaml:"lat"`
	Lon   []string `yaml:"lon"`
	// Keep also keeps the keys under their own names.
	Keep bool `yaml:"keep"`
}

// RowMapping is one row of one table.
type RowMapping struct {
	// Table is the name of the table.
	Table string `yaml:"table"`
	// Name is the row's name: text with {key} for the value of a key, {key:06} for it with zeros in front.
	Name string `yaml:"name"`
	// Write is "patch" (only the fields that are present change) or "put" (the row is written whole).
	Write string `yaml:"write"`
	// When tells the events that get this row; without it all do.
	When *Condition `yaml:"when"`
	// Only lists the fields of the row; Except those that it leaves out. Without either it has all.
	Only   []string `yaml:"only"`
	Except []string `yaml:"except"`
}

// Condition holds for an event when all its parts hold.
type Condition struct {
	// Has lists fields that must be present, for example the location.
	Has []string `yaml:"has"`
	// Field names the key that In and NotIn look at.
	Field string   `yaml:"field"`
	In    []string `yaml:"in"`
	NotIn []string `yaml:"not_in"`
}

// rowsMax bounds the rows of a mapping.
const rowsMax = 16

const opMapping rhumb.Op = "ingest.Mapping"

//go:embed mappings/*.yaml
var builtin embed.FS

// BuiltinMappings lists the names of the mappings that the binary brings.
func BuiltinMappings() []string {
	files, err := fs.Glob(builtin, "mappings/*.yaml")
	if err != nil {
		panic(fmt.Sprintf("ingest: listing the embedded mappings: %v", err))
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(f, "mappings/"), ".yaml")
	}
	return files
}

// BuiltinMapping gives the text of a mapping that the binary brings.
func BuiltinMapping(name string) ([]byte, bool) {
	text, err := builtin.ReadFile("mappings/" + name + ".yaml")
	return text, err == nil
}

// ParseMapping reads a mapping file. A key that is not known is an error, and all faults are told at once.
func ParseMapping(text []byte) (*Mapping, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	m := &Mapping{}
	if err := dec.Decode(m); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, rhumb.E(opMapping, rhumb.InvalidArgument, "the mapping is empty")
		}
		return nil, rhumb.Ef(opMapping, rhumb.InvalidArgument, "%v", err)
	}
	if err := dec.Decode(&Mapping{}); !errors.Is(err, io.EOF) {
		return nil, rhumb.E(opMapping, rhumb.InvalidArgument, "the file holds more than one YAML document")
	}
	m.DefaultType = orDefault(m.DefaultType, "auto")
	if m.Location != nil {
		m.Location.Field = orDefault(m.Location.Field, rhumb.LocationFieldDefault)
	}
	if m.Time != nil {
		m.Time.Field = orDefault(m.Time.Field, "time")
	}
	return m, m.Validate()
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// Tables lists the tables of the rows in order.
func (m *Mapping) Tables() []string {
	var names []string
	for _, r := range m.Rows {
		names = append(names, r.Table)
	}
	return names
}

// Validate lists everything that is wrong with the mapping.
func (m *Mapping) Validate() error {
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	if m.Format != "" {
		_, err := ParseFormat(string(m.Format))
		fault(err != nil, "format: %q is not one of %v", m.Format, Formats())
	}
	fault(m.DefaultType != "auto" && !isFieldKind(m.DefaultType), "default_type: %q is no field type and not auto", m.DefaultType)
	for key, kind := range m.Fields {
		fault(!isFieldKind(kind), "fields: %s: %q is no field type", key, kind)
	}
	fault(m.Time != nil && m.Time.From == "", "time: from is missing")
	if l := m.Location; l != nil {
		fault(len(l.Lat) != len(l.Lon) || len(l.Lat) < 1 || len(l.Lat) > 2 || slices.Contains(slices.Concat(l.Lat, l.Lon), ""),
			"location: want one or two keys for lat, and as many for lon")
	}
	fault(len(m.Order) > rhumb.ConditionFieldsMax, "order: at most %d keys", rhumb.ConditionFieldsMax)
	fault(len(m.Rows) == 0, "rows: at least one row is wanted")
	fault(len(m.Rows) > rowsMax, "rows: at most %d rows", rowsMax)
	for i := range m.Rows {
		m.Rows[i].validate(i, m, fault)
	}
	if len(faults) > 0 {
		slices.Sort(faults)
		return rhumb.E(opMapping, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

func (r *RowMapping) validate(i int, m *Mapping, fault func(bool, string, ...any)) {
	if err := rhumb.ValidateTableName(r.Table); err != nil {
		fault(true, "rows[%d]: table: %q is no name of a table", i, r.Table)
	}
	if _, err := parseTemplate(r.Name); err != nil {
		fault(true, "rows[%d]: name: %v", i, err)
	}
	fault(r.Write != "patch" && r.Write != "put", "rows[%d]: write: %q is neither patch nor put", i, r.Write)
	fault(i == 0 && r.When != nil, "rows[0]: the first row is written for every event; it takes no when")
	fault(i == 0 && len(m.Order) > 0 && r.Write != "patch", "rows[0]: write: order asks for patch")
	fault(len(r.Only) > 0 && len(r.Except) > 0, "rows[%d]: only and except exclude each other", i)
	if i == 0 {
		for _, key := range m.Order {
			fault(slices.Contains(r.Except, key) || len(r.Only) > 0 && !slices.Contains(r.Only, key),
				"rows[0]: the row leaves out %q, which order needs", key)
		}
	}
	if w := r.When; w != nil {
		fault(w.Field == "" && len(w.In)+len(w.NotIn) > 0, "rows[%d]: when: in and not_in need field", i)
		fault(w.Field != "" && len(w.In)+len(w.NotIn) == 0, "rows[%d]: when: field needs in or not_in", i)
	}
}

func isFieldKind(s string) bool {
	_, err := rhumb.ParseFieldKind(s)
	return err == nil
}

// template is a name with places for the values of keys.
type template []templatePart

// templatePart is literal text, or the key whose value stands in its place, filled with zeros up to width.
type templatePart struct {
	text  string
	key   string
	width int
}

// templateWidthMax bounds the width of a filled number.
const templateWidthMax = 64

func parseTemplate(s string) (t template, err error) {
	if s == "" {
		return nil, errors.New("it is empty")
	}
	for s != "" {
		open := strings.IndexByte(s, '{')
		if open < 0 {
			return append(t, templatePart{text: s}), nil
		}
		end := strings.IndexByte(s, '}')
		if end < open {
			return nil, fmt.Errorf("%q: a brace is not closed", s)
		}
		if open > 0 {
			t = append(t, templatePart{text: s[:open]})
		}
		part := templatePart{}
		var width string
		var filled bool
		part.key, width, filled = strings.Cut(s[open+1:end], ":")
		if filled {
			part.width, err = strconv.Atoi(width)
			if err != nil || !strings.HasPrefix(width, "0") || part.width < 1 || part.width > templateWidthMax {
				return nil, fmt.Errorf("{%s}: write the width as 0 and a number up to %d, for example {_s:06}", s[open+1:end], templateWidthMax)
			}
		}
		if part.key == "" {
			return nil, errors.New("{} names no key")
		}
		t, s = append(t, part), s[end+1:]
	}
	return t, nil
}
