package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// Record is a record of an image as tools print it. The names of its JSON fields are stable.
type Record struct {
	Table string `json:"table"`
	// Key is a number, or a name as rhumb.NameString writes it.
	Key string `json:"key"`
	// ShardKey is set for a name that the server assigned: home and sequence.
	ShardKey string `json:"shard_key,omitempty"`
	Version  uint64 `json:"version"`
	HLC      string `json:"hlc,omitempty"`
	Expiry   string `json:"expiry,omitempty"`
	Box      *Box   `json:"box,omitempty"`
	// Distance is in metres. Queries that have a point set it.
	Distance *float64 `json:"distance_m,omitempty"`
	// LacksRegions names the regions whose records the image does not have. Queries that look at
	// many records set it.
	LacksRegions []string `json:"lacks_regions,omitempty"`
	// One of the three: a record's fields, text, or bytes as 0x….
	Fields map[string]any `json:"fields,omitempty"`
	Text   *string        `json:"text,omitempty"`
	Bytes  string         `json:"bytes,omitempty"`

	// Stored holds the fields in their order.
	Stored rhumb.Record `json:"-"`
}

// Box is a box in degrees, in GeoJSON's order. West is greater than east if the box crosses the
// antimeridian.
type Box struct {
	West  float64 `json:"west"`
	South float64 `json:"south"`
	East  float64 `json:"east"`
	North float64 `json:"north"`
}

// Describe returns an item as tools print it. measured reports whether the item has a distance. The
// result does not alias the image.
func Describe(t format.Table, it *reader.Item, measured bool) (Record, error) {
	r := Record{Table: t.Name, Version: it.Version}
	// A shard key is shown in both forms: as the bytes that a get accepts, and as home and
	// sequence.
	switch {
	case t.KeyKind == format.KeyUint64:
		r.Key = strconv.FormatUint(it.Number, 10)
	case it.ShardKey:
		k := shardKeyOf(it.Name)
		r.Key, r.ShardKey = fmt.Sprintf("0x%x", it.Name), fmt.Sprintf("%s/%d", k.Home, k.Sequence)
	default:
		r.Key = rhumb.NameString(it.Name)
	}
	// Fields that a record does not have are left out of the JSON instead of shown as zero.
	if it.HLC != 0 {
		r.HLC = it.HLC.String()
	}
	if it.Expiry != 0 {
		r.Expiry = time.Unix(0, it.Expiry).UTC().Format(time.RFC3339Nano)
	}
	if it.HasBox {
		b := it.Box.Degrees()
		r.Box = &Box{b.Min.Lon, b.Min.Lat, b.Max.Lon, b.Max.Lat}
	}
	if measured {
		d := it.Distance
		r.Distance = &d
	}
	return r, r.describeValue(t, it.Value)
}

// describeValue fills in the value. It does not fail if the value cannot be decoded: whoever
// inspects an image wants to see damaged bytes as well.
func (r *Record) describeValue(t format.Table, stored []byte) error {
	if t.Name == format.PositionsTable {
		// The table of positions has values of its own format.
		if p, ok := format.DecodePosition(stored); ok {
			r.Fields = map[string]any{"epoch": uint64(p.Epoch), "seq": p.Seq, "hlc": p.HLC.String()}
			return nil
		}
	}
	if payload, ok := rhumb.DecodeOpaque(stored); ok {
		// Valid UTF-8 is shown as text. Anything else is shown as bytes, because JSON would replace
		// invalid sequences.
		if s := string(payload); utf8.ValidString(s) {
			r.Text = &s
		} else {
			r.Bytes = fmt.Sprintf("0x%x", payload)
		}
		return nil
	}
	var err error
	// The value is copied because the decoded fields alias it, and the result must outlive the
	// view.
	if r.Stored, err = rhumb.DecodeRecord(append([]byte(nil), stored...)); err != nil {
		r.Bytes = fmt.Sprintf("0x%x", stored)
		return nil // a damaged value is shown as bytes
	}
	r.Fields = Fields(r.Stored)
	return nil
}

// Fields returns the JSON object of a record's fields, from which the record can be read back with
// its types. A point is {"lat","lon"} and a box {"min","max"}. A float64 always has a fraction or
// an exponent, which an int64 never has. If the value does not show its type, the key does:
// "NAME:TYPE", as for bytes, for timestamps, and for names that contain a colon. A reader of the
// JSON splits such a key at its last colon.
func Fields(r rhumb.Record) map[string]any {
	out := make(map[string]any, len(r))
	for _, f := range r {
		// A name with a colon always gets its type appended, so that the last colon of such a key
		// precedes the type.
		value, tells := fieldOf(f.Value)
		key := f.Name
		if !tells || strings.ContainsRune(key, ':') {
			key += ":" + f.Value.Kind().String()
		}
		out[key] = value
	}
	return out
}

// Place is a point as JSON shows it.
type Place struct {
	Lat float64 `json:"lat"`
	Lon float64 `json:"lon"`
}

// Area is a box as JSON shows it: its south-western and north-eastern corners.
type Area struct {
	Min Place `json:"min"`
	Max Place `json:"max"`
}

// fieldOf returns a field as JSON can hold it, and reports whether the result shows the type.
func fieldOf(v rhumb.FieldValue) (value any, tells bool) {
	switch v.Kind() {
	case rhumb.FieldPoint:
		p, _ := v.Point()
		return Place(p), true
	case rhumb.FieldBox:
		b, _ := v.Box()
		return Area{Place(b.Min), Place(b.Max)}, true
	case rhumb.FieldFloat64:
		f := v.Float64()
		// f-f is 0 for every number except NaN and the infinities, which JSON cannot hold as
		// numbers.
		return float(f), f-f == 0
	case rhumb.FieldString:
		if !utf8.ValidString(v.Text()) {
			return map[string]string{"bytes": fmt.Sprintf("0x%x", v.Text())}, false
		}
		return v.Text(), true
	case rhumb.FieldBytes, rhumb.FieldTimestamp:
		return v.String(), false
	}
	return v.JSON(), true
}

// float is a number that cannot be taken for an int64.
type float float64

// MarshalJSON writes a number with a fraction or an exponent; NaN and the infinities, which JSON
// lacks, as text.
func (f float) MarshalJSON() ([]byte, error) {
	// The difference is 0 for every number except NaN and the infinities.
	if f-f != 0 {
		return strconv.AppendQuote(nil, strconv.FormatFloat(float64(f), 'g', -1, 64)), nil
	}
	b, err := json.Marshal(float64(f))
	if !bytes.ContainsAny(b, ".e") {
		b = append(b, ".0"...)
	}
	return b, err
}
