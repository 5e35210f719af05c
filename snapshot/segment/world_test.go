package segment

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// tempFiles provides files in a directory of the test's own.
type tempFiles struct {
	dir     string
	taken   int
	removed int
}

// Take creates a file.
func (f *tempFiles) Take(_ rhumb.Op, slot int, size int64) (*shm.File, error) {
	f.taken++
	m, err := shm.Create(filepath.Join(f.dir, format.SegmentName(slot, uint64(f.taken))), size, 0o600, false)
	if err == nil {
		m.Generation = uint64(f.taken)
	}
	return m, err
}

// Remove removes a file.
func (f *tempFiles) Remove(m *shm.File) { f.removed++; m.Remove() }

// Recycle removes a file.
func (f *tempFiles) Recycle(m *shm.File) { m.Remove() }

var testRoot = format.Root{Image: rhumb.UUID{1}, Seed0: 0x9e3779b97f4a7c15, Seed1: 0xd1b54a32d192ed03}

// world is a table of one shard, and what builds it.
type world struct {
	t       testing.TB
	shard   Shard
	files   *tempFiles
	builder *Builder
}

func newWorld(t testing.TB, kind format.KeyKind, flags uint16) *world {
	files := &tempFiles{dir: t.TempDir()}
	table := &format.Table{ID: 3, Name: "t", KeyKind: kind, Flags: format.TableUsed | flags, ShardCount: 1}
	return &world{t, Shard{Table: table, Root: &testRoot}, files, &Builder{Files: files, AppendRatio: 1}}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// source lays records out in a heap of their own.
func (w *world) source(recs []Record) *Source {
	heap := Heap{Kind: w.shard.Table.KeyKind}
	src := &Source{}
	for i := range recs {
		e := EncodingOf(&testRoot, heap.Kind, &recs[i], 0)
		src.Refs = append(src.Refs, uint32(src.Units))
		heap.Mem = append(heap.Mem, make([]byte, int(e.Units)*format.RecordAlign)...)
		heap.EncodeAt(uint32(src.Units), &recs[i], e, 0, w.shard.Table.Summed())
		src.Units += uint64(e.Units)
	}
	src.Heap = heap
	return src
}

// build builds a segment of records at version 10.
func (w *world) build(recs []Record) *Segment {
	w.t.Helper()
	seg, err := w.builder.Build(Goal{Shard: w.shard, Version: 10, Room: Room{Units: 4096, Records: 1024}}, w.source(recs))
	w.must(err)
	w.t.Cleanup(seg.File.Close)
	return seg
}

// append links one record of a version.
func (w *world) append(seg *Segment, rec Record, flags uint16, version uint64) (ref uint32) {
	w.t.Helper()
	e := EncodingOf(&testRoot, seg.Heap.Kind, &rec, flags)
	ref = seg.Append(&rec, e, uint32(version-seg.Head.Base))
	var b Batch
	b.Add(seg, e.Hash, ref)
	b.FetchBuckets()
	b.FetchRecords()
	if !b.Link(0) {
		w.t.Fatal("the segment ran out of room for a link")
	}
	return ref
}

// reopen checks the file of a segment as a start does.
func (w *world) reopen(seg *Segment) (*Segment, error) {
	h := &seg.Head
	return Open(seg.File, w.shard, format.Shard{Generation: h.Generation, Base: h.Base, FileSize: h.FileSize, Closed: h.Closed, Table: h.Table})
}

// recordOf returns record i of a table: every third has no box, and values have three lengths.
func (w *world) recordOf(i int) Record {
	rec := Record{HLC: rhumb.Timestamp(i + 1), Value: fmt.Appendf(nil, "%0*d", 10+60*(i%3), i)}
	switch {
	case w.shard.Table.KeyKind == format.KeyUint64:
		rec.Key.Number = uint64(i) * 0x9E3779B97F4A7C15
	case i%7 == 6:
		rec.Key = format.Key{Name: fmt.Appendf(nil, "%016d", i), ShardKey: true}
	default:
		rec.Key.Name = fmt.Appendf(nil, "name/%d", i)
	}
	if w.shard.Table.Spatial() && i%3 != 0 {
		rec.Box, rec.HasBox = format.Box{MinX: int32(i) * 100, MaxX: int32(i)*100 + 50, MaxY: 50}, true
	}
	return rec
}

func (w *world) recordsOf(n int) (recs []Record) {
	for i := range n {
		recs = append(recs, w.recordOf(i))
	}
	return recs
}

// valuesAt returns the values that a version shows, by key.
func valuesAt(seg *Segment, version uint64) map[string]string {
	out := map[string]string{}
	for ref := range seg.Visible(version) {
		rec := seg.Heap.Decode(ref)
		out[keyOf(rec.Key)] = string(rec.Value)
	}
	return out
}

func keyOf(k format.Key) string { return fmt.Sprint(k.Number, string(k.Name), k.ShardKey) }

// kinds are the tables that the tests run over.
var kinds = []struct {
	kind  format.KeyKind
	flags uint16
}{
	{format.KeyUint64, 0},
	{format.KeyName, format.TableOrdered},
	{format.KeyUint64, format.TableSpatial | format.TableSummed},
	{format.KeyName, format.TableOrdered | format.TableSpatial | format.TableSummed},
}

const noExpiry = math.MaxInt64
