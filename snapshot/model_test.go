package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// shmDir returns a directory of the test's own in shared memory, or on disk where there is none.
func shmDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "rhumb-test-")
	if err != nil {
		return filepath.Join(t.TempDir(), "image")
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "image")
}

func open(t testing.TB, cfg snapshot.Config) *snapshot.Publisher {
	t.Helper()
	p, err := snapshot.Open(cfg)
	check(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write is one version in the model.
type write struct {
	value string
	gone  bool
	hlc   uint64
	box   *format.Box
}

// model holds all versions that were ever committed of the keys of a table, oldest first.
type model map[string][]write

// at returns what a closed timestamp sees, or the newest with 0.
func (m model) at(closed uint64) map[string]write {
	out := map[string]write{}
	for k, ws := range m {
		for _, w := range slices.Backward(ws) {
			if closed == 0 || w.hlc <= closed {
				if !w.gone {
					out[k] = w
				}
				break
			}
		}
	}
	return out
}

// player plays random operations on a publisher and on models.
type player struct {
	t      *testing.T
	rng    *rand.Rand
	cfg    snapshot.Config
	p      *snapshot.Publisher
	tables []*snapshot.Table
	specs  []snapshot.TableSpec
	models []model
	hlc    uint64
	closed uint64
	pos    map[rhumb.RangeID]format.Position
	mood   mood
	// kept and built count the rolls of publishers before.
	kept, built uint64
}

// mood is how much a player changes, on which it depends whether rolls keep the layout.
type mood int

const (
	wild mood = iota
	mild      // few keys come, go, move, or get another size
	calm      // none does
	moods
)

// seldom reports whether what happens one time in n in a wild mood happens now.
func (pl *player) seldom(n int) bool {
	switch pl.mood {
	case wild:
		return pl.rng.IntN(n) == 0
	case mild:
		return pl.rng.IntN(20*n) == 0
	case calm:
	}
	return false
}

// key returns key n of a table, and its name in the model.
func (pl *player) key(i int, n uint64) (format.Key, string) {
	if pl.specs[i].KeyKind == format.KeyUint64 {
		return format.Key{Number: n * 0x9E3779B97F4A7C15}, string(binary.BigEndian.AppendUint64(nil, n*0x9E3779B97F4A7C15))
	}
	if n%5 == 0 {
		k := []byte(fmt.Sprintf("shard-key-%06d", n))
		return format.Key{Name: k, ShardKey: true}, "s" + string(k)
	}
	name := bytes.Repeat([]byte{byte('a' + n%7)}, int(n%30))
	name = append(name, byte(n), byte(n>>8))
	return format.Key{Name: name}, "n" + string(name)
}

func (pl *player) box() *format.Box {
	if pl.rng.IntN(5) == 0 {
		return nil
	}
	x, y := int32(pl.rng.IntN(3_600_000)-1_800_000)*1000, int32(pl.rng.IntN(1_800_000)-900_000)*1000
	switch pl.rng.IntN(6) {
	case 0:
		return &format.Box{MinX: 1_799_990_000, MinY: y, MaxX: -1_799_000_000, MaxY: min(y+50_000, 900_000_000)}
	case 1:
		return &format.Box{MinX: x, MinY: y, MaxX: min(x+5_000_000, 1_800_000_000), MaxY: min(y+5_000_000, 900_000_000)}
	}
	return &format.Box{MinX: x / 100, MinY: y / 100, MaxX: x/100 + int32(pl.rng.IntN(1000)), MaxY: y / 100}
}

func (pl *player) record(i int) (snapshot.Record, string, write) {
	pl.hlc++
	key, name := pl.key(i, pl.rng.Uint64N(300))
	w := write{value: fmt.Sprintf("v%07d", pl.hlc), hlc: pl.hlc}
	switch {
	case pl.seldom(200):
		w.value = string(bytes.Repeat([]byte{byte(pl.hlc)}, 66_000))
	case pl.seldom(3):
		w.value = strings.Repeat(w.value, 1+pl.rng.IntN(20))
	}
	rec := snapshot.Record{Key: key, HLC: rhumb.Timestamp(pl.hlc), Value: []byte(w.value)}
	if pl.specs[i].Spatial {
		if w.box = pl.box(); w.box != nil {
			rec.Box, rec.HasBox = *w.box, true
		}
		if old := pl.models[i][name]; len(old) > 0 && !pl.seldom(2) { // it stays where it is
			if w.box = old[len(old)-1].box; w.box != nil {
				rec.Box, rec.HasBox = *w.box, true
			} else {
				rec.HasBox = false
			}
		}
	}
	return rec, name, w
}

// commit writes a random batch; sometimes it is thrown away.
func (pl *player) commit() {
	c := pl.p.Begin()
	type entry struct {
		table int
		name  string
		w     write
	}
	var entries []entry
	for range pl.rng.IntN(1 << pl.rng.IntN(9)) {
		i := pl.rng.IntN(len(pl.tables))
		rec, name, w := pl.record(i)
		if old := pl.models[i][name]; pl.mood != wild && (len(old) == 0 || old[len(old)-1].gone) && !pl.seldom(1) {
			continue
		}
		if pl.seldom(4) {
			w = write{gone: true, hlc: w.hlc}
			check(pl.t, c.Delete(pl.tables[i], rec.Key, rec.HLC))
		} else {
			check(pl.t, c.Put(pl.tables[i], rec))
		}
		entries = append(entries, entry{i, name, w})
	}
	if pl.rng.IntN(4) == 0 {
		pl.verify(mustImageOf(pl.t, pl.cfg.Dir)) // whatever is linked already, nothing of it shows
	}
	if pl.rng.IntN(8) == 0 {
		c.Discard()
		return
	}
	id := rhumb.RangeID{Region: 1, Slot: rhumb.Slot(pl.rng.IntN(3))}
	pos := format.Position{Epoch: 1, Seq: pl.hlc, HLC: rhumb.Timestamp(pl.hlc)}
	check(pl.t, c.Position(id, pos))
	closed := uint64(0)
	if pl.rng.IntN(3) == 0 && pl.hlc > 40 {
		closed = max(pl.hlc-40, pl.closed)
	}
	_, err := c.Publish(snapshot.CommitInfo{Closed: rhumb.Timestamp(closed)})
	check(pl.t, err)
	pl.pos[id], pl.closed = pos, max(closed, pl.closed)
	for _, e := range entries {
		pl.models[e.table][e.name] = append(pl.models[e.table][e.name], e.w)
	}
}

// load replaces a table.
func (pl *player) load() {
	i := pl.rng.IntN(len(pl.tables))
	m := model{}
	records := func(yield func(snapshot.Record, error) bool) {
		for range pl.rng.IntN(300) {
			rec, name, w := pl.record(i)
			if m[name] != nil {
				continue
			}
			m[name] = []write{w}
			if !yield(rec, nil) {
				return
			}
		}
	}
	end := pl.hlc + 1000
	_, err := pl.p.Load(pl.tables[i], iter.Seq2[snapshot.Record, error](records), snapshot.CommitInfo{Closed: rhumb.Timestamp(end)})
	check(pl.t, err)
	pl.hlc, pl.closed = end, end
	pl.models[i] = m
}

func (pl *player) reopen() {
	st := pl.p.Stats()
	pl.kept, pl.built = pl.kept+st.Kept, pl.built+st.Rolls-st.Kept
	check(pl.t, pl.p.Close())
	pl.p = open(pl.t, pl.cfg)
	if r := pl.p.Recovery(); r.Fresh || len(r.Quarantined) > 0 {
		pl.t.Fatalf("recovery of a whole image: %+v", r)
	}
	if got := uint64(pl.p.Closed()); got != pl.closed {
		pl.t.Fatalf("the image is closed at %d, and was at %d before another start", got, pl.closed)
	}
	for i, spec := range pl.specs {
		var err error
		pl.tables[i], err = pl.p.Table(spec)
		check(pl.t, err)
	}
}

// verify compares the image with the models.
func (pl *player) verify(img *image) {
	t := pl.t
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Fatalf("the image is wrong: %v", r)
		}
	}()
	if img.committed != pl.p.Version() || img.closed != pl.closed {
		t.Fatalf("version %d closed %d, want %d closed %d", img.committed, img.closed, pl.p.Version(), pl.closed)
	}
	for i, spec := range pl.specs {
		if !pl.tables[i].Listed() {
			continue
		}
		pl.verifyTable(img, spec, pl.models[i], view{version: img.committed})
		if n := pl.tables[i].Records(); n != int64(len(pl.models[i].at(0))) {
			t.Fatalf("table %s counts %d records, want %d", spec.Name, n, len(pl.models[i].at(0)))
		}
		if counted, found := pl.tables[i].IdleUnits(); counted != found {
			t.Fatalf("table %s: %v tombstones and idle units were counted, there are %v", spec.Name, counted, found)
		}
		closedBy := uint64(0)
		for _, s := range img.tables[spec.Name].shards {
			closedBy = max(closedBy, s.closed)
		}
		if img.closed >= closedBy && img.closed > 0 {
			pl.verifyTable(img, spec, pl.models[i], view{img.committed, img.closed})
		}
	}
	if got := pl.p.Positions(); !maps.Equal(got, pl.pos) {
		t.Fatalf("positions %v, want %v", got, pl.pos)
	}
}

func (pl *player) verifyTable(img *image, spec snapshot.TableSpec, m model, v view) {
	t := pl.t
	t.Helper()
	tab := img.tables[spec.Name]
	want := m.at(v.closed)
	got := tab.all(v)
	for k, w := range want {
		r, ok := tab.get(v, k)
		if !ok || r.value != w.value || r.hlc != w.hlc || got[k].ref != r.ref {
			t.Fatalf("table %s, view %v, key %q: got %v %.20q at %d, want %.20q at %d", spec.Name, v, k, ok, r.value, r.hlc, w.value, w.hlc)
		}
		if hasBox := r.flags&2 != 0; hasBox != (w.box != nil) || hasBox && r.box != [4]int32{w.box.MinX, w.box.MinY, w.box.MaxX, w.box.MaxY} {
			t.Fatalf("table %s, key %q: box %v, want %v", spec.Name, k, r.box, w.box)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("table %s, view %v: %d keys, want %d", spec.Name, v, len(got), len(want))
	}
	if spec.Ordered {
		if keys := tab.ordered(v); !slices.Equal(keys, slices.Sorted(maps.Keys(want))) {
			t.Fatalf("table %s, view %v: a scan gives %d keys, want %d", spec.Name, v, len(keys), len(want))
		}
	}
	if spec.Spatial {
		pl.verifyWithin(tab, v, want)
	}
}

func (pl *player) verifyWithin(tab *imageTable, v view, want map[string]write) {
	for _, q := range [][4]int32{
		{-1_800_000_000, -900_000_000, 1_800_000_000, 900_000_000},
		{-1_000_000, -1_000_000, 1_000_000, 1_000_000},
		{1_700_000_000, -900_000_000, 1_800_000_000, 900_000_000},
	} {
		var keys []string
		for k, w := range want {
			if w.box == nil {
				continue
			}
			for _, part := range parts([4]int32{w.box.MinX, w.box.MinY, w.box.MaxX, w.box.MaxY}) {
				if touches(part, q) {
					keys = append(keys, k)
					break
				}
			}
		}
		slices.Sort(keys)
		if got := tab.within(v, q); !slices.Equal(got, keys) {
			pl.t.Fatalf("view %v, query %v: %d keys, want %d", v, q, len(got), len(keys))
		}
	}
}

// Whatever is written, thrown away, rolled, loaded and opened again, the image shows what a map says.
func TestRandomOperations(t *testing.T) {
	t.Parallel()
	runs, steps := 3, 80
	if testing.Short() {
		runs = 2
	}
	var kept, built uint64
	for run := range runs {
		seed := uint64(time.Now().UnixNano()) + uint64(run)
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			k, b := playRandom(t, seed, steps)
			kept, built = kept+k, built+b
		})
	}
	if kept == 0 || built == 0 {
		t.Errorf("%d rolls kept the layout of the base, %d did not: both are to be played", kept, built)
	}
}

// playRandom returns how many rolls kept the layout of the base, and how many did not.
func playRandom(t *testing.T, seed uint64, steps int) (kept, built uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	pl := &player{
		t: t, rng: rng, cfg: snapshot.Config{Dir: shmDir(t), AppendRatio: 0.1 + rng.Float64()}, pos: map[rhumb.RangeID]format.Position{},
	}
	pl.p = open(t, pl.cfg)
	pl.specs = []snapshot.TableSpec{
		{ID: 1, Name: "numbers", KeyKind: format.KeyUint64, Ordered: true, Shards: 2},
		{ID: 2, Name: "places", KeyKind: format.KeyUint64, Spatial: true, Shards: 1},
		{ID: 3, Name: "names", KeyKind: format.KeyName, Ordered: true, Spatial: true, Summed: true, Shards: 4, LocationField: "location"},
	}
	for _, spec := range pl.specs {
		table, err := pl.p.Table(spec)
		check(t, err)
		pl.tables = append(pl.tables, table)
		pl.models = append(pl.models, model{})
	}
	for range steps {
		if rng.IntN(10) == 0 {
			pl.mood = mood(rng.IntN(int(moods)))
		}
		rolls := 3
		if pl.mood != wild {
			rolls = 10
		}
		switch n := rng.IntN(40); {
		case n < 35-rolls:
			pl.commit()
		case n < 35:
			i := rng.IntN(len(pl.tables))
			check(t, pl.p.Roll(pl.tables[i], rng.IntN(int(pl.tables[i].ShardCount))))
		case n < 36:
			pl.load()
		case n < 37 && pl.tables[0].Listed() && pl.tables[1].Listed() && pl.tables[2].Listed():
			pl.reopen()
		default:
			pl.p.Beat()
		}
		pl.verify(mustImage(t, pl.cfg.Dir))
	}
	st := pl.p.Stats()
	return pl.kept + st.Kept, pl.built + st.Rolls - st.Kept
}
