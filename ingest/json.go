package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// jsonDecoder reads NDJSON. Of a key that stands twice the last value counts.
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
	if line[0] != '{' {
		return dst, false, rhumb.Ef(opJSON, rhumb.InvalidArgument, "column 1: want an object, found %q", line[0])
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return dst, false, rhumb.Ef(opJSON, rhumb.InvalidArgument, "column %d: %v", syntax.Offset, err)
		}
		return dst, false, rhumb.Ef(opJSON, rhumb.InvalidArgument, "%v", err)
	}
	if len(members) > pairsMax {
		return dst, false, rhumb.Ef(opJSON, rhumb.TooLarge, "more than %d pairs", pairsMax)
	}
	for key, raw := range members {
		if key == "" {
			return dst, false, rhumb.E(opJSON, rhumb.InvalidArgument, "a key is empty")
		}
		p, err := jsonPair(key, raw)
		if err != nil {
			return dst, false, err
		}
		dst = append(dst, p)
	}
	slices.SortFunc(dst, func(a, b pair) int { return bytes.Compare(a.key, b.key) })
	return dst, false, nil
}

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
	case '{', '[':
	default:
		p.kind = numberValue
	}
	return p, nil
}
