package keys

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"pgregory.net/rapid"
)

// anyBytes draws bytes that are likely to meet the special ones: the end, the escape and the suffix's length.
func anyBytes(most int) *rapid.Generator[[]byte] {
	return rapid.SliceOfN(rapid.SampledFrom([]byte{0x00, 0x01, 0x0c, 0x0d, 0x0e, 'a', 'b', 0xfe, 0xff}), 0, most)
}

func anyHome() *rapid.Generator[rhumb.RangeID] {
	part := rapid.SampledFrom([]uint32{1, 2, 13, 0x0d0d0d0d, math.MaxUint32})
	return rapid.Custom(func(t *rapid.T) rhumb.RangeID {
		return rhumb.RangeID{Region: rhumb.RegionID(part.Draw(t, "region")), Slot: rhumb.Slot(part.Draw(t, "slot"))}
	})
}

func anyVersion() *rapid.Generator[rhumb.Version] {
	return rapid.Custom(func(t *rapid.T) rhumb.Version {
		return rhumb.Version{HLC: rhumb.Timestamp(rapid.Uint64Range(1, math.MaxUint64).Draw(t, "hlc")), Node: rhumb.NodeID(rapid.Uint32().Draw(t, "node"))}
	})
}

// anyRecord draws a versioned key of a small world, so that two draws often share parts.
func anyRecord() *rapid.Generator[Decoded] {
	return rapid.Custom(func(t *rapid.T) Decoded {
		v := anyVersion().Draw(t, "version")
		if rapid.Bool().Draw(t, "small") {
			v = rhumb.Version{HLC: rhumb.Timestamp(rapid.Uint64Range(1, 3).Draw(t, "hlc")), Node: rhumb.NodeID(rapid.Uint32Range(0, 2).Draw(t, "node"))}
		}
		return Decoded{
			Kind: KindData, Home: anyHome().Draw(t, "home"), Table: rhumb.TableID(rapid.SampledFrom([]uint32{0, 1, 13, math.MaxUint32}).Draw(t, "table")),
			Name: anyBytes(4).Draw(t, "name"), Version: v,
		}
	})
}

// TestDataOrder: keys sort by home, table, name, and newest version first.
func TestDataOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyRecord().Draw(t, "a"), anyRecord().Draw(t, "b")
		want := cmp.Or(a.Home.Compare(b.Home), cmp.Compare(a.Table, b.Table), bytes.Compare(a.Name, b.Name), b.Version.Compare(a.Version))
		ka, kb := AppendData(nil, a.Key(), a.Version), AppendData(nil, b.Key(), b.Version)
		if got := Compare(ka, kb); got != want {
			t.Fatalf("Compare(%x, %x) is %d, want %d", ka, kb, got, want)
		}
		prefix := AppendDataPrefix(nil, a.Key())
		if Compare(prefix, ka) >= 0 || Split(ka) != len(prefix) || Split(prefix) != len(prefix) {
			t.Fatalf("prefix %x of %x", prefix, ka)
		}
		// A seek at a timestamp lands before all versions at or below it and behind all above.
		at := b.Version.HLC
		if seek := AppendVersionAt(bytes.Clone(prefix), at); (Compare(seek, ka) <= 0) != (a.Version.HLC <= at) {
			t.Fatalf("seek at %d and version %s", at, a.Version)
		}
	})
}

// TestRoundTrip: every key of every kind decodes to what it was made of.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyRecord().Draw(t, "data")
		home := d.Home
		n := rapid.Uint64().Draw(t, "n")
		name := anyBytes(8).Draw(t, "name")
		space := rhumb.RangeID{Slot: home.Slot}
		req := rhumb.RequestID{Client: rhumb.UUID(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n), ^n)), Seq: n}
		for _, c := range []struct {
			key  []byte
			want Decoded
		}{
			{AppendData(nil, d.Key(), d.Version), d},
			{AppendDataPrefix(nil, d.Key()), Decoded{Kind: KindData, Home: home, Table: d.Table, Name: d.Name}},
			{AppendLog(nil, home, rhumb.Seq(n)), Decoded{Kind: KindLog, Home: home, Seq: rhumb.Seq(n)}},
			{AppendDedup(nil, home, req), Decoded{Kind: KindDedup, Home: home, Request: req}},
			{AppendState(nil, home, StateField(n)), Decoded{Kind: KindState, Home: home, Field: StateField(n)}},
			{AppendLocal(nil, home.Slot, name), Decoded{Kind: KindLocal, Home: space, Local: name}},
		} {
			got, err := Decode(c.key)
			same := bytes.Equal(got.Name, c.want.Name) && bytes.Equal(got.Local, c.want.Local)
			got.Name, got.Local, c.want.Name, c.want.Local = nil, nil, nil, nil
			if err != nil || !same || !equalDecoded(got, c.want) {
				t.Fatalf("%x decodes to %+v, %v, want %+v", c.key, got, err, c.want)
			}
			if c.want.Kind != KindLocal && !HomeSpan(home).Contains(c.key) {
				t.Fatalf("%x lies outside of its range's span", c.key)
			}
			if ReplicatedSpan().Contains(c.key) != (c.want.Kind != KindLocal) {
				t.Fatalf("%x and the replicated span", c.key)
			}
			if x, err := Explain(c.key); err != nil || x.Form != c.want.Kind.String() {
				t.Fatalf("%x is explained as %q, %v", c.key, x.Form, err)
			}
		}
	})
}

func equalDecoded(a, b Decoded) bool {
	return a.Kind == b.Kind && a.Home == b.Home && a.Table == b.Table && a.Version == b.Version && a.Seq == b.Seq && a.Request == b.Request && a.Field == b.Field
}

// TestSpans: a prefix span holds exactly the names with the prefix, in one table of one home; the spans of kinds and
// ranges nest.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyRecord().Draw(t, "a"), anyRecord().Draw(t, "b")
		if rapid.Bool().Draw(t, "near") {
			b.Home, b.Table = a.Home, a.Table
		}
		key := AppendData(nil, b.Key(), b.Version)
		want := a.Home == b.Home && a.Table == b.Table && bytes.HasPrefix(b.Name, a.Name)
		if got := PrefixSpan(a.Home, a.Table, a.Name).Contains(key); got != want {
			t.Fatalf("prefix %x contains %x: %v, want %v", a.Name, key, got, want)
		}
		if got := HomeSpan(a.Home).Contains(key); got != (a.Home == b.Home) {
			t.Fatalf("range span of %s and %x", a.Home, key)
		}
		if got := KindSpan(a.Home, KindData).Contains(key); got != (a.Home == b.Home) {
			t.Fatalf("kind span of %s and %x", a.Home, key)
		}
		from, to, local := anyBytes(3).Draw(t, "from"), anyBytes(3).Draw(t, "to"), anyBytes(3).Draw(t, "local")
		got := LocalSpan(7, from, to).Contains(AppendLocal(nil, 7, local))
		if want := bytes.Compare(from, local) <= 0 && bytes.Compare(local, to) < 0; got != want {
			t.Fatalf("local %x in %x..%x: %v, want %v", local, from, to, got, want)
		}
		for _, s := range []Span{PrefixSpan(a.Home, a.Table, a.Name), HomeSpan(a.Home), KindSpan(a.Home, KindLog), LocalSpan(7, from, nil)} {
			if s.Lower[len(s.Lower)-1] != 0 || s.Upper != nil && s.Upper[len(s.Upper)-1] != 0 {
				t.Fatalf("a bound of %x..%x does not end in 00", s.Lower, s.Upper)
			}
		}
	})
}

// TestComparerContract checks what Pebble demands of an order, on any bytes: a total order in which prefixes come first,
// and bounds between keys.
func TestComparerContract(t *testing.T) {
	keyOrBytes := rapid.OneOf(anyBytes(20), rapid.Custom(func(t *rapid.T) []byte {
		d := anyRecord().Draw(t, "record")
		return AppendData(nil, d.Key(), d.Version)
	}))
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := keyOrBytes.Draw(t, "a"), keyOrBytes.Draw(t, "b"), keyOrBytes.Draw(t, "c")
		if Compare(a, b) != -Compare(b, a) || (Compare(a, b) == 0) != Equal(a, b) {
			t.Fatal("not antisymmetric")
		}
		if Compare(a, b) <= 0 && Compare(b, c) <= 0 && Compare(a, c) > 0 {
			t.Fatal("not transitive")
		}
		pa, pb := a[:Split(a)], b[:Split(b)]
		if Split(a) < len(a) && Compare(pa, a) >= 0 {
			t.Fatal("a prefix does not come before its key")
		}
		if Compare(a, b) <= 0 && Compare(pa, pb) > 0 || Compare(pa, pb) < 0 && Compare(a, b) >= 0 {
			t.Fatal("prefixes do not order keys")
		}
		if x, y := Abbreviate(a), Abbreviate(b); x < y && Compare(a, b) >= 0 || x > y && Compare(a, b) <= 0 {
			t.Fatal("abbreviations do not order keys")
		}
		if Compare(a, b) < 0 {
			if k := Separator([]byte("x"), a, b)[1:]; Compare(a, k) > 0 || Compare(k, b) >= 0 || len(k) > len(a) {
				t.Fatalf("separator %x", k)
			}
		}
		if k := Successor([]byte("x"), a)[1:]; Compare(a, k) > 0 || len(k) > max(1, len(a)) {
			t.Fatalf("successor %x", k)
		}
		if k := ImmediateSuccessor(nil, pa); Split(k) != len(k) || Compare(pa, k) >= 0 || Compare(pa, pb) < 0 && Compare(pb, k) < 0 {
			t.Fatalf("immediate successor %x", k)
		}
	})
}

// TestHashes compares the hash with the one in the standard library.
func TestHashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SliceOf(rapid.Byte()).Draw(t, "name")
		h64 := fnv.New64a()
		_, _ = h64.Write(name)
		n := rapid.IntRange(1, rhumb.BlockSlots).Draw(t, "n")
		if want := uint32(h64.Sum64()^h64.Sum64()>>32) % uint32(n); HashSlot(name, 0, n) != rhumb.Slot(want) {
			t.Fatalf("slot of %x is %d, want %d", name, HashSlot(name, 0, n), want)
		}
		head := slices.DeleteFunc(slices.Clone(name), func(c byte) bool { return c == '/' })
		if HashSlot(append(slices.Clone(head), "/tail"...), '/', n) != HashSlot(head, '/', n) {
			t.Fatal("names that are equal up to the colocate byte hash apart")
		}
	})
}

// TestHashSpread: a hundred thousand names fill 64 slots evenly, within a tenth.
func TestHashSpread(t *testing.T) {
	var count [64]int
	for i := range 100_000 {
		count[HashSlot(rhumb.SequenceName(uint64(i)), 0, len(count))]++
	}
	for slot, n := range count {
		if n < 1400 || n > 1725 {
			t.Errorf("slot %d has %d of 100,000 names, want about 1,562", slot, n)
		}
	}
}

func FuzzDecode(f *testing.F) {
	home := rhumb.RangeID{Region: 1, Slot: 42}
	f.Add(AppendData(nil, rhumb.Key{Home: home, Table: 3, Name: []byte("a\x00b")}, rhumb.Version{HLC: 9, Node: 1}))
	f.Add(AppendLog(nil, home, 7))
	f.Add(AppendDedup(nil, home, rhumb.RequestID{Seq: 1}))
	f.Add(AppendState(nil, home, StateTrim))
	f.Add(AppendLocal(nil, 1, []byte("k")))
	f.Add(AppendShardKey(nil, rhumb.ShardKey{Home: home, Sequence: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = Format(b)
		_, _ = Explain(b)
		d, err := Decode(b)
		if err != nil {
			if rhumb.KindOf(err) != rhumb.Corrupt {
				t.Fatalf("kind %s", rhumb.KindOf(err))
			}
			return
		}
		var again []byte
		switch d.Kind {
		case KindData:
			if again = AppendDataPrefix(nil, d.Key()); Split(b) < len(b) {
				again = AppendVersion(again, d.Version)
			}
		case KindLog:
			again = AppendLog(nil, d.Home, d.Seq)
		case KindDedup:
			again = AppendDedup(nil, d.Home, d.Request)
		case KindState:
			again = AppendState(nil, d.Home, d.Field)
		case KindLocal:
			again = AppendLocal(nil, d.Home.Slot, d.Local)
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x decodes, but is written as %x", b, again)
		}
	})
}

func TestShardKey(t *testing.T) {
	sequence, err := rhumb.MakeSequence(3, 4)
	if err != nil {
		t.Fatal(err)
	}
	k := rhumb.ShardKey{Home: rhumb.RangeID{Region: 1, Slot: 2}, Sequence: sequence}
	b := AppendShardKey(nil, k)
	if back, err := DecodeShardKey(b); err != nil || back != k || len(b) != rhumb.ShardKeySize {
		t.Errorf("%x decodes to %v, %v", b, back, err)
	}
	if _, err := DecodeShardKey(b[:15]); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("fifteen bytes: %v", err)
	}
}
