package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// opFields is the operation of errors about fields that users wrote.
const opFields rhumb.Op = "rhumb.fields"

// parseAssignments parses FIELD=VALUE and FIELD:TYPE=VALUE. Without a type, the location field of
// the table is a point or a box, numbers, true and false are numbers and bools, and everything else
// is text.
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
	case json.Valid([]byte(text)):
		return numberOrText(text), nil
	}
	return rhumb.StringField(text), nil
}

// numberOrText parses text that is valid JSON: a number if it is one, and an int64 if it has
// neither fraction nor exponent.
func numberOrText(text string) rhumb.FieldValue {
	// An int64 comes first, so that large integers keep all their digits.
	if v, err := rhumb.ParseField(rhumb.FieldInt64, text); err == nil {
		return v
	}
	if v, err := rhumb.ParseField(rhumb.FieldFloat64, text); err == nil {
		return v
	}
	return rhumb.StringField(text)
}

// parseFieldsJSON parses fields as -o json prints them, each with its original type (see
// inspect.Fields): {"lat","lon"} is a point, {"min","max"} is a box, and a number with a fraction
// or an exponent is a float64. Times and bytes are strings in JSON, so their key is FIELD:TYPE.
func parseFieldsJSON(text []byte) (rhumb.Record, error) {
	var members map[string]json.RawMessage
	if err := decodeStrict(text, &members); err != nil {
		return nil, rhumb.Ef(opFields, rhumb.InvalidArgument, "fields: %v", err)
	}
	var fields []rhumb.Field
	for key, raw := range members {
		// The suffix :TYPE of a key is needed only where JSON has no type of its own.
		name, typ, typed := cutType(key)
		v, err := parseJSONValue(raw, typ, typed)
		if err != nil {
			return nil, rhumb.Ef(opFields, rhumb.InvalidArgument, "%s: %s", name, exit.Describe(err).Message)
		}
		fields = append(fields, rhumb.Field{Name: name, Value: v})
	}
	return rhumb.NewRecord(fields...)
}

// parseJSONValue parses one field. raw is valid JSON, so its first byte determines the type.
func parseJSONValue(raw json.RawMessage, typ string, typed bool) (rhumb.FieldValue, error) {
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
	return numberOrText(text), nil
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
// one is not ignored.
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
	return nil
}

// valueFlags select the value that a put, insert or patch writes, if it is not FIELD=VALUE
// arguments.
type valueFlags struct {
	// json, text and file are the texts of the flags of the same names.
	json, text, file string
}

// register adds the flags to a command. Without opaque, only --json is there: a patch changes fields and needs a record.
func (f *valueFlags) register(c *cobra.Command, opaque bool) {
	c.Flags().StringVar(&f.json, "json", "", `fields as a JSON object; "-" reads it from standard input`)
	if opaque {
		c.Flags().StringVar(&f.text, "text", "", "store this text, without fields")
		c.Flags().StringVar(&f.file, "file", "", `store the bytes of this file, without fields; "-" is standard input`)
	}
}

// encode returns the value to store.
func (f valueFlags) encode(in inputs, assignments []string, locationField string) ([]byte, error) {
	given := 0
	for _, is := range []bool{len(assignments) > 0, f.json != "", f.text != "", f.file != ""} {
		if is {
			given++
		}
	}
	// No value at all is an error, too: a put without a value is most likely an accident.
	if given != 1 {
		return nil, rhumb.E(opFields, rhumb.InvalidArgument, "write the value in exactly one way: FIELD=VALUE …, --json, --text or --file")
	}
	// Opaque values keep their bytes and have no fields.
	switch {
	case f.text != "":
		return rhumb.EncodeOpaque(nil, []byte(f.text)), nil
	case f.file != "":
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
	if f.json == "" {
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
