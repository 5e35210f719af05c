package reader_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

func TestWriteGeoJSON(t *testing.T) {
	w := newWorld(t, 1, snapshot.TableSpec{KeyKind: format.KeyName, Ordered: true, Spatial: true, LocationField: "location"}, reader.Options{})
	record, err := rhumb.NewRecord(
		rhumb.Field{Name: "bytes", Value: rhumb.BytesField([]byte{1, 255})}, rhumb.Field{Name: "fast", Value: rhumb.BoolField(true)},
		rhumb.Field{Name: "location", Value: rhumb.PointField(rhumb.Point{Lat: 52.5, Lon: 13.4})}, rhumb.Field{Name: "n", Value: rhumb.Int64Field(-7)},
		rhumb.Field{Name: "nan", Value: rhumb.Float64Field(math.NaN())}, rhumb.Field{Name: "speed", Value: rhumb.Float64Field(1.5)},
		rhumb.Field{Name: "text", Value: rhumb.StringField(`"quoted"`)}, rhumb.Field{Name: "time", Value: rhumb.TimestampField(time.Unix(1e9, 0))},
	)
	check(t, err)
	c := w.pub.Begin()
	put := func(name string, value []byte, box *rhumb.Box) {
		rec := snapshot.Record{Key: format.Key{Name: []byte(name)}, Value: value}
		if box != nil {
			rec.Box, rec.HasBox = format.MakeBox(*box), true
		}
		check(t, c.Put(w.table, rec))
	}
	point := rhumb.Point{Lat: 52.5, Lon: 13.4}
	put("g1", rhumb.EncodeRecord(nil, record), &rhumb.Box{Min: point, Max: point})
	put("g2", rhumb.EncodeOpaque(nil, []byte("opaque")), &rhumb.Box{Min: rhumb.Point{Lat: -1, Lon: 179}, Max: rhumb.Point{Lat: 1, Lon: -179.5}})
	put("g3", rhumb.EncodeOpaque(nil, nil), &rhumb.Box{Max: rhumb.Point{Lat: 0.0000001, Lon: 2}})
	put("g4", rhumb.EncodeOpaque(nil, nil), nil)
	_, err = c.Publish(snapshot.CommitInfo{})
	check(t, err)
	v := w.mustLock()
	defer v.Unlock()
	tb := w.tableOf(v)

	var out bytes.Buffer
	n, err := tb.WriteGeoJSON(&out, tb.Scan([]byte("g")))
	check(t, err)
	want := `{"type":"FeatureCollection","features":[
{"type":"Feature","id":"g1","geometry":{"type":"Point","coordinates":[13.4,52.5]},"properties":{"bytes":"0x01ff","fast":true,"n":-7,"nan":"NaN","speed":1.5,"text":"\"quoted\"","time":"2001-09-09T01:46:40Z"}},
{"type":"Feature","id":"g2","geometry":{"type":"MultiPolygon","coordinates":[[[[179,-1],[180,-1],[180,1],[179,1],[179,-1]]],[[[-180,-1],[-179.5,-1],[-179.5,1],[-180,1],[-180,-1]]]]},"properties":{"value":"opaque"}},
{"type":"Feature","id":"g3","geometry":{"type":"Polygon","coordinates":[[[0,0],[2,0],[2,0.0000001],[0,0.0000001],[0,0]]]},"properties":{"value":""}},
{"type":"Feature","id":"g4","geometry":null,"properties":{"value":""}}
]}
`
	if out.String() != want || n != 4 {
		t.Errorf("%d features:\n%s\nwant\n%s", n, out.String(), want)
	}
	if !json.Valid(out.Bytes()) {
		t.Error("it is no JSON")
	}
	if _, err := tb.WriteGeoJSON(failing{}, tb.Scan(nil)); !errors.Is(err, errFull) {
		t.Errorf("a writer that fails: %v", err)
	}
	v.Unlock()
	if _, err := tb.WriteGeoJSON(&out, tb.Scan(nil)); !errors.Is(err, reader.ErrUnlocked) {
		t.Errorf("an unlocked view: %v", err)
	}
}

var errFull = errors.New("full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

// TestGeoJSONNumbers writes numbers that JavaScript cannot hold as strings.
func TestGeoJSONNumbers(t *testing.T) {
	w := simple(t, reader.Options{})
	w.put(1<<60, string(rhumb.EncodeOpaque(nil, []byte("x"))))
	v := w.mustLock()
	defer v.Unlock()
	tb := w.tableOf(v)
	it, err := tb.GetUint64(1 << 60)
	check(t, err)
	var out strings.Builder
	_, err = tb.WriteGeoJSON(&out, func(yield func(reader.Item, error) bool) { yield(it, nil) })
	check(t, err)
	if !strings.Contains(out.String(), `"id":"1152921504606846976"`) {
		t.Errorf("got %s", out.String())
	}
}
