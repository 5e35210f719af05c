package roll

import (
	"math/rand/v2"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// TestRandomRolls plays random commits and rolls from seeds, on every kind of table. After each roll the generation passes the
// checks of a start, shows what a model shows, at the newest version and at the closed timestamp, and has counted its idle
// units right.
func TestRandomRolls(t *testing.T) {
	t.Parallel()
	kept, anew := 0, map[Reason]int{}
	for seed := range uint64(48) {
		flags := []uint16{0, format.TableOrdered, format.TableSpatial, format.TableOrdered | format.TableSpatial | format.TableSummed}[seed%4]
		p := &randomPlay{shard: newShard(t, flags), rng: rand.New(rand.NewPCG(seed, 1))}
		for range 12 {
			p.playCommits()
			if reason := p.roll(p.wall, segment.Room{}); reason == "" {
				kept++
			} else {
				anew[reason]++
			}
			p.verify(p.wall)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d rolls kept the layout; anew: %v", kept, anew)
	if kept < 100 || anew[EmptyBase] == 0 || anew[TooMuchWaste] == 0 || anew[BoxCrosses] == 0 || anew[TimestampsFall] == 0 {
		t.Errorf("%d rolls kept the layout, %v did not; the seeds are to reach all of these", kept, anew)
	}
}

// randomPlay writes random records.
type randomPlay struct {
	*shard
	rng  *rand.Rand
	hlc  rhumb.Timestamp
	wall int64
}

// playCommits writes a few commits, one of which may be discarded.
func (p *randomPlay) playCommits() {
	sizes := 1 + p.rng.IntN(2) // in half of the rounds all values have one length
	for range 1 + p.rng.IntN(3) {
		n := 1 + p.rng.IntN(40)
		p.room(p.wall, n)
		for range n {
			p.writeRandom(sizes)
		}
		if p.rng.IntN(8) == 0 {
			p.discard()
			continue
		}
		closed := rhumb.Timestamp(0)
		if p.rng.IntN(2) == 0 {
			closed = p.hlc - rhumb.Timestamp(p.rng.IntN(int(p.hlc)))
		}
		p.commit(closed)
	}
	p.wall += int64(p.rng.IntN(20))
}

func (p *randomPlay) writeRandom(sizes int) {
	p.hlc++
	rec := segment.Record{Key: format.Key{Number: uint64(p.rng.IntN(300))}, HLC: p.hlc}
	if p.rng.IntN(400) == 0 {
		rec.HLC -= min(rec.HLC-1, 50) // timestamps of a key may fall after a restore
	}
	if p.rng.IntN(12) == 0 {
		p.write(rec, true)
		return
	}
	rec.Value = make([]byte, 20+60*p.rng.IntN(sizes))
	rec.Value[0] = byte(p.rng.Int())
	if p.rng.IntN(20) == 0 {
		rec.Expiry = p.wall + 1 + int64(p.rng.IntN(60))
	}
	if key := int32(rec.Key.Number); key%3 > 0 {
		x := 1000*key + int32(p.rng.IntN(3))
		rec.Box, rec.HasBox = format.Box{MinX: x, MaxX: x + 500, MaxY: 100}, true
		if p.rng.IntN(600) == 0 {
			rec.Box.MinX, rec.Box.MaxX = format.LonUnitsMax-100, 100-format.LonUnitsMax
		}
	}
	p.write(rec, false)
}

// A plan writes nothing and takes no file. Only Build does, and it takes one.
func TestPlanTakesNoFile(t *testing.T) {
	t.Parallel()
	s := newShard(t, 0)
	for key := range uint64(20) {
		s.write(segment.Record{Key: format.Key{Number: key}, Value: []byte("value")}, false)
	}
	s.commit(0)
	s.roll(0, segment.Room{})
	s.write(segment.Record{Key: format.Key{Number: 1}, Value: make([]byte, 200)}, false)
	s.commit(0)
	before := *s.files
	plan, reason := s.roller.PlanKept(s.input(0, segment.Room{}))
	if reason != "" || *s.files != before {
		t.Fatalf("not kept for %q; files %+v, before %+v", reason, *s.files, before)
	}
	seg, reason, err := plan.Build()
	s.must(err)
	if reason != "" || s.files.taken != before.taken+1 || s.files.recycled != 0 {
		t.Fatalf("not kept for %q; files %+v, before %+v", reason, *s.files, before)
	}
	s.replace(seg)
	s.verify(0)
}

// A layout that turns out bad while it is built gives its file back, and the roll goes on with a new layout.
func TestTreeGrowsWorse(t *testing.T) {
	t.Parallel()
	s := newShard(t, format.TableSpatial)
	const keys = 400
	put := func(key uint64, x int32) {
		box := format.Box{MinX: 1000 * x, MaxX: 1000*x + 10, MaxY: 10}
		s.write(segment.Record{Key: format.Key{Number: key}, Value: []byte("value"), Box: box, HasBox: true}, false)
	}
	for key := range uint64(keys) {
		s.room(0, 1)
		put(key, int32(key))
	}
	s.commit(0)
	s.roll(0, segment.Room{Units: 4 * keys, Records: 2 * keys})
	for key := range uint64(keys) {
		put(key, int32(key*147%keys))
	}
	s.commit(0)
	if reason := s.roll(0, segment.Room{}); reason != TreeGrewWorse || s.files.recycled != 1 {
		t.Errorf("not kept for %q with %d files recycled, want %q and 1", reason, s.files.recycled, TreeGrewWorse)
	}
	s.verify(0)
}

// References that were damaged since the file was opened are not followed: the layout is made anew.
func TestDamagedReferences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		section format.SectionType
		want    Reason
	}{{format.SectionTreeRefs, TreeDamaged}, {format.SectionTreeNodes, TreeDamaged}, {format.SectionOrder, OrderDamaged}} {
		s := newShard(t, format.TableSpatial|format.TableOrdered)
		put := func(key uint64, x int32) {
			s.write(segment.Record{Key: format.Key{Number: key}, Value: []byte("v"), HasBox: true, Box: format.Box{MinX: x, MaxX: x + 5, MaxY: 5}}, false)
		}
		for key := range uint64(30) {
			put(key, int32(10*key))
		}
		s.commit(0)
		s.roll(0, segment.Room{})
		put(3, 31)
		put(100, 1000)
		s.commit(0)
		sec, _ := s.seg.Head.Find(c.section)
		copy(s.seg.File.Mem[sec.Offset:], "\xf0\xff\xff\xfe")
		if reason := s.roll(0, segment.Room{}); reason != c.want {
			t.Errorf("section %d: not kept for %q, want %q", c.section, reason, c.want)
		}
		s.verify(0)
	}
}

// The heap of a shard has 2^32 units at most; a layout that outgrows them is not kept.
func TestHeapFull(t *testing.T) {
	t.Parallel()
	s := newShard(t, 0)
	s.write(segment.Record{Key: format.Key{Number: 1}, Value: []byte("v")}, false)
	s.commit(0)
	s.roll(0, segment.Room{})
	if _, reason := s.roller.PlanKept(s.input(0, segment.Room{Units: segment.UnitsMax})); reason != HeapFull {
		t.Errorf("the plan says %q, want %q", reason, HeapFull)
	}
	if _, err := s.roller.PlanAnew(s.input(0, segment.Room{Units: segment.UnitsMax})).Build(); rhumb.KindOf(err) != rhumb.TooLarge {
		t.Errorf("a new layout: %v, want kind %v", err, rhumb.TooLarge)
	}
}
