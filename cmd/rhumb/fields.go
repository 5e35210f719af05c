package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// opFields is the operation of errors about fields that users wrote.
const opFields rhumb.Op = "rhumb.fields"

// parseAssignments parses FIELD=VALUE and FIELD:TYPE=VALUE. Without a type, the location field of
// the table is a point or a box, numbers, true and false are numbers and bools, and everything else
// is text. A number that no type of numbers holds needs a type (see parseNumber).
func parseAssignments(args []string, locationField string) (rhumb.Record, error) {
	var fields []rhumb.Field
	for _, arg := range args {
		left, text, ok := strings.Cut(arg, "=")
		name, typ, typed := cutType(left)
		if !ok || name == "" {
			return nil, rhumb.Ef(opFields, rhumb.InvalidArgument, "%q is neither FIELD=VALUE nor FIELD:TYPE=VALUE", arg)
		}
		// In JSON the name would become another one, and two such names could become one.
		if !utf8.ValidString(name) {
			return nil, rhumb.Ef(opFields, rhumb.InvalidArgument, "the name of field %q is not UTF-8", name)
		}
		v, err := parseValue(name, typ, typed, text, locationField)
		if err != nil {
			// The error of the value knows neither the name nor the argument, so the name is added.
			return nil, rhumb.Ef(opFields, rhumb.InvalidArgument, "%s: %s", name, exit.Describe(err).Message)
		}
		fields = append(fields, rhumb.Field{Name: name, Value: v})
	}
	return rhumb.NewRecord(fields...)
}

// cutType cuts NAME:TYPE at its last colon. A name with colons is possible if its type follows.
func cutType(s string) (name, typ string, typed bool) {
	// The last colon, because the types have none.
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

// parseValue parses the text of a field. A number is a number in the sense of JSON, so text such as
// 007 or NaN stays text.
func parseValue(name, typ string, typed bool, text, locationField string) (rhumb.FieldValue, error) {
	switch {
	// A field of type null has no value, so its text is ignored.
	case typ == rhumb.FieldNull.String():
		return rhumb.FieldValue{}, nil
	case typed:
		kind, err := rhumb.ParseFieldKind(typ)
		if err != nil {
			return rhumb.FieldValue{}, err
		}
		return rhumb.ParseField(kind, text)
	// Four numbers are a box and two are a point.
	case name == locationField && strings.Count(text, ",") == 3:
		return rhumb.ParseField(rhumb.FieldBox, text)
	case name == locationField:
		return rhumb.ParseField(rhumb.FieldPoint, text)
	case text == "true" || text == "false":
		return rhumb.BoolField(text == "true"), nil
	case isNumber(text):
		return parseNumber(text, func(typ string) string { return name + ":" + typ + "=" + briefNumber(text) })
	}
	return rhumb.StringField(text), nil
}

// isNumber reports whether text is a number in the sense of JSON, and nothing else.
func isNumber(text string) bool {
	// Other JSON begins otherwise, and JSON allows spaces around a number.
	return strings.Trim(text, " \t\r\n") == text && strings.IndexAny(text, "-0123456789") == 0 && json.Valid([]byte(text))
}

// parseNumber parses a number in the sense of JSON: an int64 if it has neither fraction nor exponent,
// and otherwise a float64. Whoever writes no type does not expect that digits are lost, so a number
// that neither can hold is an error, which shows with assign how to write it with a type.
func parseNumber(text string, assign func(typ string) string) (rhumb.FieldValue, error) {
	whole := !strings.ContainsAny(text, ".eE")
	if whole {
		if v, err := rhumb.ParseField(rhumb.FieldInt64, text); err == nil {
			return v, nil
		}
	}
	asText := assign(rhumb.FieldString.String())
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return rhumb.FieldValue{}, rhumb.Ef(opFields, rhumb.InvalidArgument, "%s is larger than any float64; write %s to keep it as text", briefNumber(text), asText)
	case whole:
		return rhumb.FieldValue{}, rhumb.Ef(opFields, rhumb.InvalidArgument, "%s has more than the 64 bits of an int64; write %s to round it, or %s to keep its digits",
			briefNumber(text), assign(rhumb.FieldFloat64.String()), asText)
	// Only a number whose digits are all 0 is 0.
	case f == 0 && strings.ContainsAny(digitsOf(text), "123456789"):
		return rhumb.FieldValue{}, rhumb.Ef(opFields, rhumb.InvalidArgument, "%s is smaller than any float64 except 0; write %s to store 0, or %s to keep its digits",
			briefNumber(text), assign(rhumb.FieldFloat64.String()), asText)
	}
	return rhumb.Float64Field(f), nil
}

// digitsOf returns a number without its exponent.
func digitsOf(number string) string {
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		return number[:i]
	}
	return number
}

// briefDigits bounds the digits of a number in an error.
const briefDigits = 40

// briefNumber returns a number for an error.
func briefNumber(text string) string {
	if len(text) > briefDigits {
		return text[:briefDigits] + "…"
	}
	return text
}

// parseFieldsJSON parses fields as -o json prints them, each with its original type (see
// inspect.Fields): {"lat","lon"} is a point, {"min","max"} is a box, and a number with a fraction
// or an exponent is a float64. Times and bytes are strings in JSON, so their key is FIELD:TYPE.
func parseFieldsJSON(text []byte) (rhumb.Record, error) {
	// Without this, the error would be "EOF".
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, rhumb.E(opFields, rhumb.InvalidArgument, "the JSON object with the fields is empty; write {} for a record without fields")
	}
	var members map[string]json.RawMessage
	if err := decodeStrict(text, &members); err != nil {
		return nil, rhumb.Ef(opFields, rhumb.InvalidArgument, "fields: %s", rhumb.Message(err))
	}
	var fields []rhumb.Field
	for key, raw := range members {
		// The suffix :TYPE of a key is needed only where JSON has no type of its own.
		name, typ, typed := cutType(key)
		v, err := parseJSONValue(name, raw, typ, typed)
		if err != nil {
			return nil, rhumb.Ef(opFields, rhumb.InvalidArgument, "%s: %s", name, exit.Describe(err).Message)
		}
		fields = append(fields, rhumb.Field{Name: name, Value: v})
	}
	return rhumb.NewRecord(fields...)
}

// parseJSONValue parses the value of the field name. raw is valid JSON, so its first byte determines
// the type.
func parseJSONValue(name string, raw json.RawMessage, typ string, typed bool) (rhumb.FieldValue, error) {
	text := string(raw)
	// Text in quotes is decoded first, so that escapes in it are gone before its type is applied.
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return rhumb.FieldValue{}, err
		}
		if !typed {
			return rhumb.StringField(text), nil
		}
	}
	switch {
	// The text of a JSON string may be null, too; the first byte distinguishes them.
	case text == "null" && raw[0] == 'n':
		return rhumb.FieldValue{}, nil
	case typed && raw[0] == '{':
		return parseJSONTyped(raw, typ)
	case typed:
		return parseValue("", typ, true, text, "")
	case raw[0] == 't' || raw[0] == 'f':
		return rhumb.BoolField(raw[0] == 't'), nil
	case raw[0] == '{':
		return parseJSONPlace(raw)
	// Values are scalars, points and boxes; the format of records has no lists.
	case raw[0] == '[':
		return rhumb.FieldValue{}, rhumb.E(opFields, rhumb.InvalidArgument, "a field cannot hold a list; store it as text")
	}
	return parseNumber(text, func(typ string) string { return strconv.Quote(name+":"+typ) + ":" + briefNumber(text) })
}

// parseJSONTyped parses an object under FIELD:TYPE: a point, a box, or {"bytes":"0x…"} for a string
// that is not valid UTF-8.
func parseJSONTyped(raw json.RawMessage, typ string) (rhumb.FieldValue, error) {
	var text struct{ Bytes *string }
	if typ == rhumb.FieldString.String() && decodeStrict(raw, &text) == nil && text.Bytes != nil {
		v, err := rhumb.ParseField(rhumb.FieldBytes, *text.Bytes)
		return rhumb.StringField(v.Text()), err
	}
	// An object under another type must be a place of exactly this type.
	v, err := parseJSONPlace(raw)
	if err == nil && v.Kind().String() != typ {
		err = rhumb.Ef(opFields, rhumb.InvalidArgument, "the value is a %s", v.Kind())
	}
	return v, err
}

// parseJSONPlace parses a point or a box.
func parseJSONPlace(raw json.RawMessage) (rhumb.FieldValue, error) {
	// Pointers distinguish a missing coordinate from one that is 0.
	var point struct{ Lat, Lon *float64 }
	if err := decodeStrict(raw, &point); err == nil && point.Lat != nil && point.Lon != nil {
		v := rhumb.PointField(rhumb.Point{Lat: *point.Lat, Lon: *point.Lon})
		return v, v.Validate()
	}
	var box struct{ Min, Max *inspect.Place }
	if err := decodeStrict(raw, &box); err == nil && box.Min != nil && box.Max != nil {
		v := rhumb.BoxField(rhumb.Box{Min: rhumb.Point(*box.Min), Max: rhumb.Point(*box.Max)})
		// Validate rejects coordinates that are out of bounds.
		return v, v.Validate()
	}
	return rhumb.FieldValue{}, rhumb.E(opFields, rhumb.InvalidArgument, `an object has to be a point, {"lat","lon"}, or a box, {"min":{…},"max":{…}}`)
}

// decodeStrict decodes exactly one JSON document and rejects unknown members, so that a misspelt
// one is not ignored, and a name that an object has twice: the decoder would keep the last one only.
func decodeStrict(text []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	// A second document on the same line is most likely a missing line break.
	if _, err := dec.Token(); err != io.EOF {
		return rhumb.E(opFields, rhumb.InvalidArgument, "there is text after the JSON document")
	}
	return checkNames(text)
}

// checkNames rejects valid JSON in which an object has a name twice.
func checkNames(text []byte) error {
	// open holds the names of each object around the present token, and nil for each list.
	var open []map[string]bool
	// atName is set where an object continues with a name.
	atName := false
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber() // a number may be too large for a float64
	for {
		token, err := dec.Token()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'):
			open, atName = append(open, map[string]bool{}), true
			continue
		case json.Delim('['):
			open = append(open, nil)
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		default:
			if name, ok := token.(string); ok && atName {
				names := open[len(open)-1]
				if names[name] {
					return rhumb.Ef(opFields, rhumb.InvalidArgument, "%q appears twice in one object; write each name once", name)
				}
				names[name], atName = true, false
				continue
			}
		}
		// A value is complete, or a list begins.
		atName = len(open) > 0 && open[len(open)-1] != nil
	}
}

// valueFlags select the value that a put, insert or patch writes, if it is not FIELD=VALUE
// arguments.
type valueFlags struct {
	// json, text and file are the texts of the flags of the same names.
	json, text, file string
	// set is that of the command. A flag may be given with an empty text.
	set *pflag.FlagSet
}

// register adds the flags to a command. Without opaque, only --json is there: a patch changes fields and needs a record.
func (f *valueFlags) register(c *cobra.Command, opaque bool) {
	f.set = c.Flags()
	c.Flags().StringVar(&f.json, "json", "", `fields as a JSON object; "-" reads it from standard input`)
	if opaque {
		c.Flags().StringVar(&f.text, "text", "", "store this text, without fields")
		c.Flags().StringVar(&f.file, "file", "", `store the bytes of this file, without fields; "-" is standard input`)
	}
}

// encode returns the value to store.
func (f valueFlags) encode(in inputs, assignments []string, locationField string) ([]byte, error) {
	given := min(len(assignments), 1)
	for _, name := range []string{"json", "text", "file"} {
		// The empty text is a value.
		if f.set.Changed(name) {
			given++
		}
	}
	// No value at all is an error, too: a put without a value is most likely an accident.
	if given != 1 {
		return nil, rhumb.E(opFields, rhumb.InvalidArgument, "write the value in exactly one way: FIELD=VALUE …, --json, --text or --file")
	}
	// Opaque values keep their bytes and have no fields.
	switch {
	case f.set.Changed("text"):
		return rhumb.EncodeOpaque(nil, []byte(f.text)), nil
	case f.set.Changed("file"):
		payload, err := in.readFile(f.file, rhumb.ValueSizeMax)
		return rhumb.EncodeOpaque(nil, payload), err
	}
	record, err := f.parseRecord(in, assignments, locationField)
	if err != nil {
		return nil, err
	}
	return rhumb.EncodeRecord(nil, record), nil
}

// parseRecord returns the record of --json or, without that flag, of the assignments.
func (f valueFlags) parseRecord(in inputs, assignments []string, locationField string) (rhumb.Record, error) {
	if !f.set.Changed("json") {
		return parseAssignments(assignments, locationField)
	}
	text := []byte(f.json)
	// The flag holds the fields themselves unless it is "-".
	if f.json == "-" {
		var err error
		if text, err = in.readFile("-", rhumb.BatchSizeMax); err != nil {
			return nil, err
		}
	}
	return parseFieldsJSON(text)
}
