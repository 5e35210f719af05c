package reader_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// world is an image with one table, a client of it, and a model of what the table ought to show.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	pub    *snapshot.Publisher
	table  *snapshot.Table
	client *reader.Client
	spec   snapshot.TableSpec

	versions map[string][]version // of each key, oldest first
	loaded   uint64               // the version of the last load: what lies before is not known any more
	hlc      rhumb.Timestamp
	newest   uint64
	closed   rhumb.Timestamp
	plain    int // how many keys a first look found
}

// version is a version of a key; a deletion has no record.
type version struct {
	at  uint64
	hlc rhumb.Timestamp
	rec *snapshot.Record
}

const tableName = "cars"

func newWorld(t *testing.T, seed uint64, spec snapshot.TableSpec, opt reader.Options) *world {
	t.Helper()
	t.Logf("seed %d", seed)
	dir := t.TempDir()
	pub, err := snapshot.Open(snapshot.Config{Dir: dir, AppendRatio: 0.5})
	check(t, err)
	t.Cleanup(func() { check(t, pub.Close()) })
	spec.ID, spec.Name = 7, tableName
	table, err := pub.Table(spec)
	check(t, err)
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), pub: pub, table: table, spec: spec, hlc: 1000, versions: map[string][]version{},
	}
	w.commit(1)
	w.client, err = reader.Attach(dir, opt)
	check(t, err)
	t.Cleanup(func() { check(t, w.client.Close()) })
	return w
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// keys is how many different keys there are.
const keys = 300

// key makes one of the keys.
func (w *world) key(n int) format.Key {
	switch {
	case w.spec.KeyKind == format.KeyUint64:
		return format.Key{Number: uint64(n) * 0x9E3779B97F4A7C15}
	case n%7 == 0:
		return format.Key{Name: shardKeyBytes(shardKey(n)), ShardKey: true}
	case n%11 == 0: // the bytes of a shard key as a name
		return format.Key{Name: shardKeyBytes(shardKey(n - n%7))}
	}
	return format.Key{Name: fmt.Appendf(nil, "%s/%d", []string{"a", "b", "bus/long-enough-to-need-words"}[n%3], n)}
}

func shardKey(n int) rhumb.ShardKey {
	return rhumb.ShardKey{Home: rhumb.RangeID{Region: 1, Slot: 2}, Sequence: uint64(n)}
}

func shardKeyBytes(k rhumb.ShardKey) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(k.Home.Region))
	b = binary.BigEndian.AppendUint32(b, uint32(k.Home.Slot))
	return binary.BigEndian.AppendUint64(b, k.Sequence)
}

// id makes a map key of a key that sorts as an ordered table does.
func id(k format.Key) string {
	switch {
	case k.ShardKey:
		return "z" + string(k.Name)
	case k.Name != nil:
		return "n" + string(k.Name)
	}
	return string(binary.BigEndian.AppendUint64([]byte("u"), k.Number))
}

func itemID(t reader.Table, it *reader.Item) string {
	if t.Info().KeyKind == format.KeyUint64 {
		return id(format.Key{Number: it.Number})
	}
	return id(format.Key{Name: it.Name, ShardKey: it.ShardKey})
}

func (w *world) randomBox() format.Box {
	place := [][2]float64{{13, 52}, {180, 10}, {-180, -10}, {30, 90}, {-60, -90}, {0, 0}}[w.rng.IntN(6)]
	spread := []float64{0.001, 0.1, 20}[w.rng.IntN(3)]
	lon := place[0] + (w.rng.Float64()-0.5)*spread
	if place[1] == 10 || place[1] == -10 {
		lon = []float64{lon, 180, -180}[w.rng.IntN(3)]
	}
	lat := min(max(place[1]+(w.rng.Float64()-0.5)*spread, -90), 90)
	p := rhumb.Point{Lat: lat, Lon: turn(lon)}
	if w.rng.IntN(2) == 0 {
		return format.MakePoint(p)
	}
	wide, high := w.rng.Float64()*spread, w.rng.Float64()*spread
	return format.MakeBox(rhumb.Box{Min: p, Max: rhumb.Point{Lat: min(lat+high, 90), Lon: turn(lon + wide)}})
}

// turn brings a longitude into -180 to 180.
func turn(lon float64) float64 {
	for lon > 180 {
		lon -= 360
	}
	for lon < -180 {
		lon += 360
	}
	return lon
}

func (w *world) randomRecord(key format.Key) snapshot.Record {
	rec := snapshot.Record{Key: key, Value: rhumb.EncodeOpaque(nil, fmt.Appendf(nil, "%d", w.rng.Uint64()))}
	if w.rng.IntN(20) == 0 {
		rec.Value = append(rec.Value, bytes.Repeat([]byte("long "), 100+w.rng.IntN(20_000))...)
	}
	if w.rng.IntN(4) > 0 {
		rec.HLC = w.hlc
	}
	if w.rng.IntN(10) == 0 {
		rec.Expiry = []int64{1, 1 << 62}[w.rng.IntN(2)]
	}
	if w.spec.Spatial && w.rng.IntN(10) > 0 {
		rec.Box, rec.HasBox = w.randomBox(), true
		if old := w.at(id(key), w.newest, 0); old != nil && w.rng.IntN(2) == 0 {
			rec.Box, rec.HasBox = old.Box, old.HasBox
		}
	}
	return rec
}

// commit puts and deletes n random keys.
func (w *world) commit(n int) {
	w.t.Helper()
	w.hlc += 10
	c := w.pub.Begin()
	at := w.newest + 1
	for range n {
		key := w.key(w.rng.IntN(keys))
		v := version{at: at, hlc: w.hlc}
		if w.rng.IntN(4) == 0 {
			check(w.t, c.Delete(w.table, key, w.hlc))
		} else {
			rec := w.randomRecord(key)
			v.rec, v.hlc = &rec, rec.HLC
			check(w.t, c.Put(w.table, rec))
		}
		w.versions[id(key)] = append(w.versions[id(key)], v)
	}
	w.publish(c)
}

func (w *world) publish(c *snapshot.Commit) {
	w.t.Helper()
	info := snapshot.CommitInfo{Event: int64(w.hlc)}
	if w.rng.IntN(3) == 0 {
		info.Closed = w.hlc - rhumb.Timestamp(w.rng.IntN(30))
		w.closed = max(w.closed, info.Closed)
	}
	got, err := c.Publish(info)
	check(w.t, err)
	w.newest++
	if got != w.newest {
		w.t.Fatalf("published version %d, want %d", got, w.newest)
	}
}

// load replaces the table.
func (w *world) load() {
	w.t.Helper()
	w.hlc += 10
	c := w.pub.Begin()
	recs := map[string]snapshot.Record{}
	for n := range keys {
		if w.rng.IntN(2) == 0 {
			k := w.key(n)
			recs[id(k)] = w.randomRecord(k)
		}
	}
	check(w.t, c.Load(w.table, func(yield func(snapshot.Record, error) bool) {
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
	}))
	w.publish(c)
	for k := range w.versions {
		w.versions[k] = append(w.versions[k], version{at: w.newest, hlc: w.hlc})
	}
	for k, r := range recs {
		w.versions[k] = append(w.versions[k], version{at: w.newest, hlc: r.HLC, rec: &r})
	}
	w.loaded = w.newest
}

// at returns what a view of a version shows of a key, or nil. closed, unless 0, hides later writes.
func (w *world) at(key string, at uint64, closed rhumb.Timestamp) *snapshot.Record {
	for _, v := range slices.Backward(w.versions[key]) {
		if v.at > at || closed != 0 && v.hlc > closed {
			continue
		}
		if v.rec != nil && v.rec.Expiry == 1 { // long over
			return nil
		}
		return v.rec
	}
	return nil
}

// state returns all that a view shows.
func (w *world) state(v reader.View) map[string]snapshot.Record {
	out := map[string]snapshot.Record{}
	for k := range w.versions {
		if rec := w.at(k, v.Version(), v.Closed()); rec != nil {
			out[k] = *rec
		}
	}
	return out
}

// collect takes the items of a query, of which each must be as the model has it and come once.
func (w *world) collect(tb reader.Table, want map[string]snapshot.Record, visit func(fn func(*reader.Item) bool) error) (ids []string) {
	w.t.Helper()
	seen := map[string]bool{}
	check(w.t, visit(func(it *reader.Item) bool {
		k := itemID(tb, it)
		rec, ok := want[k]
		if !ok {
			w.t.Fatalf("%q is not in the view", k)
		}
		if seen[k] {
			w.t.Fatalf("%q comes twice", k)
		}
		seen[k] = true
		w.same(k, it, &rec)
		ids = append(ids, k)
		return true
	}))
	return ids
}

func (w *world) same(key string, it *reader.Item, rec *snapshot.Record) {
	w.t.Helper()
	if !bytes.Equal(it.Value, rec.Value) || it.HLC != rec.HLC || it.Expiry != rec.Expiry || it.HasBox != rec.HasBox || it.Box != rec.Box || !it.Found {
		w.t.Fatalf("%q is\n%.200v, want\n%.200v", key, *it, *rec)
	}
}

// sameSet compares keys without their order.
func (w *world) sameSet(what string, got, want []string) {
	w.t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Fatalf("%s gives %d keys %.300q, want %d %.300q", what, len(got), got, len(want), want)
	}
}

// verify compares every kind of read of a view with the model.
func (w *world) verify(v reader.View) {
	w.t.Helper()
	tb, err := v.Table(tableName)
	check(w.t, err)
	tb.TrustLengths()
	want := w.state(v)
	w.verifyGets(tb, want)
	all := slices.Sorted(maps.Keys(want))
	w.sameSet("All", w.collect(tb, want, tb.VisitAll), slices.Clone(all))
	if w.spec.Ordered {
		w.verifyScans(tb, want, all)
	}
	if w.spec.Spatial {
		w.verifySpatial(tb, want)
	}
}

func (w *world) verifyGets(tb reader.Table, want map[string]snapshot.Record) {
	w.t.Helper()
	var names [][]byte
	var numbers []uint64
	var given []rhumb.ShardKey
	for n := range keys {
		k := w.key(n)
		var it reader.Item
		var err error
		switch {
		case k.ShardKey:
			it, err = tb.GetShardKey(shardKey(n))
			given = append(given, shardKey(n))
		case k.Name != nil:
			it, err = tb.Get(k.Name)
			names = append(names, k.Name)
		default:
			it, err = tb.GetUint64(k.Number)
			value, valueErr := tb.GetUint64Value(k.Number)
			if valueErr != err || !bytes.Equal(value, it.Value) {
				w.t.Fatalf("the value of key %d is %q, %v; its item has %q, %v", k.Number, value, valueErr, it.Value, err)
			}
			if tb.IsPlain(k.Number) {
				w.plain++
			}
			numbers = append(numbers, k.Number)
			names = append(names, binary.BigEndian.AppendUint64(nil, k.Number))
		}
		rec, ok := want[id(k)]
		if !ok && err != reader.ErrNotFound || ok && err != nil {
			w.t.Fatalf("get of %q at %d (closed %d) gives %v, want it %v of %v", id(k), tb.View().Version(), tb.View().Closed(), err, ok, w.story(id(k)))
		}
		if ok {
			w.same(id(k), &it, &rec)
		}
	}
	out := make([]reader.Item, len(names))
	found, err := tb.MultiGet(names, out)
	check(w.t, err)
	w.verifyMulti(tb, want, found, out, func(i int) format.Key {
		if numbers != nil {
			return format.Key{Number: numbers[i]}
		}
		return format.Key{Name: names[i]}
	})
	if given != nil {
		out := make([]reader.Item, len(given))
		found, err := tb.MultiGetShardKeys(given, out)
		check(w.t, err)
		w.verifyMulti(tb, want, found, out, func(i int) format.Key {
			return format.Key{Name: shardKeyBytes(given[i]), ShardKey: true}
		})
	}
	if numbers != nil {
		found, err := tb.MultiGetUint64(numbers, out)
		check(w.t, err)
		w.verifyMulti(tb, want, found, out, func(i int) format.Key { return format.Key{Number: numbers[i]} })
		values := make([][]byte, len(numbers))
		again, err := tb.MultiGetUint64Values(numbers, values)
		check(w.t, err)
		for i := range values {
			if again != found || (values[i] != nil) != out[i].Found || !bytes.Equal(values[i], out[i].Value) {
				w.t.Fatalf("the value of key %d is %q, its item has %q; %d and %d were found", numbers[i], values[i], out[i].Value, again, found)
			}
		}
	}
}

// story tells the versions of a key.
func (w *world) story(key string) (lines []string) {
	for _, v := range w.versions[key] {
		lines = append(lines, fmt.Sprintf("version %d hlc %d value %v", v.at, v.hlc, v.rec != nil))
	}
	return append(lines, fmt.Sprintf("loaded at %d, closed %d, %+v", w.loaded, w.closed, w.client.Stats()))
}

func (w *world) verifyMulti(tb reader.Table, want map[string]snapshot.Record, found int, out []reader.Item, key func(i int) format.Key) {
	w.t.Helper()
	n := 0
	for i := range out {
		k := id(key(i))
		rec, ok := want[k]
		if out[i].Found != ok {
			w.t.Fatalf("multiget of %q at %d found it %v, want %v", k, tb.View().Version(), out[i].Found, ok)
		}
		if ok {
			n++
			w.same(k, &out[i], &rec)
		}
	}
	if n != found {
		w.t.Fatalf("multiget says that it found %d, it found %d", found, n)
	}
}

func (w *world) verifyScans(tb reader.Table, want map[string]snapshot.Record, all []string) {
	w.t.Helper()
	for _, prefix := range []string{"", "a", "b", "bus/", "bus/long-enough-to-need-words/2", "q", "\x00", "\x80"} {
		var expect []string
		for _, k := range all {
			if k[0] == 'z' && prefix == "" || k[0] != 'z' && bytes.HasPrefix([]byte(k[1:]), []byte(prefix)) {
				expect = append(expect, k)
			}
		}
		got := w.collect(tb, want, func(fn func(*reader.Item) bool) error { return tb.VisitScan([]byte(prefix), fn) })
		if !slices.Equal(got, expect) {
			w.t.Fatalf("scan of %q gives %d keys %q, want %d %q", prefix, len(got), got, len(expect), expect)
		}
	}
}

func (w *world) verifySpatial(tb reader.Table, want map[string]snapshot.Record) {
	w.t.Helper()
	touching := func(touches func(format.Box) bool) (ids []string) {
		for k, rec := range want {
			if rec.HasBox && touches(rec.Box) {
				ids = append(ids, k)
			}
		}
		return ids
	}
	for range 6 {
		box := w.randomBox()
		if w.rng.IntN(4) == 0 {
			box = format.Box{MinX: -format.LonUnitsMax, MinY: -format.LatUnitsMax, MaxX: format.LonUnitsMax, MaxY: format.LatUnitsMax}
		}
		w.sameSet(fmt.Sprintf("bbox %v", box),
			w.collect(tb, want, func(fn func(*reader.Item) bool) error { return tb.VisitBBox(box.Degrees(), fn) }),
			touching(func(b format.Box) bool { return touch(b, format.MakeBox(box.Degrees())) }))

		p, metres := box.Degrees().Min, []float64{0, 50, 5_000, 2_000_000, 30_000_000}[w.rng.IntN(5)]
		w.sameSet(fmt.Sprintf("radius %v of %v", metres, p),
			w.collect(tb, want, func(fn func(*reader.Item) bool) error { return tb.VisitRadius(p, metres, fn) }),
			touching(func(b format.Box) bool { return rtree.Distance(p, b) <= metres }))
		w.verifyNearest(tb, want, p, 1+w.rng.IntN(20))

		ring := []rhumb.Point{p, {Lat: min(p.Lat+w.rng.Float64(), 90), Lon: turn(p.Lon + 0.01)}, {Lat: max(p.Lat-w.rng.Float64(), -90), Lon: turn(p.Lon + 3*w.rng.Float64())}}
		rings := [][]rhumb.Point{ring}
		if w.rng.IntN(2) == 0 { // a hole: the same ring, smaller
			hole := []rhumb.Point{{Lat: p.Lat + (ring[1].Lat-p.Lat)/4, Lon: turn(p.Lon + 0.005)}, ring[1], {Lat: p.Lat, Lon: turn(p.Lon + 0.007)}}
			rings = append(rings, hole)
		}
		if poly, err := rtree.MakePolygon(rings...); err == nil {
			w.sameSet(fmt.Sprintf("polygon %v", rings),
				w.collect(tb, want, func(fn func(*reader.Item) bool) error { return tb.VisitPolygon(rings, fn) }), touching(poly.Intersects))
		}
	}
}

// touch is the plain definition of what a query by box finds: boxes have a point in common on the globe, where longitudes 180
// and -180 are one meridian.
func touch(a, b format.Box) bool {
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

func (w *world) verifyNearest(tb reader.Table, want map[string]snapshot.Record, p rhumb.Point, k int) {
	w.t.Helper()
	type place struct {
		id     string
		metres float64
	}
	var places []place
	for id, rec := range want {
		if rec.HasBox {
			places = append(places, place{id, rtree.Distance(p, rec.Box)})
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(a.metres, b.metres), cmp.Compare(a.id, b.id)) })
	places = places[:min(k, len(places))]
	var expect []string
	for _, pl := range places {
		expect = append(expect, pl.id)
	}
	got := w.collect(tb, want, func(fn func(*reader.Item) bool) error { return tb.VisitNearest(p, k, fn) })
	if !slices.Equal(got, expect) {
		w.t.Fatalf("the %d nearest to %v are %q, want %q", k, p, got, expect)
	}
}
