package catalog

import (
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

func BenchmarkAlterISR100k(b *testing.B) {
	s := manyRanges(b, 100_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		id := rhumb.RangeID{Region: 1, Slot: rhumb.Slot(i * 7919 % 100_000)}
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
