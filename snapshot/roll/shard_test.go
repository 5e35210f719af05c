package roll

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// tempFiles provides files in a directory of the test's own.
type tempFiles struct {
	dir                      string
	taken, recycled, removed int
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

// Recycle removes a file too: no test needs its memory.
func (f *tempFiles) Recycle(m *shm.File) { f.recycled++; m.Remove() }

// version is what the model knows of one version of a key.
type version struct {
	number uint64
	rec    segment.Record
	gone   bool
}

// shard is a shard that commits and rolls change, and a model of what it must show.
type shard struct {
	t      testing.TB
	files  *tempFiles
	roller Roller
	id     segment.Shard
	seg    *segment.Segment
	closed rhumb.Timestamp // of the image
	last   rhumb.Timestamp // of the generation
	newest uint64
	model  map[uint64][]version
	batch  segment.Batch
}

func newShard(t testing.TB, flags uint16) *shard {
	t.Helper()
	table := &format.Table{ID: 7, Name: "t", Flags: format.TableUsed | flags, ShardCount: 1}
	s := &shard{
		t: t, files: &tempFiles{dir: t.TempDir()}, model: map[uint64][]version{},
		id: segment.Shard{Table: table, Root: &format.Root{Image: rhumb.UUID{1}, Seed0: 0x9e3779b97f4a7c15, Seed1: 0xd1b54a32d192ed03}},
	}
	s.roller.Builder = &segment.Builder{Files: s.files, AppendRatio: 0.25}
	seg, err := s.roller.Builder.Build(segment.Goal{Shard: s.id}, &segment.Source{})
	s.must(err)
	s.seg = seg
	t.Cleanup(func() { s.seg.File.Close() })
	return s
}

func (s *shard) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// room makes sure that a commit of some records fits.
func (s *shard) room(wall int64, records int) {
	s.t.Helper()
	if int(s.seg.FreeUnits()) < 8*records {
		s.roll(wall, segment.Room{Units: uint64(16 * records), Records: uint64(2 * records)})
	}
}

// write appends and links one record of the next version, as a commit would.
func (s *shard) write(rec segment.Record, gone bool) {
	s.t.Helper()
	flags := uint16(0)
	if gone {
		flags = format.FlagTombstone
	}
	e := segment.EncodingOf(s.id.Root, s.id.Table.KeyKind, &rec, flags)
	ref := s.seg.Append(&rec, e, uint32(s.newest+1-s.seg.Head.Base))
	s.batch.Add(s.seg, e.Hash, ref)
	s.batch.FetchBuckets()
	s.batch.FetchRecords()
	if !s.batch.Link(0) {
		s.t.Fatal("the segment ran out of room for a link")
	}
	s.batch.Reset()
	s.model[rec.Key.Number] = append(s.model[rec.Key.Number], version{s.newest + 1, rec, gone})
}

// commit makes what was written visible.
func (s *shard) commit(closed rhumb.Timestamp) {
	s.seg.SettleCommit()
	s.newest++
	s.closed = max(s.closed, closed)
}

// discard takes back what was written.
func (s *shard) discard() {
	s.seg.AbortCommit()
	for key, versions := range s.model {
		s.model[key] = slices.DeleteFunc(versions, func(v version) bool { return v.number > s.newest })
	}
}

func (s *shard) input(wall int64, room segment.Room) Input {
	return Input{Old: s.seg, Shard: s.id, Version: s.newest, Closed: s.closed, ShardClosed: s.last, Wall: wall, Room: room}
}

// roll replaces the segment and returns why its layout was not kept.
func (s *shard) roll(wall int64, room segment.Room) Reason {
	s.t.Helper()
	result, err := s.roller.Roll(s.input(wall, room))
	s.must(err)
	s.replace(result.Segment)
	return result.NotKept
}

// replace puts a new generation in the place of the old one, whose file goes.
func (s *shard) replace(seg *segment.Segment) {
	s.t.Helper()
	seg.TakePending(s.seg)
	s.seg.File.Remove()
	s.seg, s.last = seg, seg.Head.Closed
	s.checkSegment()
}

// checkSegment opens the file anew, with all the checks of a start, and compares what the checks count with what the roll
// counted.
func (s *shard) checkSegment() {
	s.t.Helper()
	h := &s.seg.Head
	opened, err := segment.Open(s.seg.File, s.id, format.Shard{
		Generation: h.Generation, Base: h.Base, FileSize: h.FileSize, Closed: h.Closed, Table: h.Table,
	})
	s.must(err)
	if counted := opened.Base; counted.Dead != s.seg.Base.Dead || counted.Waste != s.seg.Base.Waste || s.seg.IsSpatial() && counted.Split && !s.seg.Base.Split {
		s.t.Fatalf("the roll counted %+v, the base has %+v", s.seg.Base, counted)
	}
}

// visible returns what the newest version shows, by key.
func (s *shard) visible() map[uint64]segment.Record {
	out := map[uint64]segment.Record{}
	for ref := range s.seg.Visible(s.newest) {
		rec := s.seg.Heap.Decode(ref)
		if _, twice := out[rec.Key.Number]; twice {
			s.t.Fatalf("key %d is visible twice", rec.Key.Number)
		}
		out[rec.Key.Number] = rec
	}
	return out
}

// verify compares what the newest version and a closed view show with the model. Records that have ended may be there or not.
func (s *shard) verify(wall int64) {
	s.t.Helper()
	got := s.visible()
	for key, versions := range s.model {
		want := latest(versions, func(v version) bool { return v.number <= s.newest })
		rec, ok := got[key]
		s.compare(fmt.Sprintf("key %d", key), rec, ok, want, wall)
		delete(got, key)
		if s.closed == 0 || s.closed < s.last {
			continue
		}
		rec, ok = s.closedVersion(key)
		want = latest(versions, func(v version) bool { return v.number <= s.newest && v.rec.HLC <= s.closed })
		s.compare(fmt.Sprintf("key %d, closed at %d", key, s.closed), rec, ok, want, wall)
	}
	for key := range got {
		s.t.Fatalf("key %d is visible and was never written", key)
	}
	if live := int64(len(s.visible())); live != s.seg.Live() {
		s.t.Fatalf("%d keys are visible, the segment counts %d", live, s.seg.Live())
	}
}

func (s *shard) compare(where string, got segment.Record, ok bool, want *version, wall int64) {
	s.t.Helper()
	switch {
	case want != nil && want.rec.Expiry != 0 && want.rec.Expiry <= wall: // a roll may have left it out
	case want == nil || want.gone:
		if ok {
			s.t.Fatalf("%s: visible with %q, want nothing", where, got.Value)
		}
	case !ok || string(got.Value) != string(want.rec.Value) || got.HLC != want.rec.HLC || got.HasBox != want.rec.HasBox || got.Box != want.rec.Box:
		s.t.Fatalf("%s: visible %t with %+v, want %+v", where, ok, got, want.rec)
	}
}

// latest returns the last version that counts, or nil.
func latest(versions []version, counts func(version) bool) (out *version) {
	for i := range versions {
		if counts(versions[i]) {
			out = &versions[i]
		}
	}
	return out
}

// closedVersion follows the chain of a key as a closed view does.
func (s *shard) closedVersion(key uint64) (segment.Record, bool) {
	for head := range s.seg.Heads() {
		if s.seg.Heap.At(head).Key != key {
			continue
		}
		for ref := head; ref != segment.NoRef; ref = s.seg.Heap.At(ref).Prev {
			if !s.seg.Heap.IsAborted(ref) && s.seg.Heap.At(ref).Ver <= s.seg.RelativeVersion(s.newest) && s.seg.Heap.HLC(ref) <= s.closed {
				return s.seg.Heap.Decode(ref), !s.seg.Heap.IsTombstone(ref)
			}
		}
	}
	return segment.Record{}, false
}

// sortedKeys returns the keys of a map in ascending order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
