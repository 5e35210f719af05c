package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rhumbdb/rhumb"
)

const opPrint rhumb.Op = "rhumb.print"

// The forms of data that --output selects.
const (
	Table = "table"
	// JSON is one document on one line.
	JSON = "json"
	// JSONL is like JSON, except that a list is one line for each element.
	JSONL = "jsonl"
	// YAML has the keys of JSON. Several documents of one command are separated by lines of three
	// hyphens.
	YAML = "yaml"
)

// Formats lists the values of --output.
var Formats = []string{Table, JSON, YAML, JSONL}

// IsDocument reports whether a form is one for programs: everything but a table.
func IsDocument(format string) bool { return format != Table && slices.Contains(Formats, format) }

// ForPrograms reports whether data is printed as documents and not as tables.
func (p *Printer) ForPrograms() bool { return IsDocument(p.Format) }

// PrintDocument writes one document in the selected form, which is JSON if a table was asked for. A
// command that prints many records calls it once for each, so that its memory is bounded.
func (p *Printer) PrintDocument(doc any) error {
	switch p.Format {
	case YAML:
		return p.printYAML(doc)
	case JSONL:
		return p.printLines(doc)
	}
	return writeJSON(p.Out, doc)
}

// printLines writes one line for each element of a list, and one line for anything else.
func (p *Printer) printLines(doc any) error {
	list := reflect.ValueOf(doc)
	if list.Kind() != reflect.Slice {
		return writeJSON(p.Out, doc)
	}
	for i := range list.Len() {
		if err := writeJSON(p.Out, list.Index(i).Interface()); err != nil {
			return err
		}
	}
	return nil
}

// printYAML writes a document, and a separator before it unless it is the first.
func (p *Printer) printYAML(doc any) error {
	text, err := encodeYAML(doc)
	if err != nil {
		return err
	}
	if p.documents++; p.documents > 1 {
		text = append([]byte("---\n"), text...)
	}
	_, err = p.Out.Write(text)
	return rhumb.Wrap(opPrint, err)
}

// Lines returns a writer that takes lines of JSON and prints each in the selected form. Packages
// that print lines of JSON do not know the other forms.
//
// Such packages predate the other forms and must stay usable without a Printer, for example in
// tests.
func (p *Printer) Lines() io.Writer {
	if p.Format != YAML {
		return escapedJSON{p.Out}
	}
	return &lineWriter{each: func(line []byte) error { return p.printYAML(json.RawMessage(line)) }}
}

// lineMaxBytes bounds a line that a lineWriter holds.
const lineMaxBytes = 16 << 20

// lineWriter calls each with every complete line.
type lineWriter struct {
	each func(line []byte) error
	part []byte
}

// Write holds the part of a line that has no end yet.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	for {
		line, rest, complete := bytes.Cut(w.part, []byte("\n"))
		if !complete {
			break
		}
		w.part = rest
		if err := w.each(line); err != nil {
			return 0, err
		}
	}
	if len(w.part) > lineMaxBytes {
		return 0, rhumb.Ef(opPrint, rhumb.TooLarge, "a line of JSON has more than %d bytes", lineMaxBytes)
	}
	return len(p), nil
}

// writeJSON writes one document on one line. Escapes for HTML would make paths and comparisons
// unreadable, and no browser reads this output.
func writeJSON(w io.Writer, doc any) error {
	enc := json.NewEncoder(escapedJSON{w})
	enc.SetEscapeHTML(false)
	return rhumb.Wrap(opPrint, enc.Encode(doc))
}

// encodeYAML encodes a document with the keys, the order and the numbers of its JSON, so that the
// two forms cannot differ.
func encodeYAML(doc any) ([]byte, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, rhumb.Wrap(opPrint, err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	node, err := yamlNode(dec)
	if err != nil {
		return nil, rhumb.Wrap(opPrint, err)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return nil, rhumb.Wrap(opPrint, err)
	}
	var escaped bytes.Buffer
	_, err = escapedJSON{&escaped}.Write(b.Bytes())
	return escaped.Bytes(), err
}

// yamlNode decodes one JSON value. Decoding into a map would lose the order of the keys.
func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		return yamlCollection(dec, v)
	case string:
		return yamlString(v), nil
	case json.Number:
		return yamlNumber(v.String()), nil
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(token)}, nil
}

// yamlCollection decodes the elements of an object or a list, whose keys are elements too.
func yamlCollection(dec *json.Decoder, open json.Delim) (*yaml.Node, error) {
	node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	if open == '{' {
		node.Kind, node.Tag = yaml.MappingNode, "!!map"
	}
	for dec.More() {
		element, err := yamlNode(dec)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, element)
	}
	if len(node.Content) == 0 {
		node.Style = yaml.FlowStyle // {} or []
	}
	_, err := dec.Token() // the closing delimiter
	return node, err
}

// plainRE matches text that needs no quotes in any version of YAML, except for plainWords.
var plainRE = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./()+-]*( [A-Za-z0-9_./()+-]+)*$`)

// plainWords mean something other than text to some readers of YAML.
var plainWords = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

// yamlString quotes all text that a reader could take for something else. Control characters are
// escaped only within double quotes, see escapedJSON.
func yamlString(s string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if !plainRE.MatchString(s) || slices.Contains(plainWords, strings.ToLower(s)) {
		// Double quotes are the only style of YAML in which every text can be written.
		node.Style = yaml.DoubleQuotedStyle
	}
	return node
}

// yamlNumber keeps the digits. Readers of YAML 1.1 take 1e+21 for text; they want a fraction.
func yamlNumber(digits string) *yaml.Node {
	// Without a tag: an integer of more than 64 bits is a float to YAML.
	node := &yaml.Node{Kind: yaml.ScalarNode, Value: digits}
	if mantissa, exponent, ok := strings.Cut(strings.ToLower(digits), "e"); ok {
		if !strings.Contains(mantissa, ".") {
			mantissa += ".0"
		}
		if !strings.HasPrefix(exponent, "-") && !strings.HasPrefix(exponent, "+") {
			exponent = "+" + exponent
		}
		node.Value = mantissa + "e" + exponent
	}
	return node
}
