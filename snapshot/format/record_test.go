package format

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// Vectors that readers in other languages are held to as well; see docs/formats/snapshot.md.
func TestHash(t *testing.T) {
	r := Root{Seed0: 0x0123456789abcdef, Seed1: 0xfedcba9876543211}
	var got bytes.Buffer
	for _, k := range []uint64{0, 1, 42, math.MaxUint64} {
		fmt.Fprintf(&got, "%d %016x\n", k, r.HashNumber(k))
	}
	for _, n := range []string{"a", "12345678", "123456789", "0123456789abcdef"} {
		fmt.Fprintf(&got, "%s %016x\n", n, r.HashName([]byte(n), false))
	}
	fmt.Fprintf(&got, "shard %016x\n", r.HashName([]byte("0123456789abcdef"), true))
	const want = `0 227be7f7c27a8d9d
1 255c995e55ceff8f
42 52027af4a84af30d
18446744073709551615 2073e7e7d24229dd
a 474d2137cd5ed5a2
12345678 00a3be27df84bd5a
123456789 8e4813edff29c7ec
0123456789abcdef 197b7598a0a26f2a
shard 7bd86670a11c86da
`
	if got.String() != want {
		t.Errorf("hashes:\n%swant:\n%s", got.String(), want)
	}
}

func TestPlaces(t *testing.T) {
	if f := Fingerprint(0xABCD0000); f != 1 {
		t.Errorf("fingerprint %d of a hash that ends in 0, want 1", f)
	}
	if f := Fingerprint(0xABCD1234); f != 0x1234 {
		t.Errorf("fingerprint %#x", f)
	}
	for _, n := range []uint32{1, 7, 1 << 20, math.MaxUint32} {
		if lo, hi := BucketOf(0, n), BucketOf(math.MaxUint64, n); lo != 0 || hi != n-1 {
			t.Errorf("buckets %d to %d of %d", lo, hi, n)
		}
	}
	if s := ShardOf(0xFFFF0000, 256); s != 255 {
		t.Errorf("shard %d", s)
	}
}

func TestRecordSize(t *testing.T) {
	for _, c := range []struct {
		kind             KeyKind
		flags            uint16
		key, value, want int
	}{
		{KeyUint64, 0, 0, 0, 24},
		{KeyUint64, FlagTombstone | FlagMoved, 0, 0, 24},
		{KeyUint64, FlagHLC, 0, 10, 42},
		{KeyUint64, FlagExpiry, 0, 10, 42},
		{KeyUint64, FlagBox, 0, 10, 50},
		{KeyName, FlagHLC | FlagExpiry | FlagBox, 5, 10, 24 + 32 + 6 + 10},
	} {
		if n := RecordSize(c.kind, c.flags, c.key, c.value); n != c.want {
			t.Errorf("%+v: %d bytes", c, n)
		}
	}
	if Units(0) != 0 || Units(1) != 1 || Units(64) != 1 || Units(65) != 2 {
		t.Error("units")
	}
}

func TestBox(t *testing.T) {
	b := MakeBox(rhumb.Box{Min: rhumb.Point{Lat: -90.5, Lon: 179.99999999}, Max: rhumb.Point{Lat: 0.00000001, Lon: -179.5}})
	if want := (Box{1799999999, -900000000, -1795000000, 1}); b != want {
		t.Errorf("%v, want %v", b, want)
	}
	parts, n := b.Split()
	if n != 2 || !b.Crosses() || parts[0] != (Box{1799999999, -900000000, 1800000000, 1}) || parts[1] != (Box{-1800000000, -900000000, -1795000000, 1}) {
		t.Errorf("%d parts %v", n, parts)
	}
	for box, want := range map[Box]bool{
		{}: true, {-LonUnitsMax, -LatUnitsMax, LonUnitsMax, LatUnitsMax}: true, {LonUnitsMax, 1, -LonUnitsMax, 1}: true,
		{0, 1, 0, 0}: false, {0, -LatUnitsMax - 1, 0, 0}: false, {0, 0, 0, LatUnitsMax + 1}: false,
		{-LonUnitsMax - 1, 0, 0, 0}: false, {0, 0, LonUnitsMax + 1, 0}: false, {0, 0, -LonUnitsMax - 1, 0}: false, {LonUnitsMax + 1, 0, 0, 0}: false,
	} {
		if box.Valid() != want {
			t.Errorf("box %v is valid: %t", box, !want)
		}
	}
	if p := MakePoint(rhumb.Point{Lat: 1.00000004, Lon: -2}); p != (Box{-20000000, 10000000, -20000000, 10000000}) {
		t.Errorf("point %v", p)
	}
	if parts[0].Intersects(parts[1]) || !parts[0].Intersects(Box{1800000000, 1, 1800000000, 1}) {
		t.Error("intersections")
	}
	if d := parts[0].Degrees(); d.Max.Lon != 180 || d.Min.Lat != -90 {
		t.Errorf("degrees %v", d)
	}
}

func TestPosition(t *testing.T) {
	want := Position{Epoch: 1, Seq: 2, HLC: 3}
	p := EncodePosition(nil, want)
	if got, ok := DecodePosition(p); !ok || got != want || len(p) != PositionSize {
		t.Errorf("%+v, %t", got, ok)
	}
	if _, ok := DecodePosition(p[:23]); ok {
		t.Error("a short position passes")
	}
	if k := PositionKey(rhumb.RangeID{Region: 2, Slot: 3}); k != 2<<32|3 {
		t.Errorf("key %#x", k)
	}
}

// Equal keys hash alike, and a name never hashes as the shard key with its bytes.
func FuzzHashName(f *testing.F) {
	f.Add([]byte("name"), uint64(1), uint64(3))
	f.Fuzz(func(t *testing.T, name []byte, seed0, seed1 uint64) {
		r := Root{Seed0: seed0, Seed1: seed1 | 1}
		h := r.HashName(name, false)
		filled := append(bytes.Clone(name), 0) // the filling of the last word must not make names equal
		if len(name)%8 != 0 && len(filled) <= NameSizeMax && r.Seed1 > math.MaxUint32 && h == r.HashName(filled, false) {
			t.Errorf("%x and %x hash alike with seeds %x %x", name, filled, seed0, seed1)
		}
		if got := r.HashName(bytes.Clone(name), false); got != h {
			t.Errorf("%x hashes to %x and %x", name, h, got)
		}
		if p, ok := DecodePosition(name); ok && !bytes.Equal(EncodePosition(nil, p), name) {
			t.Errorf("position %x does not come back", name)
		}
	})
}
