package format

import (
	"bytes"
	"hash/crc32"
	"reflect"
	"testing"

	"github.com/rhumbdb/rhumb"
)

func testSegment() Segment {
	return Segment{
		Minor: 1, Generation: 2, Shard: 3, Table: 4, Base: 5, FileSize: 64 << 10, Records: 6, Image: rhumb.UUID{7}, KeyKind: KeyName,
		Buckets: 8, BucketsMax: 10, BaseUnits: 11, Closed: 12,
		Sections: []Section{
			{Type: SectionIndex, Offset: 8192, Size: 4096, Item: BucketSize},
			{Type: SectionHeap, Offset: 12288, Size: 8192, Items: 6, Sum: 99},
			{Type: SectionOrder, Offset: 20480, Size: 24, Items: 6, Item: 4},
			{Type: 77, Offset: 24576, Size: 10},
		},
	}
}

func encoded(s Segment) []byte {
	p := make([]byte, s.FileSize)
	EncodeSegment(p, s)
	return p
}

func TestSegment(t *testing.T) {
	want := testSegment()
	got, err := DecodeSegment(encoded(want), want.FileSize)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	if sec, ok := got.Find(SectionHeap); !ok || sec.Sum != 99 {
		t.Errorf("heap %+v, %t", sec, ok)
	}
	if _, ok := got.Find(SectionDelta); ok {
		t.Error("a section that is not there is found")
	}
	for name, change := range map[string]func(s *Segment){
		"no buckets":            func(s *Segment) { s.Buckets = 0 },
		"fewer than primary":    func(s *Segment) { s.BucketsMax = 7 },
		"index too small":       func(s *Segment) { s.BucketsMax = 65 },
		"heap too small":        func(s *Segment) { s.BaseUnits = 129 },
		"order too small":       func(s *Segment) { s.Sections[2].Items = 7 },
		"section in the header": func(s *Segment) { s.Sections[0].Offset = 4096 },
		"section not aligned":   func(s *Segment) { s.Sections[3].Offset += 64 },
		"section outside":       func(s *Segment) { s.Sections[3].Offset = 128 << 10 },
		"section too long":      func(s *Segment) { s.Sections[3].Size = 1 << 63 },
		"twice":                 func(s *Segment) { s.Sections[3].Type = SectionHeap },
		"no index":              func(s *Segment) { s.Sections[0].Type = 88 },
	} {
		bad := testSegment()
		change(&bad)
		if _, err := DecodeSegment(encoded(bad), bad.FileSize); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("%s: %v, want corrupt", name, err)
		}
	}
	if _, err := DecodeSegment(encoded(want), want.FileSize+4096); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("another size: %v, want corrupt", err)
	}
	want.KeyKind = 5
	if _, err := DecodeSegment(encoded(want), want.FileSize); rhumb.KindOf(err) != rhumb.Incompatible {
		t.Errorf("a later kind of keys: %v, want incompatible", err)
	}
}

// What DecodeSegment takes lies wholly in the file, whatever the header says.
func FuzzSegment(f *testing.F) {
	f.Add(encoded(testSegment())[:512], uint64(64<<10), true)
	f.Fuzz(func(t *testing.T, head []byte, size uint64, seal bool) {
		p := make([]byte, SegmentHeader)
		copy(p[:4092], head)
		if seal {
			le.PutUint32(p[SegmentSumOff:], Checksum(p[:SegmentSumOff]))
		}
		s, err := DecodeSegment(p, size)
		if err != nil {
			return
		}
		for _, sec := range s.Sections {
			if sec.Offset+sec.Size > size || sec.Offset+sec.Size < sec.Offset {
				t.Errorf("section %+v in a file of %d", sec, size)
			}
		}
		q := make([]byte, SegmentHeader)
		EncodeSegment(q, s)
		again, err := DecodeSegment(q, size)
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%+v came back as %+v, %v", s, again, err)
		}
	})
}

func TestDeltaHead(t *testing.T) {
	const cell = 1 << DeltaCellShift
	for _, heads := range []uint32{2, 64, 1 << 20} {
		for _, x := range []int32{-LonUnitsMax, -1, 0, LonUnitsMax} {
			for _, y := range []int32{-LatUnitsMax, 0, LatUnitsMax} {
				if h := DeltaHead(Box{x, y, x, y}, heads); h == 0 || h >= heads || h != DeltaCell(x, y, heads) {
					t.Errorf("head %d of %d for %d %d", h, heads, x, y)
				}
			}
		}
	}
	if h := DeltaHead(Box{0, 0, cell, cell}, 64); h == 0 {
		t.Error("a box of one cell counts as large")
	}
	for _, b := range []Box{{0, 0, cell + 1, 0}, {0, 0, 0, cell + 1}, {-LonUnitsMax, 0, LonUnitsMax, 0}} {
		if h := DeltaHead(b, 64); h != 0 {
			t.Errorf("box %v goes to head %d", b, h)
		}
	}
}

// However long and however divided, a checksum is the plain CRC-32C.
func TestChecksum(t *testing.T) {
	p := make([]byte, 3*checksumPiece+100)
	for i := range p {
		p[i] = byte(i * i >> 3)
	}
	for _, n := range []int{0, 1, 63, checksumPiece - 1, checksumPiece, checksumPiece + 1, 2 * checksumPiece, len(p)} {
		want := crc32.Checksum(p[:n], crc32.MakeTable(crc32.Castagnoli))
		if got := Checksum(p[:n]); got != want {
			t.Errorf("%d bytes: %#x, want %#x", n, got, want)
		}
		for _, half := range []int{n / 2, n / 3} {
			if got := ExtendChecksum(Checksum(p[:half]), p[half:n]); got != want {
				t.Errorf("%d and %d bytes: %#x, want %#x", half, n-half, got, want)
			}
		}
	}
}

func TestRecordChecksum(t *testing.T) {
	p := bytes.Repeat([]byte{0xA5}, 60)
	sum := RecordChecksum(p)
	for i := range p {
		q := bytes.Clone(p)
		q[i] ^= 0x08
		free := i >= RecordSum && i < RecordHeadSize
		if same := RecordChecksum(q) == sum; same != free {
			t.Errorf("byte %d: the sum is the same: %t", i, same)
		}
	}
	// What links a record exchanges the part of the sum that stands for that.
	q := bytes.Clone(p)
	le.PutUint32(q[RecordVersion:], 7)
	le.PutUint32(q[RecordPrev:], NoPrev)
	q[RecordFlags] |= byte(FlagMoved)
	old := LinkChecksum(le.Uint32(p[RecordVersion:]), le.Uint32(p[RecordPrev:]), le.Uint16(p[RecordFlags:]))
	if want := sum ^ old ^ LinkChecksum(7, NoPrev, FlagMoved); RecordChecksum(q) != want {
		t.Errorf("sum %#x of another version, want %#x", RecordChecksum(q), want)
	}
}
