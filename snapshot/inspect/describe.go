package inspect

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// Record is a record of an image as tools print it. The names of its JSON are stable.
type Record struct {
	Table string `json:"table"`
	// Key is a number, or a name as rhumb.NameString writes it.
	Key string `json:"key"`
	// ShardKey tells the name that the server gave: home and sequence.
	ShardKey string `json:"shard_key,omitempty"`
	Version  uint64 `json:"version"`
	HLC      string `json:"hlc,omitempty"`
	Expiry   string `json:"expiry,omitempty"`
	Box      *Box   `json:"box,omitempty"`
	// Distance is in metres, of queries that have a point.
	Distance *float64 `json:"distance_m,omitempty"`
	// One of the three: a record's fields, text, or bytes as 0x….
	Fields map[string]any `json:"fields,omitempty"`
	Text   *string        `json:"text,omitempty"`
	Bytes  string         `json:"bytes,omitempty"`

	// Stored are the fields in their order.
	Stored rhumb.Record `json:"-"`
}

// Box is a box in degrees as GeoJSON orders it; west is greater than east when it crosses the antimeridian.
type Box struct {
	West  float64 `json:"west"`
	South float64 `json:"south"`
	East  float64 `json:"east"`
	North float64 `json:"north"`
}

// Describe makes a record of an item; measured says that its distance counts. What it gives does not alias the image.
func Describe(t format.Table, it *reader.Item, measured bool) (Record, error) {
	r := Record{Table: t.Name, Version: it.Version}
	switch {
	case t.KeyKind == format.KeyUint64:
		r.Key = strconv.FormatUint(it.Number, 10)
	case it.ShardKey:
		k := shardKeyOf(it.Name)
		r.Key, r.ShardKey = fmt.Sprintf("0x%x", it.Name), fmt.Sprintf("%s/%d", k.Home, k.Sequence)
	default:
		r.Key = rhumb.NameString(it.Name)
	}
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
	return r, r.value(t, it.Value)
}

func (r *Record) value(t format.Table, stored []byte) error {
	if t.Name == format.PositionsTable {
		if p, ok := format.DecodePosition(stored); ok {
			r.Fields = map[string]any{"epoch": uint64(p.Epoch), "seq": p.Seq, "hlc": p.HLC.String()}
			return nil
		}
	}
	if payload, ok := rhumb.DecodeOpaque(stored); ok {
		if s := string(payload); utf8.ValidString(s) {
			r.Text = &s
		} else {
			r.Bytes = fmt.Sprintf("0x%x", payload)
		}
		return nil
	}
	var err error
	if r.Stored, err = rhumb.DecodeRecord(append([]byte(nil), stored...)); err != nil {
		r.Bytes = fmt.Sprintf("0x%x", stored)
		return nil // whoever looks into an image wants to see it all the same
	}
	r.Fields = map[string]any{}
	for _, f := range r.Stored {
		r.Fields[f.Name] = fieldOf(f.Value)
	}
	return nil
}

// fieldOf gives a field as JSON can hold it, a point in its parts.
func fieldOf(v rhumb.FieldValue) any {
	if p, ok := v.Point(); ok {
		return map[string]float64{"lat": p.Lat, "lon": p.Lon}
	}
	return v.JSON()
}
