package catalog

import (
	"runtime"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// manyRanges returns a state with about n ranges of three replicas.
func manyRanges(b *testing.B, n int) *State {
	s := founded()
	for i := range 5 {
		s, _, _ = s.Apply(RegisterNode{Binary: testBinary, Store: rhumb.UUID{byte(2 + i)}, Boot: 1, Region: "fra", Zone: "z"})
	}
	c := rhumb.DefaultClassSettings()
	c.HashSlots = rhumb.BlockSlots
	for i := 0; s.RangeCount() < n; i++ {
		c.ShardSize = int64(1<<20 + i)
		var res Result
		if s, res, _ = s.Apply(CreateClass{c, rotate(s, c)}); res.Failure != nil {
			b.Fatal(res.Failure)
		}
	}
	return s
}

// rangeIDs returns the ids of all ranges.
func rangeIDs(s *State) (ids []rhumb.RangeID) {
	for r := range s.Ranges() {
		ids = append(ids, r.ID)
	}
	return ids
}

// BenchmarkState100k reports the memory of a catalog with 100,000 ranges.
func BenchmarkState100k(b *testing.B) {
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := manyRanges(b, 100_000)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(s.RangeCount()), "bytes/range")
	}
}

// BenchmarkRangeOf100k looks up the range of a home, as every request does.
func BenchmarkRangeOf100k(b *testing.B) {
	s := manyRanges(b, 100_000)
	b.ReportAllocs()
	// Each range has four slots.
	slots := s.RangeCount() * rhumb.BucketsDefault / rhumb.BlockSlots
	for i := 0; b.Loop(); i++ {
		if _, ok := s.RangeOf(rhumb.RangeID{Region: 1, Slot: rhumb.Slot(i * 7919 % slots)}); !ok {
			b.Fatal("a slot has no range")
		}
	}
}

func BenchmarkAlterISR100k(b *testing.B) {
	s := manyRanges(b, 100_000)
	ids := rangeIDs(s)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		id := ids[i*7919%len(ids)]
		r, _ := s.Range(id)
		c := AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version}
		for _, n := range r.InSync {
			c.Members = append(c.Members, Member{n, 1, false})
		}
		var res Result
		if s, res, _ = s.Apply(c); res.Failure != nil {
			b.Fatal(res.Failure)
		}
	}
}

func BenchmarkFenceNode100k(b *testing.B) {
	s := manyRanges(b, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		s.Apply(FenceNode{1, 1})
	}
}

func BenchmarkEncode100k(b *testing.B) {
	s := manyRanges(b, 100_000)
	b.SetBytes(int64(len(s.Encode())))
	for b.Loop() {
		s.Encode()
	}
}

func BenchmarkDecode100k(b *testing.B) {
	encoded := manyRanges(b, 100_000).Encode()
	b.SetBytes(int64(len(encoded)))
	for b.Loop() {
		if _, err := Decode(encoded); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSplit100k applies both commands of a split. Each range has four slots, so it can be split once, and the state is thrown away.
func BenchmarkSplit100k(b *testing.B) {
	s := manyRanges(b, 100_000)
	ids := rangeIDs(s)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r, _ := s.Range(ids[i*7919%len(ids)])
		next, res, _ := s.Apply(PrepareSplit{Range: r.ID, Version: r.Version, At: r.ID.Slot + 2})
		if res.Failure != nil {
			b.Fatal(res.Failure)
		}
		reserved, _ := next.Range(rhumb.RangeID{Region: r.ID.Region, Slot: r.ID.Slot + 2})
		if _, res, _ = next.Apply(CompleteSplit{Range: reserved.ID, Epoch: reserved.Epoch}); res.Failure != nil {
			b.Fatal(res.Failure)
		}
	}
}
