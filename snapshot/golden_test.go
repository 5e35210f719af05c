package snapshot_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// The golden images are read by every reader, in four languages, and all have to give the answers that a plain model gave
// when the images were made. "go test ./snapshot -run Golden -golden.update" makes both anew.
var goldenUpdate = flag.Bool("golden.update", false, "make the golden images and their answers anew")

const goldenDir = "testdata/golden"

// goldenImages are the names of the images: one as commits left it, one whose shards were rolled in between, and one whose shards
// were rolled once more with the layout of their bases kept, so that these have tombstones, and places that were left.
var goldenImages = []string{"appended", "rolled", "kept"}

// question is a line that every reader's query program understands (see reader/c/query.c), and the lines of its answer.
type question struct {
	Ask    string   `json:"ask"`
	Answer []string `json:"answer"`
}

// ordered reports whether the lines of the answer have an order.
func (q question) ordered() bool {
	switch verb, _, _ := strings.Cut(q.Ask, " "); verb {
	case "bbox", "radius", "polygon", "tables":
		return false
	}
	return true
}

// goldenVersion is a version of a key in the model.
type goldenVersion struct {
	version uint64
	deleted bool
	rec     snapshot.Record
}

// goldenTable is a table of the model: every version of every key.
type goldenTable struct {
	spec snapshot.TableSpec
	at   *snapshot.Table
	keys map[string][]goldenVersion
	base uint64 // the version that its generations show
}

// goldenModel makes an image and remembers what it holds.
type goldenModel struct {
	t        *testing.T
	p        *snapshot.Publisher
	random   *rand.Rand
	tables   []*goldenTable
	commit   *snapshot.Commit
	version  uint64 // of the commit
	closed   rhumb.Timestamp
	event    int64
	records  int
	hlc      rhumb.Timestamp
	position format.Position
}

func (m *goldenModel) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *goldenModel) table(spec snapshot.TableSpec) *goldenTable {
	at, err := m.p.Table(spec)
	m.must(err)
	t := &goldenTable{spec: spec, at: at, keys: map[string][]goldenVersion{}}
	m.tables = append(m.tables, t)
	return t
}

// keyText writes a key as questions have it.
func keyText(k format.Key) string {
	switch {
	case k.ShardKey:
		return fmt.Sprintf("s:%x", k.Name)
	case k.Name != nil:
		return fmt.Sprintf("n:%x", k.Name)
	}
	return strconv.FormatUint(k.Number, 10)
}

func (m *goldenModel) note(t *goldenTable, v goldenVersion) {
	v.version = m.version
	k := keyText(v.rec.Key)
	t.keys[k] = append(t.keys[k], v)
	m.records++
}

func (m *goldenModel) put(t *goldenTable, rec snapshot.Record) {
	m.hlc += 10
	rec.HLC = m.hlc
	m.must(m.commit.Put(t.at, rec))
	m.note(t, goldenVersion{rec: rec})
}

func (m *goldenModel) del(t *goldenTable, key format.Key) {
	m.hlc += 10
	m.must(m.commit.Delete(t.at, key, m.hlc))
	m.note(t, goldenVersion{deleted: true, rec: snapshot.Record{Key: key, HLC: m.hlc}})
}

func (m *goldenModel) begin() {
	m.commit, m.records = m.p.Begin(), 0
	m.version = m.p.Version() + 1
}

func (m *goldenModel) publish(closed rhumb.Timestamp) {
	m.position = format.Position{Epoch: 3, Seq: m.version * 100, HLC: m.hlc}
	m.must(m.commit.Position(rhumb.RangeID{Region: 2, Slot: 17}, m.position))
	m.records++
	m.event = int64(1_700_000_000_000_000_000 + m.version)
	v, err := m.commit.Publish(snapshot.CommitInfo{Closed: closed, Event: m.event})
	m.must(err)
	if v != m.version {
		m.t.Fatalf("version %d, want %d", v, m.version)
	}
	m.closed = max(m.closed, closed)
}

// load replaces a table, which only happens to an empty one here.
func (m *goldenModel) load(t *goldenTable, recs []snapshot.Record) {
	for i := range recs {
		m.hlc += 10
		recs[i].HLC = m.hlc
	}
	m.must(m.commit.Load(t.at, func(yield func(snapshot.Record, error) bool) {
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
	}))
	for _, r := range recs {
		m.note(t, goldenVersion{rec: r})
	}
	t.base = m.version
}

// box makes a box of about so many degrees at a place that is often chosen, so that queries find several.
func (m *goldenModel) box(size float64) format.Box {
	lat, lon := 52+m.random.Float64(), 13+m.random.Float64()
	return format.MakeBox(rhumb.Box{
		Min: rhumb.Point{Lat: lat, Lon: lon},
		Max: rhumb.Point{Lat: lat + size*m.random.Float64(), Lon: lon + size*m.random.Float64()},
	})
}

func (m *goldenModel) point() format.Box {
	return format.MakePoint(rhumb.Point{Lat: -90 + 180*m.random.Float64(), Lon: -180 + 360*m.random.Float64()})
}

// oddBoxes are where mistakes are likely: at the antimeridian, at the poles, over half the world.
var oddBoxes = []rhumb.Box{
	{Min: rhumb.Point{Lat: -18.5, Lon: 179.2}, Max: rhumb.Point{Lat: -16.1, Lon: -179.5}},
	{Min: rhumb.Point{Lat: -17.5, Lon: 179.9}, Max: rhumb.Point{Lat: -17.4, Lon: -179.9}},
	{Min: rhumb.Point{Lat: 10, Lon: 170}, Max: rhumb.Point{Lat: 20, Lon: -170}},
	{Min: rhumb.Point{Lat: 66, Lon: -180}, Max: rhumb.Point{Lat: 70, Lon: -169}},
	{Min: rhumb.Point{Lat: 60, Lon: 160}, Max: rhumb.Point{Lat: 70, Lon: 180}},
	{Min: rhumb.Point{Lat: 85, Lon: -180}, Max: rhumb.Point{Lat: 90, Lon: 180}},
	{Min: rhumb.Point{Lat: -90, Lon: -180}, Max: rhumb.Point{Lat: -89.5, Lon: 180}},
	{Min: rhumb.Point{Lat: 90, Lon: 0}, Max: rhumb.Point{Lat: 90, Lon: 0}},
	{Min: rhumb.Point{Lat: -60, Lon: 20}, Max: rhumb.Point{Lat: 60, Lon: 19}},
	{Min: rhumb.Point{Lat: 0, Lon: 180}, Max: rhumb.Point{Lat: 0, Lon: 180}},
	{Min: rhumb.Point{Lat: 0, Lon: -180}, Max: rhumb.Point{Lat: 0, Lon: -180}},
}

func (m *goldenModel) value(i int) []byte {
	r, err := rhumb.NewRecord(
		rhumb.Field{Name: "area", Value: rhumb.BoxField(rhumb.Box{Min: rhumb.Point{Lat: 1.5, Lon: 2.25}, Max: rhumb.Point{Lat: 3, Lon: 4.125}})},
		rhumb.Field{Name: "at", Value: rhumb.PointField(rhumb.Point{Lat: 52.5, Lon: 13.375})},
		rhumb.Field{Name: "live", Value: rhumb.BoolField(i%2 == 0)},
		rhumb.Field{Name: "name", Value: rhumb.StringField(fmt.Sprintf("Straße %d", i))},
		rhumb.Field{Name: "raw", Value: rhumb.BytesField([]byte{0, byte(i), 255})},
		rhumb.Field{Name: "seen", Value: rhumb.TimestampField(time.UnixMicro(1_700_000_000_000_000 + int64(i)))},
		rhumb.Field{Name: "speed", Value: rhumb.Float64Field(float64(i) * 1.25)},
		rhumb.Field{Name: "trips", Value: rhumb.Int64Field(int64(-i))},
	)
	m.must(err)
	return rhumb.EncodeRecord(nil, r)
}

func number(n uint64) format.Key { return format.Key{Number: n} }
func named(s string) format.Key  { return format.Key{Name: []byte(s)} }
func shardKey(seq uint64) format.Key {
	b := binary.BigEndian.AppendUint32(nil, 2)
	b = binary.BigEndian.AppendUint32(b, 17)
	return format.Key{Name: binary.BigEndian.AppendUint64(b, seq), ShardKey: true}
}

// build makes an image in dir and gives the questions with their answers.
func buildGolden(t *testing.T, dir string, image string) []question {
	p, err := snapshot.Open(snapshot.Config{Dir: dir, AppendRatio: 2, Identity: &format.Root{
		Image: rhumb.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, Seed0: 0x9e3779b97f4a7c15, Seed1: 0xd1b54a32d192ed03,
	}})
	if err != nil {
		t.Fatal(err)
	}
	m := &goldenModel{t: t, p: p, random: rand.New(rand.NewPCG(7, 11)), hlc: 1 << 40}
	cars := m.table(snapshot.TableSpec{ID: 11, Name: "cars", Ordered: true, Spatial: true, Summed: true, Shards: 2, LocationField: "at"})
	places := m.table(snapshot.TableSpec{ID: 12, Name: "places", KeyKind: format.KeyName, Ordered: true, Spatial: true, Shards: 2})
	blobs := m.table(snapshot.TableSpec{ID: 13, Name: "blobs", Shards: 1})
	m.fill(cars, places, blobs)
	m.change(cars, places, blobs)
	if image != "appended" {
		m.roll()
		m.begin() // what the new generations take in addition
		m.put(cars, snapshot.Record{Key: number(1 << 63), Box: m.box(.1), HasBox: true, Value: m.value(9)})
		m.put(cars, snapshot.Record{Key: number(4), Box: m.box(.1), HasBox: true, Value: m.value(10)})
		m.del(places, named("berlin/7"))
		m.publish(0)
	}
	if image == "kept" {
		m.keep(cars, places, blobs)
	}
	questions := m.questions()
	m.must(p.Close())
	return questions
}

func (m *goldenModel) roll() {
	for _, g := range m.tables {
		for shard := range g.spec.Shards {
			m.must(m.p.Roll(g.at, shard))
		}
		g.base = m.p.Version()
	}
}

// keep deletes some keys and writes values of another size before it rolls, and goes on with the same keys then.
func (m *goldenModel) keep(cars, places, blobs *goldenTable) {
	m.begin()
	for _, i := range []uint64{30, 31, 39} {
		m.del(cars, number(i))
		m.put(cars, snapshot.Record{Key: number(i + 20), Box: m.box(.05), HasBox: true, Value: long(300)})
	}
	m.put(cars, snapshot.Record{Key: number(70), Value: m.value(70)}) // it has no box any more
	m.put(cars, snapshot.Record{Key: number(79), Box: m.box(.05), HasBox: true, Value: m.value(79)})
	m.put(cars, snapshot.Record{Key: number(12345), Box: m.box(.05), HasBox: true, Value: m.value(11)})
	m.del(places, named("berlin/11"))
	m.put(places, snapshot.Record{Key: named("berlin/12"), Box: m.box(.02), HasBox: true, Value: long(400)})
	m.put(places, snapshot.Record{Key: named("aachen"), Value: m.value(12)})
	m.del(blobs, number(2))
	m.put(blobs, snapshot.Record{Key: number(1001), Value: m.value(13)})
	m.publish(m.hlc)
	before := m.p.Stats()
	m.roll()
	if after := m.p.Stats(); after.Kept-before.Kept < 3 {
		m.t.Fatalf("%d of %d rolls kept the layout; that is not what the image is for", after.Kept-before.Kept, after.Rolls-before.Rolls)
	}
	m.begin()
	m.put(cars, snapshot.Record{Key: number(30), Box: m.box(.05), HasBox: true, Value: m.value(14)})
	m.del(cars, number(51))
	m.put(cars, snapshot.Record{Key: number(59), Box: m.box(.05), HasBox: true, Value: m.value(15)})
	m.put(places, snapshot.Record{Key: named("berlin/11"), Box: m.box(.02), HasBox: true, Value: m.value(16)})
	m.del(places, named("aachen"))
	m.put(places, snapshot.Record{Key: named("odd/8"), Box: format.MakeBox(oddBoxes[8]), HasBox: true, Value: m.value(17)})
	m.put(blobs, snapshot.Record{Key: number(2), Value: long(65_534)})
	m.publish(0)
}

// fill writes the first version.
func (m *goldenModel) fill(cars, places, blobs *goldenTable) {
	var recs []snapshot.Record
	for i := range 90 {
		rec := snapshot.Record{Key: number(uint64(i)), Value: m.value(i)}
		if i%10 != 9 {
			rec.Box, rec.HasBox = m.box(.05), true
		}
		recs = append(recs, rec)
	}
	recs = append(recs, snapshot.Record{Key: number(100_000), Box: m.point(), HasBox: true, Value: long(65_535)})
	m.begin()
	m.load(cars, recs)
	recs = nil
	for i, b := range oddBoxes {
		recs = append(recs, snapshot.Record{Key: named(fmt.Sprintf("odd/%d", i)), Box: format.MakeBox(b), HasBox: true, Value: m.value(i)})
	}
	for i := range 40 {
		recs = append(recs, snapshot.Record{Key: named(fmt.Sprintf("berlin/%d", i)), Box: m.box(.02), HasBox: true, Value: m.value(i)})
	}
	for i := range 5 {
		recs = append(recs, snapshot.Record{Key: shardKey(uint64(i)), Box: m.point(), HasBox: true, Value: rhumb.EncodeOpaque(nil, []byte{byte(i)})})
	}
	recs = append(recs, snapshot.Record{Key: named("long"), Box: m.point(), HasBox: true, Value: long(65_537)})
	m.load(places, recs)
	m.put(blobs, snapshot.Record{Key: number(1), Value: long(70_000)})
	m.put(blobs, snapshot.Record{Key: number(2), Value: long(65_534)})
	m.put(blobs, snapshot.Record{Key: number(3), Value: long(65_535)})
	m.put(blobs, snapshot.Record{Key: number(math.MaxUint64), Value: rhumb.EncodeOpaque(nil, nil)})
	m.publish(m.hlc)
}

// long returns a value of so many bytes, most of them zeros; from 65,535 on its length stands before it.
func long(size int) []byte {
	value := rhumb.EncodeOpaque(nil, make([]byte, size-len(rhumb.EncodeOpaque(nil, nil))))
	copy(value[size-8:], "the end.")
	return value
}

// change writes the versions that follow: moved, new, deleted and expiring records, and some after the closed timestamp.
func (m *goldenModel) change(cars, places, blobs *goldenTable) {
	for round := range 4 {
		m.begin()
		for i := range 12 {
			id := uint64(m.random.IntN(100)) // some are new
			rec := snapshot.Record{Key: number(id), Value: m.value(1000*round + i), HasBox: id%10 != 8}
			switch last := cars.keys[keyText(rec.Key)]; {
			case i%3 == 0 && len(last) > 0 && !last[len(last)-1].deleted: // the value only
				rec.Box, rec.HasBox = last[len(last)-1].rec.Box, last[len(last)-1].rec.HasBox
			case rec.HasBox:
				rec.Box = m.box(.05)
			}
			m.put(cars, rec)
		}
		m.del(cars, number(uint64(20+round)))
		m.put(cars, snapshot.Record{Key: number(uint64(40 + round)), Box: m.box(.05), HasBox: true, Expiry: 1000 + int64(round)*math.MaxInt64/8, Value: m.value(5)})
		m.put(places, snapshot.Record{Key: named(fmt.Sprintf("odd/%d", round)), Box: format.MakeBox(oddBoxes[round+1]), HasBox: true, Value: m.value(round)})
		m.put(places, snapshot.Record{Key: named(fmt.Sprintf("new/%d", round)), Box: format.MakeBox(oddBoxes[round]), HasBox: true, Value: m.value(round)})
		m.put(places, snapshot.Record{Key: named("berlin/3" + strings.Repeat("x", 100*round/2)), Box: m.box(.02), HasBox: true, Value: m.value(round)})
		m.put(places, snapshot.Record{Key: shardKey(uint64(4 + round)), Box: m.point(), HasBox: true, Value: m.value(round)})
		m.del(places, named(fmt.Sprintf("berlin/%d", 20+round)))
		m.put(blobs, snapshot.Record{Key: number(1000), Value: rhumb.EncodeOpaque(nil, []byte{byte(round)})})
		closed := m.hlc
		if round == 3 {
			closed = m.hlc - 100 // the commit goes beyond the cut
		}
		m.publish(closed)
	}
	m.begin()
	m.del(cars, number(2))
	m.put(cars, snapshot.Record{Key: number(100_000), Box: m.point(), HasBox: true, Value: long(65_536)})
	m.put(places, snapshot.Record{Key: named("long"), Box: m.point(), HasBox: true, Value: long(65_538)})
	m.put(cars, snapshot.Record{Key: number(5), Box: m.box(.5), HasBox: true, Value: m.value(7)})
	m.put(places, snapshot.Record{Key: named("odd/0"), Box: m.box(.5), HasBox: true, Value: m.value(8)})
	m.publish(0)
}

// goldenView is what a view shows of a table in the model.
type goldenView struct {
	m       *goldenModel
	version uint64
	closed  rhumb.Timestamp // 0: none
}

// shown returns the versions that a view shows, in the order of keys.
func (v goldenView) shown(t *goldenTable) (out []goldenVersion) {
	for _, versions := range t.keys {
		for _, x := range slices.Backward(versions) {
			if x.version > v.version || v.closed != 0 && x.rec.HLC > v.closed {
				continue
			}
			if !x.deleted && (x.rec.Expiry == 0 || x.rec.Expiry > time.Now().UnixNano()) {
				x.version = max(x.version, t.base)
				out = append(out, x)
			}
			break
		}
	}
	slices.SortFunc(out, func(a, b goldenVersion) int { return compareKeys(a.rec.Key, b.rec.Key) })
	return out
}

func compareKeys(a, b format.Key) int {
	if a.ShardKey != b.ShardKey {
		if a.ShardKey {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.Number, b.Number), bytes.Compare(a.Name, b.Name))
}

// line writes a record as answers have it.
func line(key format.Key, version uint64, hlc rhumb.Timestamp, expiry int64, hasBox bool, b format.Box, value []byte) string {
	box := "-"
	if hasBox {
		box = fmt.Sprintf("%d,%d,%d,%d", b.MinX, b.MinY, b.MaxX, b.MaxY)
	}
	return fmt.Sprintf("%s version=%d hlc=%d expiry=%d box=%s value=%d:%08x",
		keyText(key), version, uint64(hlc), expiry, box, len(value), format.Checksum(value))
}

func (x goldenVersion) line() string {
	return line(x.rec.Key, x.version, x.rec.HLC, x.rec.Expiry, x.rec.HasBox, x.rec.Box, x.rec.Value)
}

// within returns the lines of the records that touch what a query covers.
func (v goldenView) within(t *goldenTable, touches func(b format.Box) bool) []string {
	out := []string{}
	for _, x := range v.shown(t) {
		if x.rec.HasBox && touches(x.rec.Box) {
			out = append(out, x.line())
		}
	}
	return out
}

func (v goldenView) bbox(t *goldenTable, q rhumb.Box) question {
	want := format.MakeBox(q)
	ask := fmt.Sprintf("bbox %s %v %v %v %v", t.spec.Name, q.Min.Lat, q.Min.Lon, q.Max.Lat, q.Max.Lon)
	return question{ask, v.within(t, func(b format.Box) bool { return meet(b, want) })}
}

// meet is the plain definition of what a query by box finds: boxes have a point in common on the globe, where longitudes 180
// and -180 are one meridian.
func meet(a, b format.Box) bool {
	const turn = 2 * format.LonUnitsMax
	east := func(b format.Box) int64 { // the eastern end, where longitudes go on beyond the antimeridian
		if b.Crosses() {
			return int64(b.MaxX) + turn
		}
		return int64(b.MaxX)
	}
	for shift := int64(-turn); shift <= turn; shift += turn {
		if int64(a.MinX)+shift <= east(b) && int64(b.MinX) <= east(a)+shift {
			return a.MinY <= b.MaxY && b.MinY <= a.MaxY
		}
	}
	return false
}

func (v goldenView) polygon(t *goldenTable, rings [][]rhumb.Point) question {
	p, err := rtree.MakePolygon(rings...)
	v.m.must(err)
	ask := "polygon " + t.spec.Name
	for i, ring := range rings {
		if i > 0 {
			ask += " /"
		}
		for _, c := range ring {
			ask += fmt.Sprintf(" %v %v", c.Lat, c.Lon)
		}
	}
	return question{ask, v.within(t, p.Intersects)}
}

// near returns the lines of all records by their distance from a point, as far as limit.
func (v goldenView) near(t *goldenTable, at rhumb.Point, limit float64) []string {
	type hit struct {
		metres float64
		line   string
	}
	var hits []hit
	for _, x := range v.shown(t) { // in the order of keys, which a stable sort keeps
		if d := rtree.Distance(at, x.rec.Box); x.rec.HasBox && d <= limit {
			hits = append(hits, hit{d, fmt.Sprintf("%s distance=%.2f", x.line(), d)})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(a.metres, b.metres) })
	out := []string{}
	for _, h := range hits {
		out = append(out, h.line)
	}
	return out
}

func (v goldenView) spatial(t *goldenTable) (out []question) {
	at := func(lat, lon float64) rhumb.Point { return rhumb.Point{Lat: lat, Lon: lon} }
	boxes := append(slices.Clone(oddBoxes), rhumb.Box{Min: at(-90, -180), Max: at(90, 180)}, rhumb.Box{Min: at(52.3, 13.2), Max: at(52.6, 13.5)},
		rhumb.Box{Min: at(52.5, 13.5), Max: at(52.52, 13.52)}, rhumb.Box{Min: at(-90, 100), Max: at(90, -100)}, rhumb.Box{Min: at(40, 13.7), Max: at(60, 13.6)})
	if v.version < v.m.version { // a few will do
		boxes = boxes[len(oddBoxes):][:3]
	}
	for _, b := range boxes {
		out = append(out, v.bbox(t, b))
	}
	if v.version < v.m.version {
		return out
	}
	for _, c := range []struct {
		p      rhumb.Point
		metres float64
	}{{at(52.5, 13.5), 5000}, {at(52.5, 13.5), 60_000}, {at(-17, 179.99), 100_000}, {at(0, -179.999), 2_000_000}, {at(89.9, 10), 700_000}, {at(-90, 0), 1}, {at(48, 2), 20_100_000}} {
		out = append(out,
			question{fmt.Sprintf("radius %s %v %v %v", t.spec.Name, c.p.Lat, c.p.Lon, c.metres), v.near(t, c.p, c.metres)})
		for _, k := range []int{1, 7, 30} {
			near := v.near(t, c.p, 50*c.metres)
			out = append(out, question{fmt.Sprintf("nearest %s %v %v %d %v", t.spec.Name, c.p.Lat, c.p.Lon, k, 50*c.metres), near[:min(k, len(near))]})
		}
	}
	berlin := []rhumb.Point{at(52.2, 13.2), at(52.9, 13.5), at(52.3, 13.9)}
	fiji := []rhumb.Point{at(-20, 179), at(-20, -179), at(-15, -179), at(-15, 179), at(-20, 179)}
	for _, rings := range [][][]rhumb.Point{
		{berlin},
		{{at(52, 13), at(53, 14), at(53, 13), at(52, 14)}}, // crosses itself
		{fiji},
		{{at(60, -180), at(60, 180), at(90, 180), at(90, -180)}},
		{berlin, {at(52.4, 13.4), at(52.6, 13.4), at(52.6, 13.6), at(52.4, 13.6)}},                                                        // a hole
		{fiji, {at(-19, 179.5), at(-16, 179.5), at(-16, -179.995), at(-19, -179.995)}, {at(-18, -179.2), at(-17, -180), at(-17, -179.2)}}, // holes on both sides
		{{at(-90, -180), at(-90, 180), at(90, 180), at(90, -180)}, berlin},
		{berlin, {at(52.5, 13.4), at(53, 13.4), at(53, 14), at(52.5, 14)}, fiji}, // one that overlaps, one far away
	} {
		out = append(out, v.polygon(t, rings))
	}
	return out
}

func (v goldenView) scan(t *goldenTable, prefix []byte) question {
	out := []string{}
	for _, x := range v.shown(t) {
		key := x.rec.Key.Name
		if x.rec.Key.Name == nil {
			key = binary.BigEndian.AppendUint64(nil, x.rec.Key.Number)
		}
		if len(prefix) == 0 || !x.rec.Key.ShardKey && bytes.HasPrefix(key, prefix) {
			out = append(out, x.line())
		}
	}
	return question{strings.TrimSpace(fmt.Sprintf("scan %s %x", t.spec.Name, prefix)), out}
}

// byKey asks for every key that ever was and some that were not, together and some one by one.
func (v goldenView) byKey(t *goldenTable) (out []question) {
	lines := map[string]string{}
	for _, x := range v.shown(t) {
		lines[keyText(x.rec.Key)] = x.line()
	}
	asked := []string{"12345678901"}
	if t.spec.KeyKind == format.KeyName {
		asked = []string{"n:78", keyText(shardKey(99)), keyText(format.Key{Name: shardKey(0).Name})}
	}
	for k := range t.keys {
		asked = append(asked, k)
	}
	slices.Sort(asked)
	all := []string{}
	for i, k := range asked {
		got := cmp.Or(lines[k], "-")
		all = append(all, got)
		if i%5 == 0 {
			out = append(out, question{"get " + t.spec.Name + " " + k, []string{got}})
		}
	}
	return append(out, question{"mget " + t.spec.Name + " " + strings.Join(asked, " "), all})
}

// questions returns all questions to an image.
func (m *goldenModel) questions() (out []question) {
	newest := goldenView{m: m, version: m.version}
	views := []struct {
		goldenView
		ask string
	}{{newest, "lock newest"}, {goldenView{m, m.version, m.closed}, "lock closed"}}
	for version := m.version - 1; version >= m.tables[0].base; version-- {
		views = append(views, struct {
			goldenView
			ask string
		}{goldenView{m: m, version: version}, fmt.Sprintf("lock version %d", version)})
	}
	for _, v := range views {
		out = append(out, question{v.ask, []string{fmt.Sprintf("version=%d closed=%d", v.version, uint64(v.closed))}})
		for _, t := range m.tables {
			out = append(out, v.byKey(t)...)
			if t.spec.Ordered {
				for _, prefix := range []string{"", "b", "berlin/3", "odd/", "zzz", "\x00", "\x00\x00\x00\x00\x00\x00\x00", "\x80", "\x00\x00\x00\x00\x00\x00\x00\x05"} {
					out = append(out, v.scan(t, []byte(prefix)))
				}
			}
			if t.spec.Spatial {
				out = append(out, v.spatial(t)...)
			}
		}
	}
	out = append(out, question{"lock newest", []string{fmt.Sprintf("version=%d closed=0", m.version)}}, m.tableLines(),
		question{"position 2 17", []string{fmt.Sprintf("epoch=%d seq=%d hlc=%d", m.position.Epoch, m.position.Seq, uint64(m.position.HLC))}},
		question{"position 2 18", []string{"-"}},
		question{"commit", []string{fmt.Sprintf("version=%d closed=%d event=%d records=%d", m.version, uint64(m.closed), m.event, m.records)}},
		question{"get nowhere 1", []string{"! not found"}},
		question{"scan blobs", []string{"! not supported by the table"}},
		question{"bbox blobs 0 0 1 1", []string{"! not supported by the table"}},
		question{"bbox cars 2 0 1 1", []string{"! invalid argument"}},
		question{"polygon cars 2 0 1 1", []string{"! invalid argument"}},
		question{"polygon cars 0 0 0 9 9 9 / 2 0 1 1 2 0", []string{"! invalid argument"}},
		question{"polygon cars 0 0 0 9 9 9 / 80 0 80 120 80 -120", []string{"! invalid argument"}}, // round a pole
		question{"get cars n:78", []string{"! invalid argument"}},
		question{"lock version 999", []string{"! unavailable"}})
	return append(out, m.fields()...)
}

func (m *goldenModel) tableLines() question {
	q := question{"tables", []string{"_positions id=0 kind=0 flags=8 shards=1 location="}}
	for _, t := range m.tables {
		flags := 0
		for bit, on := range map[uint16]bool{format.TableOrdered: t.spec.Ordered, format.TableSpatial: t.spec.Spatial, format.TableSummed: t.spec.Summed} {
			if on {
				flags |= int(bit)
			}
		}
		q.Answer = append(q.Answer, fmt.Sprintf("%s id=%d kind=%d flags=%d shards=%d location=%s",
			t.spec.Name, t.spec.ID, t.spec.KeyKind, flags, t.spec.Shards, t.spec.LocationField))
	}
	return q
}

// fields asks for the fields of records that no version changed.
func (m *goldenModel) fields() []question {
	return []question{
		{"lock newest", []string{fmt.Sprintf("version=%d closed=0", m.version)}},
		{"field places n:6f64642f36 area", []string{"box 1.5 2.25 3 4.125"}},
		{"field places n:6f64642f36 at", []string{"point 52.5 13.375"}},
		{"field places n:6f64642f36 live", []string{"bool 1"}},
		{"field places n:6f64642f36 name", []string{"string " + fmt.Sprintf("%x", "Straße 6")}},
		{"field places n:6f64642f36 raw", []string{"bytes 0006ff"}},
		{"field places n:6f64642f36 seen", []string{"timestamp 1700000000000006"}},
		{"field places n:6f64642f36 speed", []string{"float64 7.5"}},
		{"field places n:6f64642f36 trips", []string{"int64 -6"}},
		{"field places n:6f64642f36 none", []string{"-"}},
		{"field places n:78 name", []string{"-"}},
	}
}

// packImage writes the files of an image into a compressed archive.
func packImage(t *testing.T, dir, file string) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if base := filepath.Base(name); base != "root" && !strings.HasPrefix(base, "seg.") || info.IsDir() {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.Base(name), Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmp.Or(w.Close(), z.Close(), os.WriteFile(file, out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// unpackGolden unpacks a golden image into a directory of the test.
func unpackGolden(t *testing.T, image string) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(filepath.Join(goldenDir, image+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// goldenQuestions reads the questions to an image.
func goldenQuestions(t *testing.T, image string) (out []question) {
	t.Helper()
	f, err := os.Open(filepath.Join(goldenDir, image+".json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(&out)
	}
	if err != nil || len(out) == 0 {
		t.Fatalf("%d questions: %v", len(out), err)
	}
	return out
}

// packQuestions writes what goldenQuestions reads.
func packQuestions(t *testing.T, questions []question, image string) {
	t.Helper()
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	e := json.NewEncoder(z)
	e.SetIndent("", " ")
	if err := cmp.Or(e.Encode(questions), z.Close(), os.WriteFile(filepath.Join(goldenDir, image+".json.gz"), out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// sameAnswer compares an answer with the golden one.
func sameAnswer(t *testing.T, q question, got []string) {
	t.Helper()
	want := slices.Clone(q.Answer)
	if !q.ordered() {
		slices.Sort(want)
		slices.Sort(got)
	}
	if slices.Equal(got, want) {
		return
	}
	for i := range max(len(got), len(want)) {
		g, w := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("%.200s: %d lines, want %d; the first that differs:\n got %s\nwant %s", q.Ask, len(got), len(want), g, w)
			return
		}
	}
}

// TestGoldenUpdate makes the golden images when asked to.
func TestGoldenUpdate(t *testing.T) {
	if !*goldenUpdate {
		t.Skip("-golden.update makes the golden images anew")
	}
	for _, image := range goldenImages {
		dir := t.TempDir()
		questions := buildGolden(t, dir, image)
		packImage(t, dir, filepath.Join(goldenDir, image+".tar.gz"))
		packQuestions(t, questions, image)
		t.Logf("%s: %d questions", image, len(questions))
	}
}
