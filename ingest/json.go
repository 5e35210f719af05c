package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// jsonDecoder decodes NDJSON. If a key appears twice, the last value counts.
type jsonDecoder struct{}

const opJSON rhumb.Op = "ingest.json"

func (jsonDecoder) decode(line []byte, dst []pair) ([]pair, bool, error) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return dst, true, nil
	}
	if err := checkText(opJSON, line); err != nil {
		return dst, false, err
	}
	// Reported here, because the message of Unmarshal would name Go types.
	if line[0] != '{' {
		return dst, false, rhumb.Ef(opJSON, rhumb.InvalidArgument, "column 1: want an object, found %q", line[0])
	}
	// RawMessage keeps the text of numbers, which float64 would round.
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return dst, false, rhumb.Ef(opJSON, rhumb.InvalidArgument, "column %d: %v", syntax.Offset, err)
		}
		return dst, false, rhumb.Ef(opJSON, rhumb.InvalidArgument, "%v", err)
	}
	if len(members) > pairsMax {
		return dst, false, rhumb.Ef(opJSON, rhumb.TooLarge, "the line has more than %d pairs", pairsMax)
	}
	for key, raw := range members {
		if key == "" {
			return dst, false, rhumb.E(opJSON, rhumb.InvalidArgument, "the line has an empty key")
		}
		p, err := jsonPair(key, raw)
		if err != nil {
			return dst, false, err
		}
		dst = append(dst, p)
	}
	// A map has no order, but lines with the same keys must find the same plan.
	slices.SortFunc(dst, func(a, b pair) int { return bytes.Compare(a.key, b.key) })
	return dst, false, nil
}

// jsonPair returns the pair of one member of an object.
func jsonPair(key string, raw json.RawMessage) (pair, error) {
	p := pair{key: []byte(key), value: raw}
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return p, rhumb.Ef(opJSON, rhumb.InvalidArgument, "key %q: %v", key, err)
		}
		p.value = []byte(s)
	case 't', 'f':
		p.kind = boolValue
	case 'n':
		p.kind = nullValue
		// Objects and arrays stay text.
	case '{', '[':
	default:
		p.kind = numberValue
	}
	return p, nil
}
