package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A load keeps its records in recycled files until it knows where they belong, and goes on elsewhere when there are more of
// them than the files hold. It leaves the files to the shards it builds, gives them back when it fails, and one that is
// killed meanwhile leaves nothing that looks like a segment.
func TestLoadStaging(t *testing.T) {
	t.Parallel()
	const few, many = 40_000, 130_000
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir, Recycle: 16, Identity: evenSeeds})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 4, Spatial: true})
	check(t, err)
	staged := 0 // recycled files with records of the load under way
	load := func(n uint64, round int, end error) error {
		value := fmt.Appendf(make([]byte, 0, 100), "round %d", round)[:100]
		_, err := p.Load(table, func(yield func(snapshot.Record, error) bool) {
			for i := range n {
				box := format.Box{MinX: int32(i), MinY: int32(round), MaxX: int32(i), MaxY: int32(round)}
				if !yield(snapshot.Record{Key: format.Key{Number: i}, Box: box, HasBox: true, Value: value}, nil) {
					return
				}
			}
			staged = stagedFiles(t, dir, value)
			if end != nil {
				yield(snapshot.Record{}, end)
			}
		}, snapshot.CommitInfo{})
		return err
	}
	verify := func(n int, round int) {
		t.Helper()
		img := mustImage(t, dir)
		got := img.tables["t"].all(view{version: img.committed})
		for key, r := range got {
			if !bytes.HasPrefix([]byte(r.value), fmt.Appendf(nil, "round %d", round)) || r.box[1] != int32(round) {
				t.Fatalf("key %x: value %q and box %v in round %d", key, r.value, r.box, round)
			}
		}
		if len(got) != n {
			t.Fatalf("%d records, want %d", len(got), n)
		}
	}
	for round := range 4 {
		check(t, load(few, round, nil))
		verify(few, round)
	}
	before := p.Stats().Bytes
	check(t, load(few, 4, nil))
	if after := p.Stats().Bytes; after != before || staged != 3 {
		t.Errorf("%d recycled files took records, want all but one; %d bytes, before %d", staged, after, before)
	}
	verify(few, 4)
	if err := load(few, 5, os.ErrClosed); err == nil {
		t.Error("the load went well")
	}
	if after := p.Stats().Bytes; after != before {
		t.Errorf("%d bytes after a load that failed, before %d", after, before)
	}
	verify(few, 4)
	check(t, load(many, 6, nil))
	verify(many, 6)
	check(t, load(few, 7, nil))
	verify(few, 7)
}

// The leaves of the tree lie as the records do, also when one record has two of them, for which another way is taken. Records
// without a box come behind.
// A load that cannot fit asks for no more records than fit, so it takes no more memory than the image may have.
func TestLoadStopsAtBudget(t *testing.T) {
	const budget = 4 << 20
	p := open(t, snapshot.Config{Dir: shmDir(t), Budget: budget})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 4})
	check(t, err)
	asked := 0
	_, err = p.Load(table, func(yield func(snapshot.Record, error) bool) {
		for ; asked < 1_000_000; asked++ {
			if !yield(numberRecord(uint64(asked), strings.Repeat("v", 1000)), nil) {
				return
			}
		}
	}, snapshot.CommitInfo{})
	wantKind(t, err, rhumb.Overloaded)
	if asked > budget/1000 {
		t.Errorf("the load took %d records of 1,000 bytes; the budget is %d bytes", asked, budget)
	}
}

func TestLoadOrder(t *testing.T) {
	t.Parallel()
	const n, crossing = 3000, 1 << 40
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	var want []string // keys in the order of the leaves
	for i, name := range []string{"plain", "crossing"} {
		rng := rand.New(rand.NewPCG(1, 2))
		records := make([]snapshot.Record, n, n+1)
		for k := range records {
			x, y := int32(rng.IntN(3_500_000)-1_750_000)*1000, int32(rng.IntN(1_700_000)-850_000)*1000
			records[k] = snapshot.Record{Key: format.Key{Number: uint64(k)}, Value: make([]byte, rng.IntN(200))}
			if records[k].HasBox = rng.IntN(5) > 0; records[k].HasBox {
				records[k].Box = format.Box{MinX: x, MinY: y, MaxX: x + int32(rng.IntN(1000)), MaxY: y + 7}
			}
		}
		if name == "crossing" {
			box := format.Box{MinX: 1_799_990_000, MinY: 5, MaxX: -1_799_990_000, MaxY: 6}
			records = append(records, snapshot.Record{Key: format.Key{Number: crossing}, Box: box, HasBox: true})
		}
		table, err := p.Table(snapshot.TableSpec{ID: rhumb.TableID(i + 1), Name: name, Spatial: true, Ordered: true, Shards: 1})
		check(t, err)
		_, err = p.Load(table, all(records...), snapshot.CommitInfo{})
		check(t, err)
		img := mustImage(t, dir)
		shard := img.tables[name].shards[0]
		leaves, bare := leavesOf(t, shard, string(binary.BigEndian.AppendUint64(nil, crossing)))
		if want == nil {
			want = leaves
		}
		if !slices.Equal(leaves, want) {
			t.Errorf("table %s: the leaves are in another order than without a crossing box", name)
		}
		if len(leaves)+bare != n || bare < n/10 {
			t.Errorf("table %s: %d leaves and %d records without a box behind them, want %d together", name, len(leaves), bare, n)
		}
		if keys := img.tables[name].ordered(view{version: img.committed}); len(keys) != len(records) {
			t.Errorf("table %s: %d keys in order, want %d", name, len(keys), len(records))
		}
	}
}

// leavesOf returns the keys of the leaves in their order, but for those of one key, which has two, and how many records lie behind
// the last of them. It checks that the leaves have the boxes of the records.
func leavesOf(t *testing.T, s *imageSegment, crossing string) (keys []string, bare int) {
	t.Helper()
	nodes, items := s.at[3][256:], u32(s.at[3], 4)
	last, crossings := -1, 0
	for i := range items {
		var b [4]int32
		for c := range b {
			b[c] = int32(u32(nodes[256*(i/16):], int(64*uint32(c)+4*(i%16))))
		}
		ref := u32(s.at[4], int(4*i))
		r := s.record(ref, false)
		if r.key == crossing {
			crossings++
			if !slices.Contains(parts(r.box), b) {
				t.Errorf("leaf %d of the crossing box is %v", i, b)
			}
			last = max(last, int(ref))
			continue
		}
		if b != r.box || int(ref) <= last {
			t.Fatalf("leaf %d has box %v and leads to record %d, which has %v; the one before to %d", i, b, ref, r.box, last)
		}
		last = int(ref)
		keys = append(keys, r.key)
	}
	if crossings != 0 && crossings != 2 {
		t.Errorf("%d leaves of the crossing box", crossings)
	}
	for ref := uint64(last) + uint64(s.record(uint32(last), false).size+63)/64; ref < s.units; bare++ {
		r := s.record(uint32(ref), false)
		if r.flags&2 != 0 {
			t.Errorf("record %d has a box and lies behind the leaves", ref)
		}
		ref += uint64(r.size+63) / 64
	}
	return keys, bare
}

// stagedFiles counts the recycled files in which a value stands, and checks that none has a magic.
func stagedFiles(t *testing.T, dir string, value []byte) (n int) {
	paths, err := filepath.Glob(filepath.Join(dir, "recycled.*"))
	check(t, err)
	for _, path := range paths {
		mem, err := os.ReadFile(path)
		check(t, err)
		if u64(mem, 0) != 0 {
			t.Errorf("%s has a magic", path)
		}
		if bytes.Contains(mem, value) {
			n++
		}
	}
	return n
}

// What a load brings does not count for what else a commit may hold.
func TestLoadBesideCommit(t *testing.T) {
	t.Parallel()
	p := open(t, snapshot.Config{Dir: shmDir(t)})
	loaded, err := p.Table(snapshot.TableSpec{ID: 1, Name: "loaded", Shards: 1})
	check(t, err)
	other, err := p.Table(snapshot.TableSpec{ID: 2, Name: "other", Shards: 1})
	check(t, err)
	c := p.Begin()
	check(t, c.Load(loaded, func(yield func(snapshot.Record, error) bool) {
		for n := uint64(0); n < snapshot.CommitRecordsMax && yield(numberRecord(n, ""), nil); n++ {
		}
	}))
	check(t, c.Put(other, numberRecord(1, "beside")))
	c.Discard()
}
