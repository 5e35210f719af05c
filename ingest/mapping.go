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

// Mapping defines how the pairs of a line become rows of tables. docs/ingest.md describes its file.
type Mapping struct {
	// Format is the default format.
	Format Format `yaml:"format"`
	// Columns names the columns of CSV and TSV. If it is empty, the first line does.
	Columns []string `yaml:"columns"`
	// Null lists values that count as absent, for example "" and \N.
	Null []string `yaml:"null"`
	// DefaultType is the type of keys that Fields does not contain: a field type, or "auto", which
	// keeps the types of JSON's numbers and booleans and treats everything else as text. Default
	// "auto".
	DefaultType string `yaml:"default_type"`
	// Fields maps keys to types: string, bytes, int64, float64, bool, timestamp, point, box.
	Fields map[string]string `yaml:"fields"`
	// Time computes a timestamp from one key.
	Time *TimeMapping `yaml:"time"`
	// Location computes a point or a box from two or four keys.
	Location *LocationMapping `yaml:"location"`
	// Order lists keys that increase from event to event of one record. Without them, replaying a
	// feed overwrites newer data.
	Order []string `yaml:"order"`
	// Rows lists the rows to write. The first one determines the home and the order.
	Rows []RowMapping `yaml:"rows"`
}

// TimeMapping renames a key that holds the time of the event.
type TimeMapping struct {
	Field string `yaml:"field"`
	From  string `yaml:"from"`
	// Keep keeps the key under its own name too.
	Keep bool `yaml:"keep"`
}

// LocationMapping names the keys of latitude and longitude: one key each for a point, two each for
// the box around two points.
type LocationMapping struct {
	Field string   `yaml:"field"`
	Lat   []string `yaml:"lat"`
	Lon   []string `yaml:"lon"`
	// Keep keeps the keys under their own names too.
	Keep bool `yaml:"keep"`
}

// RowMapping defines one row of one table.
type RowMapping struct {
	// Table is the name of the table.
	Table string `yaml:"table"`
	// Name is the name of the row: text in which {key} represents the value of a key, and {key:06}
	// the value padded with zeros.
	Name string `yaml:"name"`
	// Write is "patch", which changes only the fields of the event, or "put", which replaces the
	// row.
	Write string `yaml:"write"`
	// When selects the events that get this row. Without it, all do.
	When *Condition `yaml:"when"`
	// Only lists the fields that the row includes, Except those that it excludes. Without either,
	// the row includes all.
	Only   []string `yaml:"only"`
	Except []string `yaml:"except"`
}

// Condition selects events. All its parts must hold.
type Condition struct {
	// Has lists fields that must be present, for example the location.
	Has []string `yaml:"has"`
	// Field names the key whose value In and NotIn compare.
	Field string   `yaml:"field"`
	In    []string `yaml:"in"`
	NotIn []string `yaml:"not_in"`
}

// rowsMax bounds the rows of a mapping.
const rowsMax = 16

// opMapping is the operation of errors in mapping files.
const opMapping rhumb.Op = "ingest.Mapping"

//go:embed mappings/*.yaml
var builtin embed.FS

// BuiltinMappings returns the names of the built-in mappings.
func BuiltinMappings() []string {
	files, err := fs.Glob(builtin, "mappings/*.yaml")
	if err != nil {
		panic(fmt.Sprintf("ingest: cannot list the embedded mappings: %v", err))
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(f, "mappings/"), ".yaml")
	}
	return files
}

// BuiltinMapping returns the text of a built-in mapping.
func BuiltinMapping(name string) ([]byte, bool) {
	text, err := builtin.ReadFile("mappings/" + name + ".yaml")
	return text, err == nil
}

// ParseMapping parses a mapping file. Unknown keys are errors, and all faults are reported
// together.
func ParseMapping(text []byte) (*Mapping, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	// A misspelled key would otherwise be ignored silently.
	dec.KnownFields(true)
	m := &Mapping{}
	if err := dec.Decode(m); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, rhumb.E(opMapping, rhumb.InvalidArgument, "the mapping is empty")
		}
		return nil, rhumb.Ef(opMapping, rhumb.InvalidArgument, "%v", err)
	}
	if err := dec.Decode(&Mapping{}); !errors.Is(err, io.EOF) {
		return nil, rhumb.E(opMapping, rhumb.InvalidArgument, "the file contains more than one YAML document")
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

// orDefault returns s, or otherwise if s is empty.
func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// Tables returns the tables of the rows, in order.
func (m *Mapping) Tables() []string {
	var names []string
	for _, r := range m.Rows {
		names = append(names, r.Table)
	}
	return names
}

// Validate reports all faults of the mapping in one error.
func (m *Mapping) Validate() error {
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	if m.Format != "" {
		_, err := ParseFormat(string(m.Format))
		fault(err != nil, "format: %q is not one of %s", m.Format, FormatList())
	}
	fault(m.DefaultType != "auto" && !isFieldKind(m.DefaultType), "default_type: %q is neither a field type nor auto", m.DefaultType)
	for key, kind := range m.Fields {
		fault(!isFieldKind(kind), "fields: %s: %q is not a field type", key, kind)
	}
	fault(m.Time != nil && m.Time.From == "", "time: from is missing")
	if l := m.Location; l != nil {
		fault(len(l.Lat) != len(l.Lon) || len(l.Lat) < 1 || len(l.Lat) > 2 || slices.Contains(slices.Concat(l.Lat, l.Lon), ""),
			"location: want one or two keys for lat, and as many for lon")
	}
	fault(len(m.Order) > rhumb.ConditionFieldsMax, "order: at most %d keys", rhumb.ConditionFieldsMax)
	fault(len(m.Rows) == 0, "rows: at least one row is required")
	fault(len(m.Rows) > rowsMax, "rows: at most %d rows", rowsMax)
	for i := range m.Rows {
		m.Rows[i].validate(i, m, fault)
	}
	if len(faults) > 0 {
		// Fields is a map, but the message for one file should be stable.
		slices.Sort(faults)
		return rhumb.E(opMapping, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// validate reports the faults of row i.
func (r *RowMapping) validate(i int, m *Mapping, fault func(bool, string, ...any)) {
	if err := rhumb.ValidateTableName(r.Table); err != nil {
		fault(true, "rows[%d]: table: %q is not a valid table name", i, r.Table)
	}
	if _, err := parseTemplate(r.Name); err != nil {
		fault(true, "rows[%d]: name: %v", i, err)
	}
	fault(r.Write != "patch" && r.Write != "put", "rows[%d]: write: %q is neither patch nor put", i, r.Write)
	fault(i == 0 && r.When != nil, "rows[0]: the first row is written for every event and cannot have when")
	// Only a patch is conditional on the order fields of the existing record.
	fault(i == 0 && len(m.Order) > 0 && r.Write != "patch", "rows[0]: write: order requires patch")
	fault(len(r.Only) > 0 && len(r.Except) > 0, "rows[%d]: only and except exclude each other", i)
	if i == 0 {
		for _, key := range m.Order {
			fault(slices.Contains(r.Except, key) || len(r.Only) > 0 && !slices.Contains(r.Only, key),
				"rows[0]: the row excludes %q, which order needs", key)
		}
	}
	if w := r.When; w != nil {
		fault(w.Field == "" && len(w.In)+len(w.NotIn) > 0, "rows[%d]: when: in and not_in need field", i)
		fault(w.Field != "" && len(w.In)+len(w.NotIn) == 0, "rows[%d]: when: field needs in or not_in", i)
	}
}

// isFieldKind reports whether s is a field type.
func isFieldKind(s string) bool {
	_, err := rhumb.ParseFieldKind(s)
	return err == nil
}

// template is a name that contains values of keys.
type template []templatePart

// templatePart is literal text, or a key whose value is padded with zeros to width.
type templatePart struct {
	text  string
	key   string
	width int
}

// templateWidthMax bounds the width of a padded value.
const templateWidthMax = 64

// parseTemplate parses a name.
func parseTemplate(s string) (t template, err error) {
	if s == "" {
		return nil, errors.New("the name is empty")
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
				return nil, fmt.Errorf("{%s}: write the width as 0 followed by a number up to %d, for example {_s:06}", s[open+1:end], templateWidthMax)
			}
		}
		if part.key == "" {
			return nil, errors.New("{} names no key")
		}
		t, s = append(t, part), s[end+1:]
	}
	return t, nil
}
