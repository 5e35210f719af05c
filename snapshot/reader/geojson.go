package reader

import (
	"bufio"
	"encoding/json"
	"io"
	"iter"
	"strconv"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// WriteGeoJSON writes items as a FeatureCollection (RFC 7946), for example the items of a query:
//
//	err := t.WriteGeoJSON(w, t.BBox(box))
//
// The id of a feature is the record's key. Its geometry is a point, a polygon, two polygons if the
// box crosses the antimeridian, or null. Its properties are the fields of the record without the
// table's location field. Opaque values have the property "value", in which bytes that are not
// UTF-8 are replaced. WriteGeoJSON returns the number of features written.
func (t *Table) WriteGeoJSON(w io.Writer, items iter.Seq2[Item, error]) (n int, err error) {
	const op rhumb.Op = "reader.Table.WriteGeoJSON"
	out := bufio.NewWriter(w)
	_, _ = out.WriteString(`{"type":"FeatureCollection","features":[`) // Flush reports a failure
	for it, err := range items {
		if err != nil {
			return n, err
		}
		feature, err := t.encodeFeature(&it)
		if err != nil {
			return n, rhumb.Wrap(op, err)
		}
		// The comma goes before each feature except the first, so that the number of items need not
		// be known.
		if n > 0 {
			_ = out.WriteByte(',') // as above
		}
		_, _ = out.WriteString("\n")
		if _, err := out.Write(feature); err != nil {
			return n, rhumb.Wrap(op, err)
		}
		n++
	}
	_, _ = out.WriteString("\n]}\n") // as above
	return n, rhumb.Wrap(op, out.Flush())
}

// feature is a GeoJSON feature.
type feature struct {
	Type       string         `json:"type"`
	ID         any            `json:"id"`
	Geometry   *geometry      `json:"geometry"`
	Properties map[string]any `json:"properties"`
}

// geometry is a GeoJSON geometry.
type geometry struct {
	Type        string `json:"type"`
	Coordinates any    `json:"coordinates"`
}

// encodeFeature returns the feature of an item.
func (t *Table) encodeFeature(it *Item) ([]byte, error) {
	f := feature{Type: "Feature", ID: it.Number}
	if t.t.KeyKind == format.KeyName {
		f.ID = rhumb.NameString(it.Name)
	} else if it.Number > 1<<53 { // more than a JavaScript number holds
		f.ID = strconv.FormatUint(it.Number, 10)
	}
	if it.HasBox {
		f.Geometry = boxGeometry(it.Box)
	}
	var err error
	if f.Properties, err = t.propertiesOf(it.Value); err != nil {
		return nil, err
	}
	return json.Marshal(f)
}

// propertiesOf returns the properties for a stored value.
func (t *Table) propertiesOf(value []byte) (map[string]any, error) {
	if payload, ok := rhumb.DecodeOpaque(value); ok {
		return map[string]any{"value": string(payload)}, nil
	}
	record, err := rhumb.DecodeRecord(value)
	if err != nil {
		return nil, err
	}
	out := make(map[string]any, len(record))
	for _, f := range record {
		// The location is the geometry already.
		if f.Name != t.t.LocationField {
			out[f.Name] = f.Value.JSON()
		}
	}
	return out, nil
}

// position is longitude and latitude, in GeoJSON's order.
type position [2]json.Number

// formatDegrees returns units of 1e-7 degrees as an exact decimal number.
func formatDegrees(units int32) json.Number {
	return json.Number(strconv.FormatFloat(float64(units)/format.UnitsPerDegree, 'f', -1, 64))
}

// boxGeometry returns the geometry of a box: a point if it has no extent.
func boxGeometry(b format.Box) *geometry {
	if b.MinX == b.MaxX && b.MinY == b.MaxY {
		return &geometry{"Point", position{formatDegrees(b.MinX), formatDegrees(b.MinY)}}
	}
	parts, n := b.Split() // RFC 7946, section 3.1.9: cut at the antimeridian
	if n == 1 {
		return &geometry{"Polygon", outerRing(parts[0])}
	}
	return &geometry{"MultiPolygon", [][][]position{outerRing(parts[0]), outerRing(parts[1])}}
}

// outerRing returns the outer ring of a plain box, counterclockwise as RFC 7946 requires.
func outerRing(b format.Box) [][]position {
	west, south, east, north := formatDegrees(b.MinX), formatDegrees(b.MinY), formatDegrees(b.MaxX), formatDegrees(b.MaxY)
	return [][]position{{{west, south}, {east, south}, {east, north}, {west, north}, {west, south}}}
}
