package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// section returns the file offset of a section of a segment.
func section(p []byte, t format.SectionType) uint64 {
	for i := range u32(p, 88) {
		if q := p[format.SegmentSecOff+int(i)*format.SectionSize:]; u32(q, 0) == uint32(t) {
			return u64(q, 8)
		}
	}
	panic(fmt.Sprint("no section of type ", t))
}

func flip(at func(p []byte) uint64) func([]byte) []byte {
	return func(p []byte) []byte {
		p[at(p)] ^= 0x40
		return p
	}
}

func fixed(n uint64) func([]byte) uint64 { return func([]byte) uint64 { return n } }

// Every kind of damage to a segment takes its table out, puts the file into quarantine with a text that names it, and leaves
// the rest.
func TestDamagedSegment(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		damage func(p []byte) []byte
		kind   rhumb.Kind
	}{
		"truncated":              {func(p []byte) []byte { return p[:len(p)-4096] }, rhumb.Corrupt},
		"longer":                 {func(p []byte) []byte { return append(p, 0) }, rhumb.Corrupt},
		"empty":                  {func([]byte) []byte { return nil }, rhumb.Corrupt},
		"magic":                  {flip(fixed(0)), rhumb.Corrupt},
		"later version":          {func(p []byte) []byte { p[8] = 9; return p }, rhumb.Incompatible},
		"byte order":             {flip(fixed(16)), rhumb.Incompatible},
		"header":                 {flip(fixed(200)), rhumb.Corrupt},
		"state":                  {flip(fixed(format.SegmentState)), rhumb.Corrupt},
		"append tail":            {flip(fixed(format.SegmentAppendTail + 5)), rhumb.Corrupt},
		"append head":            {flip(fixed(format.SegmentAppendHead + 5)), rhumb.Corrupt},
		"overflow":               {flip(fixed(format.SegmentOverflow + 6)), rhumb.Corrupt},
		"base record":            {flip(func(p []byte) uint64 { return section(p, format.SectionHeap) + 30 }), rhumb.Corrupt},
		"tree":                   {flip(func(p []byte) uint64 { return section(p, format.SectionTreeNodes) + 300 }), rhumb.Corrupt},
		"tree references":        {flip(func(p []byte) uint64 { return section(p, format.SectionTreeRefs) }), rhumb.Corrupt},
		"order":                  {flip(func(p []byte) uint64 { return section(p, format.SectionOrder) }), rhumb.Corrupt},
		"skip list":              {flip(func(p []byte) uint64 { return section(p, format.SectionOrderDelta) + 4*3 + 3 }), rhumb.Corrupt},
		"delta":                  {flip(func(p []byte) uint64 { return section(p, format.SectionDelta) + 23 }), rhumb.Corrupt},
		"delta cells":            {flip(func(p []byte) uint64 { return section(p, format.SectionDeltaCells) + 3 }), rhumb.Corrupt},
		"appended record":        {flip(func(p []byte) uint64 { return section(p, format.SectionHeap) + uint64(u32(p, 104))*64 + 17 }), rhumb.Corrupt},
		"overflow bucket":        {flip(func(p []byte) uint64 { return section(p, format.SectionIndex) + 63 }), rhumb.Corrupt},
		"bucket reference":       {func(p []byte) []byte { return flipReference(p) }, rhumb.Corrupt},
		"index to no record":     {intoRecord(indexRefs), rhumb.Corrupt},
		"version of no record":   {intoRecord(predecessors), rhumb.Corrupt},
		"delta to no record":     {intoRecord(func(p []byte) []uint64 { return []uint64{section(p, format.SectionDelta) + 16} }), rhumb.Corrupt},
		"skip list to no record": {intoRecord(func(p []byte) []uint64 { return []uint64{section(p, format.SectionOrderDelta) + 15*4} }), rhumb.Corrupt},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shmDir(t)
			rolledImage(t, dir)
			path := segments(t, dir)[1]
			edit(t, path, c.damage)
			p := open(t, snapshot.Config{Dir: dir})
			r := p.Recovery()
			if r.Fresh || len(r.Quarantined) != 1 || len(r.Dropped) != 1 || r.Dropped[0] != "left" {
				t.Fatalf("recovery %+v, want one file in quarantine and table left dropped", r)
			}
			if err := r.Quarantined[0].Err; rhumb.KindOf(err) != c.kind {
				t.Errorf("%v, want kind %s", err, c.kind)
			}
			if _, err := os.Stat(r.Quarantined[0].File); err != nil {
				t.Error(err)
			}
			img := mustImage(t, dir)
			if img.tables["left"] != nil || len(img.tables["right"].all(view{version: img.committed})) < together {
				t.Error("the root still has the damaged table, or lost the other")
			}
			check(t, writeNumber(p, writerTables(t, p), img.committed+1))
			verifyTogether(t, mustImage(t, dir))
		})
	}
}

// intoRecord makes a reference lead to the second unit of a record; places gives where references stand.
func intoRecord(places func(p []byte) []uint64) func([]byte) []byte {
	return func(p []byte) []byte {
		heap := section(p, format.SectionHeap)
		for _, at := range places(p) {
			ref := u32(p, int(at))
			if ref != format.NoPrev && u16(p, int(heap+uint64(ref)*format.RecordAlign+format.RecordLen)) > format.RecordAlign-format.RecordHeadSize {
				binary.LittleEndian.PutUint32(p[at:], ref+1)
				return p
			}
		}
		panic("no reference to a record of several units")
	}
}

// indexRefs returns where the references in use stand in the index.
func indexRefs(p []byte) (places []uint64) {
	for at := section(p, format.SectionIndex); at < section(p, format.SectionHeap); at += format.BucketSize {
		for slot := range uint64(format.BucketSlots) {
			if u16(p, int(at+2*slot)) != 0 {
				places = append(places, at+format.BucketRefs+4*slot)
			}
		}
	}
	return places
}

// predecessors returns where the records that are the newest of their key tell of the version before.
func predecessors(p []byte) (places []uint64) {
	for _, at := range indexRefs(p) {
		places = append(places, section(p, format.SectionHeap)+uint64(u32(p, int(at)))*format.RecordAlign+format.RecordPrev)
	}
	return places
}

// flipReference damages the first reference in use.
func flipReference(p []byte) []byte {
	at := section(p, format.SectionIndex)
	for u16(p, int(at)) == 0 {
		at += format.BucketSize
	}
	p[at+format.BucketRefs+3] ^= 0x40
	return p
}

// rolledImage makes an image whose tables have a base and an append area.
func rolledImage(t *testing.T, dir string) {
	t.Helper()
	written(t, dir, 1, 30)
	p, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	tables := writerTables(t, p)
	for _, table := range tables {
		for i := range int(table.ShardCount) {
			check(t, p.Roll(table, i))
		}
	}
	check(t, writeNumber(p, tables, 31))
	c := p.Begin()
	for i := range uint64(64) { // enough for new keys in each shard
		check(t, c.Put(tables[0], numberRecord(2000+i, "a value that takes a second unit, whatever stands beside it")))
	}
	_, err = c.Publish(snapshot.CommitInfo{})
	check(t, err)
	check(t, p.Close())
}

// A root that cannot be used is put into quarantine, and a new image made.
func TestDamagedRoot(t *testing.T) {
	t.Parallel()
	cases := map[string]func(p []byte) []byte{
		"truncated":       func(p []byte) []byte { return p[:4096] },
		"magic":           flip(fixed(3)),
		"seed":            flip(fixed(41)),
		"later version":   func(p []byte) []byte { p[8] = format.Major + 1; return p },
		"positions entry": flip(fixed(format.RootTables + 20)),
		"positions shard": flip(fixed(format.RootShards + 8)),
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shmDir(t)
			written(t, dir, 1, 2)
			edit(t, filepath.Join(dir, format.RootName), damage)
			p := open(t, snapshot.Config{Dir: dir})
			if r := p.Recovery(); !r.Fresh || len(r.Quarantined) == 0 {
				t.Fatalf("recovery %+v, want a new image", r)
			}
			if n := len(segments(t, dir)); n != 1 {
				t.Errorf("%d segments, want that of the positions", n)
			}
			if img := mustImage(t, dir); img.committed != 0 || len(img.tables) != 1 {
				t.Errorf("version %d, %d tables", img.committed, len(img.tables))
			}
		})
	}
}

// An entry that is damaged while the root was not being changed takes its table out.
func TestDamagedEntry(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]uint64{
		"table": format.RootTables + format.TableEntrySize + 17, "shard": format.RootShards + format.ShardEntrySize + 9,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shmDir(t)
			written(t, dir, 1, 2)
			edit(t, filepath.Join(dir, format.RootName), flip(fixed(at)))
			p := open(t, snapshot.Config{Dir: dir})
			img := mustImage(t, dir)
			if img.tables["left"] != nil || img.tables["right"] == nil || p.Recovery().Fresh {
				t.Errorf("recovery %+v", p.Recovery())
			}
		})
	}
}

func TestQuarantineIsBounded(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	for range snapshot.QuarantineMax + 3 {
		written(t, dir, 1, 1)
		edit(t, filepath.Join(dir, format.RootName), flip(fixed(0)))
	}
	open(t, snapshot.Config{Dir: dir})
	files, err := os.ReadDir(filepath.Join(dir, "quarantine"))
	check(t, err)
	if len(files) != snapshot.QuarantineMax {
		t.Errorf("%d files in quarantine, want %d", len(files), snapshot.QuarantineMax)
	}
}

// What a dead publisher was building, or had superseded, is removed; files of others are not.
func TestOrphans(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	written(t, dir, 1, 2)
	for _, name := range []string{"seg.1.99", "recycled.4", "root.new", "notes.txt"} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644))
	}
	p := open(t, snapshot.Config{Dir: dir})
	for name, want := range map[string]bool{"seg.1.99": false, "recycled.4": false, "root.new": false, "notes.txt": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", name, err == nil, want)
		}
	}
	table, err := p.Table(writerSpecs()[0])
	check(t, err)
	check(t, p.Roll(table, 0))
	root, err := os.ReadFile(filepath.Join(dir, format.RootName))
	check(t, err)
	if g := binary.LittleEndian.Uint64(root[format.RootShards+format.ShardEntrySize:]); g > 50 {
		t.Errorf("generation %d follows the name of a file that never was live", g)
	}
}

// A publisher may die while it puts several tables into the root. The entry that it was writing is torn, and its table, which
// never was there, is taken out; the others come back as they were, and no shard stays behind that belongs to no table.
func TestTornTables(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(entry []byte){
		"torn entry": func(e []byte) { e[30] ^= 1 }, "no entry yet": func(e []byte) { clear(e) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shmDir(t)
			written(t, dir, 1, 3)
			edit(t, filepath.Join(dir, format.RootName), func(p []byte) []byte {
				p[format.RootTableSeq] |= 1
				damage(p[format.RootTables+format.TableEntrySize:][:format.TableEntrySize]) // left, with shards 1 and 2
				right := p[format.RootShards+3*format.ShardEntrySize:][:format.ShardEntrySize]
				s, _, _ := format.DecodeShard(right)
				s.Base, s.Generation = 1000, s.Generation+5
				format.EncodeShard(right, s)
				return p
			})
			p := open(t, snapshot.Config{Dir: dir})
			img := mustImage(t, dir)
			if r := p.Recovery(); r.Fresh || len(r.Quarantined) > 0 || img.tables["left"] != nil || img.tables["right"] == nil || img.tables["steady"] == nil {
				t.Errorf("recovery %+v left the tables %v", r, img.tables)
			}
			if e := img.root[format.RootShards+format.ShardEntrySize:][:2*format.ShardEntrySize]; !bytes.Equal(e, make([]byte, len(e))) {
				t.Errorf("shards 1 and 2 belong to no table and stay: %x", e)
			}
		})
	}
}

// A shard to which nothing was written for 2^32 commits shows what was committed and nothing else, also after the roll before
// the next write.
func TestFarFromBase(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	spec := snapshot.TableSpec{ID: 1, Name: "t", Shards: 1}
	table, err := p.Table(spec)
	check(t, err)
	for n, value := range []string{"first", "second", "third"} {
		commit(t, p, table, numberRecord(1, value), numberRecord(uint64(2+n), value))
	}
	c := p.Begin()
	for n := range uint64(200) { // so many that they are in the index when the commit is given up
		check(t, c.Put(table, numberRecord(100+n, "never")))
	}
	c.Discard()
	check(t, p.Close())
	edit(t, filepath.Join(dir, format.RootName), func(p []byte) []byte {
		binary.LittleEndian.PutUint64(p[format.RootCommitted:], 1<<32+1)
		return p
	})
	p = open(t, snapshot.Config{Dir: dir})
	table, err = p.Table(spec)
	check(t, err)
	shown := map[uint64]string{}
	for rec := range table.All() {
		shown[rec.Key.Number] = string(rec.Value)
	}
	if want := map[uint64]string{1: "third", 2: "first", 3: "second", 4: "third"}; !maps.Equal(shown, want) {
		t.Errorf("the table shows %v, want %v", shown, want)
	}
	commit(t, p, table, numberRecord(2, "fresh"))
	img := mustImage(t, dir)
	shown = map[uint64]string{}
	for key, v := range img.tables["t"].all(view{version: img.committed}) {
		shown[binary.BigEndian.Uint64([]byte(key))] = v.value
	}
	if want := map[uint64]string{1: "third", 2: "fresh", 3: "second", 4: "third"}; !maps.Equal(shown, want) {
		t.Errorf("after another commit the image shows %v, want %v", shown, want)
	}
	if base := img.tables["t"].shards[0].base; base != 1<<32+1 {
		t.Errorf("the shard has base %d, want the version before the write", base)
	}
}
