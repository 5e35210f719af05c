package main

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/paulmach/orb"
	"github.com/paulmach/orb/encoding/mvt"
	"github.com/paulmach/orb/geojson"
	"github.com/paulmach/orb/maptile"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// mvtVersion is the version of the Vector Tile Specification.
const mvtVersion = 2

// serveMVT writes a table, or all layers, as a Mapbox Vector Tile.
func serveMVT(w http.ResponseWriter, v reader.View, name string, t tile) error {
	names := []string{name}
	if name == "" {
		names = names[:0]
		for _, l := range layers {
			// A table that no node publishes is left out.
			if _, err := v.Table(l.table); err == nil && t.z >= l.from {
				names = append(names, l.table)
			}
		}
	}
	var out mvt.Layers
	for _, name := range names {
		table, err := v.Table(name)
		if err != nil {
			return err
		}
		l, err := vectorLayer(&table, name, t)
		if err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
		out = append(out, l)
	}
	body, err := mvt.Marshal(out)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/vnd.mapbox-vector-tile")
	_, err = w.Write(body)
	return err
}

// vectorLayer returns the features of a table in a tile and its margin, clipped there, in the grid
// of the tile (mvt.DefaultExtent units). It leaves out lines and areas smaller than one unit.
func vectorLayer(table *reader.Table, name string, t tile) (*mvt.Layer, error) {
	features := geojson.NewFeatureCollection()
	var failed error
	err := table.VisitBBox(t.boxWithMargin(margin), func(it *reader.Item) bool {
		var f *geojson.Feature
		f, failed = vectorFeature(it)
		features.Append(f)
		return failed == nil
	})
	if err := cmp.Or(failed, err); err != nil {
		return nil, err
	}
	l := mvt.NewLayer(name, features)
	l.Version = mvtVersion
	l.ProjectToTile(maptile.New(uint32(t.x), uint32(t.y), maptile.Zoom(t.z)))
	// Clipping at the margin keeps lines and symbols of neighbouring tiles continuous.
	l.Clip(orb.Bound{Max: orb.Point{mvt.DefaultExtent, mvt.DefaultExtent}}.Pad(margin * mvt.DefaultExtent / tileSize))
	l.RemoveEmpty(1, 1)
	return l, nil
}

// vectorFeature returns a record as a feature. A numeric key is the ID of the feature, any other
// name a property.
func vectorFeature(it *reader.Item) (*geojson.Feature, error) {
	rec, err := rhumb.DecodeRecord(it.Value)
	if err != nil {
		return nil, err
	}
	f := geojson.NewFeature(shapeOf(rec, it))
	if it.Name == nil {
		f.ID = it.Number
	} else {
		f.Properties["name"] = rhumb.NameString(it.Name)
	}
	for _, field := range rec {
		switch field.Value.Kind() {
		case rhumb.FieldNull:
		// The geometry contains these.
		case rhumb.FieldPoint, rhumb.FieldBox:
		default:
			f.Properties[field.Name] = field.Value.JSON()
		}
	}
	return f, nil
}

// shapeOf returns the geometry of a record: the line of a road, or the point or box of the record.
func shapeOf(rec rhumb.Record, it *reader.Item) orb.Geometry {
	if a, b, ok := roadEnds(rec); ok {
		return orb.LineString{{a.Lon, a.Lat}, {b.Lon, b.Lat}}
	}
	// A box across the antimeridian has two parts.
	parts, n := it.Box.Split()
	var out orb.MultiPolygon
	for _, part := range parts[:n] {
		b := part.Degrees()
		bound := orb.Bound{Min: orb.Point{b.Min.Lon, b.Min.Lat}, Max: orb.Point{b.Max.Lon, b.Max.Lat}}
		// A box without extent is a point.
		if bound.Min == bound.Max {
			return bound.Min
		}
		out = append(out, bound.ToPolygon())
	}
	return out
}
