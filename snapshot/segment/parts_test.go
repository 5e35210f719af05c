package segment

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A record has the size that package format counts, its checksum, and decodes to what was put in, whichever fields it has.
func TestEncode(t *testing.T) {
	t.Parallel()
	for bits := range 16 {
		for _, size := range []int{0, 1, 40, 65534, 65535, 70000} {
			rec := Record{Value: bytes.Repeat([]byte{7}, size)}
			kind := format.KeyUint64
			rec.Key.Number = 99
			if bits&1 != 0 {
				rec.HLC = 5
			}
			if bits&2 != 0 {
				rec.Expiry = 6
			}
			if bits&4 != 0 {
				rec.Box, rec.HasBox = format.Box{MinX: -1, MinY: -2, MaxX: 3, MaxY: 4}, true
			}
			if bits&8 != 0 {
				kind, rec.Key = format.KeyName, format.Key{Name: []byte("sixteen letters!"), ShardKey: size%2 == 0}
			}
			e := EncodingOf(&testRoot, kind, &rec, 0)
			heap := Heap{Mem: bytes.Repeat([]byte{0xff}, (int(e.Units)+1)*format.RecordAlign), Kind: kind}
			heap.EncodeAt(1, &rec, e, 77, true)
			got := heap.Decode(1)
			if keyOf(got.Key) != keyOf(rec.Key) || got.HLC != rec.HLC || got.Expiry != rec.Expiry || got.Box != rec.Box || got.HasBox != rec.HasBox || !bytes.Equal(got.Value, rec.Value) {
				t.Fatalf("decoded %+v, want %+v", got, rec)
			}
			if heap.Size(1) != format.RecordSize(kind, e.Flags, len(rec.Key.Name), size) || heap.Units(1) != e.Units || heap.At(1).Ver != 77 {
				t.Fatalf("bits %d, value %d: size %d, units %d, version %d", bits, size, heap.Size(1), heap.Units(1), heap.At(1).Ver)
			}
			if heap.At(1).Sum != format.RecordChecksum(heap.bytesOf(1)) {
				t.Fatalf("bits %d, value %d: the checksum does not match", bits, size)
			}
			if rest := heap.Mem[format.RecordAlign+heap.Size(1):]; !bytes.Equal(rest, make([]byte, len(rest))) {
				t.Fatalf("bits %d, value %d: the last unit is not filled with zeros", bits, size)
			}
			if err := heap.checkRecordAt(1, e.Units+1, 0); err != nil {
				t.Fatal(err)
			}
			if err := heap.checkRecordAt(1, e.Units, 0); err == nil {
				t.Fatalf("bits %d, value %d: a record that does not fit is not found", bits, size)
			}
		}
	}
}

func TestFits(t *testing.T) {
	t.Parallel()
	two, three := Shape{Units: 2}, Shape{Units: 3}
	boxed, gone := Shape{Units: 2, Boxed: true}, Shape{Units: 1, Gone: true}
	for _, c := range []struct {
		v, was Shape
		want   bool
	}{
		{two, two, true},
		{two, three, false},
		{three, two, false},
		{boxed, two, false},
		{two, boxed, false},
		{boxed, boxed, true},
		{gone, two, true},
		{gone, boxed, true},
		{two, Shape{Units: 2, Gone: true}, true},
		{three, Shape{Units: 2, Gone: true}, false},
	} {
		if got := c.v.Fits(c.was); got != c.want {
			t.Errorf("%+v fits into the place of %+v: %t, want %t", c.v, c.was, got, c.want)
		}
	}
}

// A layout has every section within the file, at its alignment, none over another, and the heap last.
func TestLayout(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 4))
	for range 2000 {
		p := Plan{
			Flags: []uint16{0, format.TableOrdered, format.TableSpatial, format.TableOrdered | format.TableSpatial}[rng.IntN(4)],
			Room:  Room{Units: rng.Uint64N(1 << 20), Records: rng.Uint64N(1 << 16), scale: 1 << rng.IntN(4)}, AppendRatio: rng.Float64() * 2,
		}
		p.Records = rng.Uint64N(1 << (1 + rng.IntN(22)))
		p.Units, p.TreeItems = p.Records*(1+rng.Uint64N(5)), int(p.Records)
		if rng.IntN(2) == 0 {
			p.Buckets = uint32(p.Records / 6)
		}
		h := p.Layout()
		end := uint64(format.SegmentHeader)
		for _, sec := range h.Sections {
			align := uint64(format.SectionAlign)
			if sec.Size >= format.SectionHuge {
				align = format.SectionHuge
			}
			if sec.Offset < end || sec.Offset%align != 0 {
				t.Fatalf("%+v: section %d at %d, the one before ends at %d", p, sec.Type, sec.Offset, end)
			}
			end = sec.Offset + sec.Size
		}
		heap := h.Sections[len(h.Sections)-1]
		if heap.Type != format.SectionHeap || end != h.FileSize || heap.Size/format.RecordAlign < p.Units+p.Room.Units {
			t.Fatalf("%+v: the last section is %+v, the file has %d bytes", p, heap, h.FileSize)
		}
		size := fileSize(h.FileSize)
		spreadHeap(&h, size)
		if heap := h.Sections[len(h.Sections)-1]; size < end || float64(size) > 1.13*float64(end)+fileStep || heap.Offset+heap.Size > size {
			t.Fatalf("a segment of %d bytes takes a file of %d, its heap ends at %d", end, size, heap.Offset+heap.Size)
		}
	}
}

// The index keeps its number of buckets while each would hold little more than meant.
func TestLayoutBuckets(t *testing.T) {
	t.Parallel()
	p := Plan{Records: 100_000, Units: 200_000}
	free := p.Layout()
	for _, c := range []struct{ had, want uint32 }{
		{0, free.Buckets},
		{free.Buckets - free.Buckets/bucketReuse - 1, free.Buckets},
		{free.Buckets - free.Buckets/bucketReuse, free.Buckets - free.Buckets/bucketReuse},
		{2 * free.Buckets, 2 * free.Buckets},
	} {
		p.Buckets = c.had
		if h := p.Layout(); h.Buckets != c.want || h.BucketsMax <= h.Buckets {
			t.Errorf("after %d buckets: %d of %d, want %d", c.had, h.Buckets, h.BucketsMax, c.want)
		}
	}
}

// Fingerprints of a bucket are found in every slot, by the words and one by one alike.
func TestBucket(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 5))
	for range 5000 {
		b := &make([]struct {
			_ [0]uint64
			bucket
		}, 1)[0].bucket
		n := rng.IntN(format.BucketSlots + 1)
		for slot := range n {
			b.setFingerprint(slot, uint16(1+rng.IntN(5)<<(rng.IntN(2)*12)))
		}
		if b.slotsTaken() != n {
			t.Fatalf("%v: %d slots are taken, want %d", b.fingerprints, b.slotsTaken(), n)
		}
		for _, f := range []uint16{1, 2, 1 << 12, 5 << 12, 9} {
			first := -1
			for slot := range n {
				if b.fingerprint(slot) == f {
					first = slot
					break
				}
			}
			slot, ok := b.firstCandidate(uint64(f) * lanesLow)
			if first >= 0 && (!ok || slot > first) || ok && slot >= format.BucketSlots {
				t.Fatalf("%v: the candidate for %#x is slot %d (%t), want %d", b.fingerprints, f, slot, ok, first)
			}
		}
	}
}

func TestMoves(t *testing.T) {
	t.Parallel()
	var m Moves
	for round := range uint32(3) {
		m.Reset(1000 + round)
		m.Move(5, 2000)
		m.Move(999, 2001+round)
		for ref, want := range map[uint32]uint32{0: 0, 5: 2000, 6: 6, 64: 64, 999: 2001 + round} {
			if got := m.PlaceOf(ref); got != want {
				t.Errorf("round %d: unit %d has moved to %d, want %d", round, ref, got, want)
			}
		}
		if m.Len() != 2 {
			t.Errorf("%d moves", m.Len())
		}
	}
}

// Sorted references, and places in them, are those that a plain comparison of keys finds.
func TestSortRefs(t *testing.T) {
	t.Parallel()
	for _, kind := range []format.KeyKind{format.KeyUint64, format.KeyName} {
		w := newWorld(t, kind, format.TableOrdered)
		recs := w.recordsOf(300)
		if kind == format.KeyName {
			for i := range 50 {
				recs[i].Key = format.Key{Name: fmt.Appendf(nil, "a long prefix in common %d", i)}
			}
		}
		src := w.source(recs)
		refs := slices.Clone(src.Refs)
		rand.New(rand.NewPCG(1, 6)).Shuffle(len(refs), func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
		w.builder.SortRefs(src.Heap, refs)
		want := slices.Clone(src.Refs)
		slices.SortFunc(want, func(a, b uint32) int {
			x, y := src.Heap.Decode(a).Key, src.Heap.Decode(b).Key
			if x.ShardKey != y.ShardKey {
				return cmp.Compare(fmt.Sprint(x.ShardKey), fmt.Sprint(y.ShardKey)) // false comes first
			}
			return cmp.Or(cmp.Compare(x.Number, y.Number), bytes.Compare(x.Name, y.Name))
		})
		if !slices.Equal(refs, want) {
			t.Fatalf("keys of kind %d are in another order", kind)
		}
		seg := &Segment{Heap: src.Heap}
		for i, ref := range refs {
			for _, part := range [][]uint32{refs, refs[:i], refs[i:], nil} {
				below := 0
				for _, other := range part {
					if src.Heap.Compare(other, ref) < 0 {
						below++
					}
				}
				if got := seg.countBefore(part, ref); got != below {
					t.Fatalf("%d of %d keys are below key %d, want %d", got, len(part), i, below)
				}
			}
		}
	}
}

// A version that is 2^32 commits away from the base shows everything that was committed and nothing that was aborted.
func TestRelativeVersion(t *testing.T) {
	t.Parallel()
	s := &Segment{Head: format.Segment{Base: 10}}
	for version, want := range map[uint64]uint32{10: 0, 11: 1, 10 + math.MaxUint32 - 1: math.MaxUint32 - 1, 10 + math.MaxUint32: math.MaxUint32 - 1, math.MaxUint64: math.MaxUint32 - 1} {
		if got := s.RelativeVersion(version); got != want || got == format.AbortedVersion {
			t.Errorf("version %d is %d, want %d", version, got, want)
		}
	}
}
