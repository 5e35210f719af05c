package snapshot_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// The tables of a keeper.
const (
	keptPlaces = iota // spatial
	keptNames         // ordered
)

// keeper is a player with a hand of its own.
type keeper struct {
	*player
	rolls  *rollLog
	commit *snapshot.Commit
	wrote  []func() // what the open commit adds to the models
}

// rollLog is a log that remembers how the last roll went.
type rollLog struct {
	copiedIndex bool
	notKept     string
}

// Enabled lets every record through.
func (l *rollLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle keeps what a record says of a roll.
func (l *rollLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "copied_index":
			l.copiedIndex = a.Value.Bool()
		case "not_kept":
			l.notKept = a.Value.String()
		}
		return true
	})
	return nil
}

// WithAttrs returns the same log.
func (l *rollLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup returns the same log.
func (l *rollLog) WithGroup(string) slog.Handler { return l }

// longer is a value that does not fit where the others do.
var longer = strings.Repeat("longer ", 20)

// keptKeys is how many keys each table has in the beginning; every other place has a box.
const keptKeys = 200

func newKeeper(t *testing.T) *keeper { return newKeeperOf(t, nil) }

// newKeeperOf begins with an image of a given identity, which decides in which buckets keys are.
func newKeeperOf(t *testing.T, id *format.Root) *keeper {
	rolls := &rollLog{}
	cfg := snapshot.Config{Dir: shmDir(t), AppendRatio: 0.25, Identity: id, Logger: slog.New(rolls)}
	k := &keeper{rolls: rolls, player: &player{
		t: t, rng: rand.New(rand.NewPCG(1, 1)), cfg: cfg, pos: map[rhumb.RangeID]format.Position{},
		specs: []snapshot.TableSpec{
			{ID: 1, Name: "places", Spatial: true, Summed: true, Shards: 1},
			{ID: 2, Name: "names", KeyKind: format.KeyName, Ordered: true, Shards: 1},
		},
	}}
	k.p = open(t, k.cfg)
	for _, spec := range k.specs {
		table, err := k.p.Table(spec)
		check(t, err)
		k.tables, k.models = append(k.tables, table), append(k.models, model{})
	}
	k.publish(0, func() {
		for i := range uint64(keptKeys) {
			k.put(keptPlaces, i, keptBox(i), "first")
			k.put(keptNames, i, nil, "first")
		}
	})
	k.roll()
	return k
}

func keptBox(i uint64) *format.Box {
	if i%2 == 1 {
		return nil
	}
	return &format.Box{MinX: int32(i) * 1000, MinY: 5, MaxX: int32(i)*1000 + 500, MaxY: 10}
}

var crossing = format.Box{MinX: format.LonUnitsMax - 500, MinY: 5, MaxX: 500 - format.LonUnitsMax, MaxY: 10}

// put writes a key in the open commit.
func (k *keeper) put(table int, n uint64, box *format.Box, value string) {
	k.t.Helper()
	k.hlc++
	key, name := k.key(table, n)
	w := write{value: value, hlc: k.hlc, box: box}
	rec := snapshot.Record{Key: key, HLC: rhumb.Timestamp(k.hlc), Value: []byte(value)}
	if box != nil {
		rec.Box, rec.HasBox = *box, true
	}
	check(k.t, k.commit.Put(k.tables[table], rec))
	k.wrote = append(k.wrote, func() { k.models[table][name] = append(k.models[table][name], w) })
}

func (k *keeper) remove(table int, n uint64) {
	k.t.Helper()
	k.hlc++
	key, name := k.key(table, n)
	w := write{gone: true, hlc: k.hlc}
	check(k.t, k.commit.Delete(k.tables[table], key, rhumb.Timestamp(k.hlc)))
	k.wrote = append(k.wrote, func() { k.models[table][name] = append(k.models[table][name], w) })
}

func (k *keeper) publish(closed uint64, write func()) {
	k.t.Helper()
	k.commit, k.wrote = k.p.Begin(), nil
	write()
	_, err := k.commit.Publish(snapshot.CommitInfo{Closed: rhumb.Timestamp(closed)})
	check(k.t, err)
	for _, add := range k.wrote {
		add()
	}
	k.closed = max(k.closed, closed)
}

// change writes new values of the same size to some keys, which stay where they are.
func (k *keeper) change(value string) {
	k.t.Helper()
	for i := uint64(0); i < keptKeys; i += 3 {
		k.put(keptPlaces, i, keptBox(i), value)
		k.put(keptNames, i, nil, value)
	}
}

func (k *keeper) roll() {
	k.t.Helper()
	for _, table := range k.tables {
		check(k.t, k.p.Roll(table, 0))
	}
}

func (k *keeper) verifyAll() {
	k.t.Helper()
	k.verify(mustImage(k.t, k.cfg.Dir))
}

// A roll keeps the layout of the base when it can, and else builds a new one; both show the same, before and after more
// changes, more rolls and another start.
func TestKeptRolls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		play func(k *keeper)
		kept [2]bool // of each table
		anew [2]bool // the index is made anew all the same
	}{
		{"nothing", func(k *keeper) {}, [2]bool{true, true}, [2]bool{}},
		{"values", func(k *keeper) {
			for i := range 5 {
				k.publish(0, func() { k.change(fmt.Sprintf("new%02d", i)) })
			}
		}, [2]bool{true, true}, [2]bool{}},
		{"new keys", func(k *keeper) {
			for _, value := range []string{"fresh", "other"} {
				k.publish(0, func() {
					k.change(value)
					for i := range uint64(50) {
						k.put(keptPlaces, keptKeys+i, nil, value)
					}
				})
			}
			for _, i := range []uint64{keptKeys + 7, 5 * keptKeys, keptKeys + 9, keptKeys + 8} {
				k.publish(0, func() { k.put(keptNames, i, nil, "value") })
			}
		}, [2]bool{true, true}, [2]bool{}},
		{"a commit that was discarded", func(k *keeper) {
			k.commit = k.p.Begin()
			for i := range uint64(3 * keptKeys) {
				k.put(keptPlaces, i, nil, "never")
			}
			k.change("never")
			k.commit.Discard()
			k.publish(0, func() { k.change("again") })
		}, [2]bool{true, true}, [2]bool{true, false}}, // it has keys that were aborted
		{"closed views", func(k *keeper) {
			k.publish(0, func() { k.change("early") })
			closed := k.hlc
			k.publish(closed, func() { k.change("later") })
			k.publish(0, func() { k.change("still") })
			k.publish(0, func() { k.put(keptPlaces, keptKeys, nil, "fresh") })
			k.roll()
			k.verifyAll()
			k.publish(k.hlc-keptKeys/3, func() { k.change("after") })
		}, [2]bool{true, true}, [2]bool{}},
		{"an open commit", func(k *keeper) {
			k.publish(0, func() { k.change("early") })
			before := k.p.Stats()
			k.publish(0, func() {
				for i := range uint64(2 * keptKeys) {
					k.put(keptPlaces, i, nil, "boxes go")
				}
				for range 20 {
					k.change("later")
				}
			})
			if after := k.p.Stats(); after.Kept == before.Kept || after.Kept-before.Kept != after.Rolls-before.Rolls {
				k.t.Errorf("%d rolls in the commit, of which %d kept the layout, want all of them", after.Rolls-before.Rolls, after.Kept-before.Kept)
			}
		}, [2]bool{false, true}, [2]bool{}},
		{"an open commit that ran out of delta entries", func(k *keeper) { // in the middle of linking a record to one behind the base
			move := func(n uint64, box func(uint64) *format.Box) {
				for i := range n {
					k.put(keptPlaces, 2*i%keptKeys, box(2*i%keptKeys), "moved")
				}
			}
			k.publish(0, func() { move(860, func(i uint64) *format.Box { return keptBox(i + 2) }) })
			before := k.p.Stats()
			k.publish(0, func() { move(160, func(uint64) *format.Box { return &crossing }) }) // two entries each
			if after := k.p.Stats(); after.Rolls != before.Rolls+1 || after.Kept != before.Kept+1 || !k.rolls.copiedIndex {
				k.t.Errorf("%d rolls in the commit, %d kept the layout, want one; it copied the index: %t", after.Rolls-before.Rolls, after.Kept-before.Kept, k.rolls.copiedIndex)
			}
			k.verifyAll()
			k.publish(0, func() { k.change("after") })
		}, [2]bool{false, true}, [2]bool{}},
		{"a deleted key", func(k *keeper) {
			k.publish(0, func() { k.remove(keptPlaces, 1); k.remove(keptNames, 1) })
		}, [2]bool{true, true}, [2]bool{}},
		{"a deleted key with a box", func(k *keeper) {
			k.publish(0, func() { k.remove(keptPlaces, 2); k.put(keptPlaces, 4, keptBox(6), "moved") })
		}, [2]bool{true, true}, [2]bool{}},
		{"deleted keys in closed views", func(k *keeper) {
			k.publish(0, func() { k.remove(keptPlaces, 2); k.remove(keptNames, 3) })
			closed := k.hlc
			k.publish(closed, func() { k.remove(keptPlaces, 4); k.put(keptPlaces, 2, keptBox(2), "again"); k.remove(keptNames, 4) })
			k.roll()
			k.verifyAll()
			k.publish(0, func() { k.put(keptPlaces, 4, keptBox(8), "again"); k.put(keptNames, 3, nil, "again") })
		}, [2]bool{true, true}, [2]bool{}},
		{"keys that came and went", func(k *keeper) {
			k.publish(0, func() { k.put(keptPlaces, keptKeys, keptBox(2), "short"); k.put(keptNames, keptKeys, nil, "short") })
			k.publish(0, func() { k.remove(keptPlaces, keptKeys); k.remove(keptNames, keptKeys) })
		}, [2]bool{true, true}, [2]bool{}},
		{"a key that came back", func(k *keeper) {
			k.publish(0, func() { k.remove(keptPlaces, 1) })
			k.publish(0, func() { k.put(keptPlaces, 1, nil, "back!") })
		}, [2]bool{true, true}, [2]bool{}},
		{"keys that came back after a roll", func(k *keeper) {
			k.publish(0, func() {
				for i := range uint64(6) {
					k.remove(keptPlaces, i)
					k.remove(keptNames, i)
				}
			})
			k.roll()
			k.verifyAll()
			k.publish(0, func() {
				k.put(keptPlaces, 0, keptBox(0), "back!")
				k.put(keptPlaces, 2, keptBox(8), "moved")
				k.put(keptPlaces, 4, nil, "no box")
				k.put(keptPlaces, 1, keptBox(keptKeys-4), "a box")
				k.put(keptPlaces, 3, nil, longer)
				k.put(keptNames, 0, nil, "back!")
				k.put(keptNames, 1, nil, longer)
			})
		}, [2]bool{true, true}, [2]bool{}},
		{"more keys deleted than are kept", func(k *keeper) {
			k.publish(0, func() {
				for i := range uint64(keptKeys / 4) {
					k.remove(keptPlaces, i)
					k.remove(keptNames, i)
				}
			})
		}, [2]bool{}, [2]bool{}},
		{"another box", func(k *keeper) {
			k.publish(0, func() { k.put(keptPlaces, 2, keptBox(4), "moved") })
		}, [2]bool{true, true}, [2]bool{}},
		{"another box after a start", func(k *keeper) {
			k.reopen()
			for i := range uint64(3) {
				k.publish(0, func() { k.put(keptPlaces, 2, keptBox(2+2*i), "moved") })
			}
		}, [2]bool{true, true}, [2]bool{}},
		{"boxes in closed views", func(k *keeper) {
			k.publish(0, func() { k.put(keptPlaces, 2, keptBox(4), "early") })
			closed := k.hlc
			k.publish(closed, func() { k.put(keptPlaces, 2, keptBox(6), "later") })
			k.publish(0, func() { k.put(keptPlaces, 4, keptBox(6), "still") })
		}, [2]bool{true, true}, [2]bool{}},
		{"new keys with boxes", func(k *keeper) {
			for i := range uint64(20) {
				k.publish(0, func() { k.put(keptPlaces, keptKeys+i, keptBox(keptKeys-20+2*i), "fresh") })
			}
			k.publish(0, func() { k.put(keptPlaces, keptKeys, keptBox(keptKeys-18), "moved") })
		}, [2]bool{true, true}, [2]bool{}},
		{"boxes that moved far", func(k *keeper) {
			k.publish(0, func() {
				for i := uint64(0); i < keptKeys; i += 2 {
					k.put(keptPlaces, i, keptBox(i*74%keptKeys), "moved")
				}
			})
		}, [2]bool{false, true}, [2]bool{}},
		{"a box that came", func(k *keeper) {
			k.publish(0, func() { k.put(keptPlaces, 1, keptBox(keptKeys-4), "moved") })
		}, [2]bool{true, true}, [2]bool{}},
		{"a box that went", func(k *keeper) {
			k.publish(0, func() { k.put(keptPlaces, 2, nil, "moved") })
		}, [2]bool{true, true}, [2]bool{}},
		{"a box across the antimeridian", func(k *keeper) {
			k.publish(0, func() { k.put(keptPlaces, 2, &crossing, "moved") })
		}, [2]bool{false, true}, [2]bool{}},
		{"a box from across the antimeridian", func(k *keeper) { // it has two leaves
			k.publish(0, func() { k.put(keptPlaces, 2, &crossing, "moved") })
			k.roll()
			k.reopen()
			k.publish(0, func() { k.put(keptPlaces, 2, keptBox(2), "again") })
		}, [2]bool{false, true}, [2]bool{}},
		{"another size", func(k *keeper) {
			k.publish(0, func() {
				k.put(keptNames, 1, nil, longer)
				k.put(keptPlaces, 2, keptBox(2), longer)
				k.put(keptPlaces, 4, keptBox(8), longer)
				k.put(keptPlaces, 3, nil, longer)
			})
			k.roll()
			k.verifyAll()
			k.publish(0, func() {
				k.put(keptNames, 1, nil, "short")
				k.put(keptPlaces, 2, keptBox(2), longer+"again")
				k.put(keptPlaces, 4, keptBox(8), longer+longer)
			})
		}, [2]bool{true, true}, [2]bool{}},
		{"another size across the antimeridian", func(k *keeper) { // it has two leaves
			k.publish(0, func() { k.put(keptPlaces, 2, &crossing, "moved") })
			k.roll()
			k.publish(0, func() { k.put(keptPlaces, 2, &crossing, longer); k.put(keptPlaces, 4, keptBox(4), longer) })
		}, [2]bool{true, true}, [2]bool{}},
		{"another size in closed views", func(k *keeper) {
			k.publish(0, func() { k.put(keptPlaces, 2, keptBox(2), longer); k.put(keptNames, 2, nil, longer) })
			closed := k.hlc
			k.publish(closed, func() { k.put(keptPlaces, 2, keptBox(2), "short"); k.put(keptNames, 2, nil, "short") })
		}, [2]bool{true, true}, [2]bool{}},
		{"more of another size than are kept", func(k *keeper) {
			k.publish(0, func() {
				for i := range uint64(keptKeys / 4) {
					k.put(keptPlaces, i, keptBox(i), longer)
					k.put(keptNames, i, nil, longer)
				}
			})
		}, [2]bool{}, [2]bool{}},
		{"timestamps that fall", func(k *keeper) {
			k.publish(k.hlc, func() { k.change("later") })
			k.hlc = 1
			k.publish(0, func() {
				k.put(keptPlaces, 0, keptBox(0), "early")
				k.put(keptNames, 0, nil, "early")
			})
			k.hlc = 10 * keptKeys
		}, [2]bool{}, [2]bool{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t)
			c.play(k)
			k.verifyAll()
			for i, table := range k.tables {
				before := k.p.Stats()
				check(t, k.p.Roll(table, 0))
				if after := k.p.Stats(); after.Rolls != before.Rolls+1 || after.Kept > before.Kept != c.kept[i] {
					t.Errorf("table %s: %d of %d rolls kept the layout, before %d of %d; want one more: %t",
						table.Name, after.Kept, after.Rolls, before.Kept, before.Rolls, c.kept[i])
				}
				if c.kept[i] && k.rolls.copiedIndex == c.anew[i] {
					t.Errorf("table %s: the index was copied: %t", table.Name, !c.anew[i])
				}
			}
			k.verifyAll()
			k.publish(0, func() { k.change("final") })
			k.verifyAll()
			k.reopen()
			k.verifyAll()
			k.roll()
			k.verifyAll()
		})
	}
}

// A plan is complete before a file is taken, so that a roll takes one file, whether all versions fit or not.
func TestKeptTakesOneFile(t *testing.T) {
	t.Parallel()
	k := newKeeper(t)
	generation := func() uint64 {
		return binary.LittleEndian.Uint64(mustImage(t, k.cfg.Dir).tables["names"].shards[0].mem[24:])
	}
	last := generation()
	for i, value := range []string{longer, "short", longer, longer, longer, "short"} {
		k.publish(0, func() { k.put(keptNames, 1, nil, value) })
		kept := k.p.Stats().Kept
		check(t, k.p.Roll(k.tables[keptNames], 0))
		if now := generation(); now != last+1 || k.p.Stats().Kept != kept+1 {
			t.Errorf("roll %d took %d files, want 1; the layout was kept: %t", i, now-last, k.p.Stats().Kept > kept)
		}
		last = generation()
	}
}

// Nothing of a value that was deleted, or has another place, is left in the base after a roll.
func TestKeptWipes(t *testing.T) {
	t.Parallel()
	k := newKeeper(t)
	k.publish(0, func() { k.put(keptNames, 1, nil, "secr1"); k.put(keptNames, 2, nil, "secr2") })
	k.roll()
	k.publish(0, func() { k.remove(keptNames, 1); k.put(keptNames, 2, nil, longer) })
	k.roll()
	k.verifyAll()
	s := mustImage(t, k.cfg.Dir).tables["names"].shards[0]
	base := s.at[2][:64*s.units]
	if at := bytes.Index(base, []byte("secr")); at >= 0 {
		t.Errorf("byte %d of the base: %q", at, base[at:at+5])
	}
	if st := k.p.Stats(); st.Kept < 3 {
		t.Errorf("%d rolls kept the layout", st.Kept)
	}
}

// New places may have the numbers that records of the append area had. None of these is taken for another, whatever bucket they share:
// here the later versions of some keys are larger, so that their places reach those of other keys' records.
func TestKeptPlacesBehindTheBase(t *testing.T) {
	t.Parallel()
	k := newKeeperOf(t, &format.Root{Image: rhumb.UUID{1}, Seed0: 0x9e3779b97f4a7c11, Seed1: 0xd1b54a32d192ed03}) // a seed that shows it
	const fresh = 60                                                                                              // in a round, of which a third grow to 3 units
	for round := range uint64(20) {
		first := keptKeys + fresh*round
		k.publish(0, func() {
			for i := range uint64(fresh) {
				k.put(keptPlaces, first+i, nil, "short")
			}
			for i := range uint64(fresh / 3) {
				k.put(keptPlaces, first+i, nil, longer[:130])
			}
		})
		check(t, k.p.Roll(k.tables[keptPlaces], 0))
		k.verifyAll()
	}
	if st := k.p.Stats(); st.Kept < 15 {
		t.Errorf("%d of %d rolls kept the layout", st.Kept, st.Rolls)
	}
}

// A reference that was damaged since the segment was opened is not followed: the roll lays everything out anew.
func TestKeptDamage(t *testing.T) {
	t.Parallel()
	k := newKeeper(t)
	for i, part := range []format.SectionType{format.SectionTreeRefs, format.SectionOrder} {
		table := k.tables[i]
		k.publish(0, func() {
			k.put(keptPlaces, 2, keptBox(4), "moved")
			k.put(keptNames, keptKeys, nil, "fresh")
		})
		s := mustImage(t, k.cfg.Dir).tables[table.Name].shards[0]
		file, err := os.OpenFile(filepath.Join(k.cfg.Dir, format.SegmentName(int(u32(s.mem, 32)), u64(s.mem, 24))), os.O_RDWR, 0)
		check(t, err)
		_, err = file.WriteAt([]byte{0xf0, 0xff, 0xff, 0xff}, int64(section(s.mem, part)))
		check(t, err)
		check(t, file.Close())
		before := k.p.Stats()
		check(t, k.p.Roll(table, 0))
		if after := k.p.Stats(); after.Kept != before.Kept {
			t.Errorf("table %s: the layout was kept", table.Name)
		}
	}
	k.verifyAll()
}

// A record that has ended is left out by the next roll, also after another start.
func TestKeptExpiry(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		dir := shmDir(t)
		p := open(t, snapshot.Config{Dir: dir})
		spec := snapshot.TableSpec{ID: 1, Name: "t", Shards: 1}
		table, err := p.Table(spec)
		check(t, err)
		ended := numberRecord(1, "ended")
		ended.Expiry = 1
		_, err = p.Load(table, all(ended, numberRecord(2, "stays")), snapshot.CommitInfo{}) // a load takes what it is given
		check(t, err)
		if again {
			check(t, p.Close())
			p = open(t, snapshot.Config{Dir: dir})
			table, err = p.Table(spec)
			check(t, err)
		}
		for want := range uint64(2) {
			check(t, p.Roll(table, 0))
			if s := p.Stats(); s.Kept != want || s.Live != 1 {
				t.Errorf("after roll %d: %d kept the layout, %d records are live", want+1, s.Kept, s.Live)
			}
		}
		for live, expiry := range []int64{1, math.MaxInt64 - 1} {
			commit(t, p, table, snapshot.Record{Key: format.Key{Number: 2}, Expiry: expiry, Value: []byte("ends")})
			check(t, p.Roll(table, 0))
			if s := p.Stats(); s.Kept != 1 || s.Live != int64(live) {
				t.Errorf("with an end at %d: %d rolls kept the layout, %d records are live, want %d", expiry, s.Kept, s.Live, live)
			}
		}
		check(t, p.Roll(table, 0))
		commit(t, p, table, snapshot.Record{Key: format.Key{Number: 2}, Expiry: math.MaxInt64 - 2, Value: []byte("ends")})
		check(t, p.Roll(table, 0))
		if s := p.Stats(); s.Kept != 3 || s.Live != 1 {
			t.Errorf("with ends to come: %d rolls kept the layout, %d records are live", s.Kept, s.Live)
		}
	}
}

// A few records that ended stay in the base as tombstones, also after another start, and what ends later goes when its time has come.
func TestKeptEnds(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	spec := snapshot.TableSpec{ID: 1, Name: "t", Shards: 1, Summed: true}
	table, err := p.Table(spec)
	check(t, err)
	record := func(n uint64, ends int64) snapshot.Record {
		rec := numberRecord(n, "value")
		rec.Expiry = ends
		return rec
	}
	var records []snapshot.Record
	for i := range uint64(100) {
		ends := int64(math.MaxInt64 - 1)
		if i == 7 || i == 8 {
			ends = 1
		}
		records = append(records, record(i, ends))
	}
	_, err = p.Load(table, all(records...), snapshot.CommitInfo{})
	check(t, err)
	roll := func(live int64) {
		t.Helper()
		kept := p.Stats().Kept
		check(t, p.Roll(table, 0))
		img := mustImage(t, dir)
		shown := img.tables["t"].all(view{version: img.committed})
		if s := p.Stats(); s.Kept != kept+1 || s.Live != live || int64(len(shown)) != live {
			t.Errorf("%d rolls kept the layout, want %d; %d records are live and %d shown, want %d", s.Kept, kept+1, s.Live, len(shown), live)
		}
	}
	roll(98)
	roll(98)
	check(t, p.Close())
	p = open(t, snapshot.Config{Dir: dir})
	table, err = p.Table(spec)
	check(t, err)
	roll(98)
	commit(t, p, table, record(7, math.MaxInt64-1))
	roll(99)
	commit(t, p, table, record(8, 2)) // it has ended too
	roll(99)
	soon := time.Now().Add(10 * time.Millisecond)
	commit(t, p, table, record(9, soon.UnixNano()))
	for p.Stats().Live > 98 && time.Since(soon) < 10*time.Second {
		check(t, p.Roll(table, 0))
	}
	roll(98)
}

// While no closed timestamp is known a roll keeps the newest versions only. Views of any moment before must not be possible
// then, whatever was known when the table was loaded.
func TestRollBeforeClosed(t *testing.T) {
	t.Parallel()
	record := func(hlc uint64, value string) snapshot.Record {
		r := numberRecord(1, value)
		r.HLC = rhumb.Timestamp(hlc)
		return r
	}
	for _, last := range []string{"same", "another size, so that a new layout is built, with a value that takes some room"} {
		dir := shmDir(t)
		p := open(t, snapshot.Config{Dir: dir})
		table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1})
		check(t, err)
		_, err = p.Load(table, all(record(5, "load")), snapshot.CommitInfo{})
		check(t, err)
		commit(t, p, table, record(10, "lost"))
		commit(t, p, table, record(11, last))
		check(t, p.Roll(table, 0))
		if got := mustImage(t, dir).tables["t"].shards[0].closed; got != 11 {
			t.Errorf("views at %d and later are possible, but what was visible before 11 is gone", got)
		}
	}
}

// A load leaves nothing of before, so that views are possible only from its newest record on, whatever is closed by then; a roll
// that keeps what it finds does not change that.
func TestRollAfterLoad(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1})
	check(t, err)
	rec := numberRecord(1, "loaded")
	rec.HLC = 50
	_, err = p.Load(table, all(rec), snapshot.CommitInfo{Closed: 10})
	check(t, err)
	for _, value := range []string{"same size, so that the layout is kept", "another"} {
		check(t, p.Roll(table, 0))
		if got := mustImage(t, dir).tables["t"].shards[0].closed; got != 50 {
			t.Errorf("views at %d are possible, and the record of 50 came with a load", got)
		}
		commit(t, p, table, numberRecord(1, value))
	}
}
