package inspect

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// world is an image that random operations change.
type world struct {
	t      testing.TB
	rng    *rand.Rand
	dir    string
	id     format.Root
	p      *snapshot.Publisher
	tables []*snapshot.Table
	hlc    rhumb.Timestamp
	short  bool // no value is a long one
}

var worldSpecs = []snapshot.TableSpec{
	{ID: 1, Name: "cars", KeyKind: format.KeyName, Spatial: true, Ordered: true, Summed: true, Shards: 2, LocationField: "location"},
	{ID: 2, Name: "roads", KeyKind: format.KeyUint64, Spatial: true, Ordered: true, Summed: true, Shards: 1, LocationField: "location"},
	{ID: 3, Name: "notes", KeyKind: format.KeyName, Summed: true, Shards: 1},
}

func newWorld(t testing.TB, seed uint64) *world {
	t.Helper()
	t.Logf("seed %d", seed)
	parent, err := os.MkdirTemp("/dev/shm", "rhumb-test-")
	if err != nil {
		parent = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), dir: filepath.Join(parent, "cluster", "n1")}
	// With the same identity the same keys lie in the same places in each run.
	w.id = format.Root{Image: rhumb.UUID{1}, Seed0: w.rng.Uint64(), Seed1: w.rng.Uint64() | 1}
	w.open()
	return w
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) open() {
	w.t.Helper()
	var err error
	w.p, err = snapshot.Open(snapshot.Config{Dir: w.dir, Identity: &w.id})
	check(w.t, err)
	w.t.Cleanup(func() { _ = w.p.Close() })
	w.tables = nil
	for _, spec := range worldSpecs {
		t, err := w.p.Table(spec)
		check(w.t, err)
		w.tables = append(w.tables, t)
	}
}

func (w *world) record(table, keys int) snapshot.Record {
	w.hlc++
	n := w.rng.IntN(keys)
	rec := snapshot.Record{HLC: w.hlc, Value: w.value()}
	switch {
	case worldSpecs[table].KeyKind == format.KeyUint64:
		rec.Key.Number = uint64(n) * 977
	case n%9 == 0:
		rec.Key = format.Key{Name: fmt.Appendf(nil, "shard-key-%06d", n), ShardKey: true}
	default:
		rec.Key.Name = fmt.Appendf(nil, "%c/%d", 'a'+n%3, n)
	}
	if worldSpecs[table].Spatial && w.rng.IntN(6) > 0 {
		rec.Box, rec.HasBox = w.box(), true
	}
	if w.rng.IntN(20) == 0 {
		rec.Expiry = 1 << 62
	}
	return rec
}

func (w *world) value() []byte {
	n := w.rng.IntN(60)
	if !w.short && w.rng.IntN(300) == 0 {
		n = 70_000
	}
	r, err := rhumb.NewRecord(rhumb.Field{Name: "n", Value: rhumb.Int64Field(int64(w.hlc))}, rhumb.Field{Name: "s", Value: rhumb.StringField(fmt.Sprintf("%0*d", n, 1))})
	check(w.t, err)
	return rhumb.EncodeRecord(nil, r)
}

func (w *world) box() format.Box {
	x, y := int32(w.rng.IntN(3_500_000)-1_750_000)*1000, int32(w.rng.IntN(1_700_000)-850_000)*1000
	switch w.rng.IntN(6) {
	case 0:
		return format.Box{MinX: 1_799_990_000, MinY: y, MaxX: -1_799_000_000, MaxY: y + 50_000}
	case 1:
		return format.Box{MinX: x, MinY: y, MaxX: x + 5_000_000, MaxY: y + 5_000_000}
	}
	return format.Box{MinX: x, MinY: y, MaxX: x + int32(w.rng.IntN(1000)), MaxY: y}
}

// commit publishes so many random changes, and discards one commit in eight.
func (w *world) commit(changes, keys int) {
	w.t.Helper()
	c := w.begin(changes, keys)
	if w.rng.IntN(8) == 0 {
		c.Discard()
		return
	}
	_, err := c.Publish(snapshot.CommitInfo{Closed: w.hlc - min(w.hlc, 50)})
	check(w.t, err)
}

// begin writes random changes in a commit that is open.
func (w *world) begin(changes, keys int) *snapshot.Commit {
	w.t.Helper()
	c := w.p.Begin()
	for range changes {
		i := w.rng.IntN(len(w.tables))
		rec := w.record(i, keys)
		if w.rng.IntN(5) == 0 {
			check(w.t, c.Delete(w.tables[i], rec.Key, rec.HLC))
		} else {
			check(w.t, c.Put(w.tables[i], rec))
		}
	}
	check(w.t, c.Position(rhumb.RangeID{Region: 1, Slot: 7}, format.Position{Epoch: 1, Seq: uint64(w.hlc), HLC: w.hlc}))
	return c
}

// roll rolls all shards.
func (w *world) roll() {
	w.t.Helper()
	for _, table := range w.tables {
		for i := range int(table.ShardCount) {
			check(w.t, w.p.Roll(table, i))
		}
	}
}

// kill goes on with a copy of the image as it is in the middle of a commit, as if its publisher had been killed.
func (w *world) kill(changes, keys int) {
	w.t.Helper()
	w.begin(changes, keys)
	dir := w.dir + "-copy"
	check(w.t, os.CopyFS(dir, os.DirFS(w.dir)))
	check(w.t, w.p.Close())
	w.dir = dir
	w.open()
}

// contents returns all that a view of an image shows, in whatever way it is asked.
func contents(t testing.TB, dir string, version uint64) map[string]string {
	t.Helper()
	c, err := reader.Attach(dir, reader.Options{})
	check(t, err)
	defer c.Close()
	v, err := c.LockVersion(version)
	check(t, err)
	defer v.Unlock()
	out := map[string]string{}
	for _, info := range c.Tables() {
		table, err := v.Table(info.Name)
		check(t, err)
		take := func(how string, items iter.Seq2[reader.Item, error]) {
			for it, err := range items {
				if err != nil {
					out[how+info.Name] = err.Error()
					return
				}
				out[fmt.Sprint(how, info.Name, it.Number, it.ShardKey, string(it.Name))] += fmt.Sprint(it.Box, it.HLC, string(it.Value))
			}
		}
		take("all ", table.All())
		if info.Ordered() {
			take("scan ", table.Scan(nil))
		}
		if info.Spatial() {
			take("bbox ", table.BBox(rhumb.Box{Min: rhumb.Point{Lat: -90, Lon: -180}, Max: rhumb.Point{Lat: 90, Lon: 180}}))
		}
	}
	return out
}

// wantClean fails when Verify finds anything.
func wantClean(t testing.TB, dir string) Report {
	t.Helper()
	r, err := Verify(t.Context(), dir, VerifyOptions{Deep: true})
	check(t, err)
	for i, f := range r.Faults {
		if i < 10 {
			t.Errorf("a fault where there is none: %s", f)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return r
}
