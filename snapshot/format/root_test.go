package format

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
)

func testRoot() Root { return Root{Minor: 3, Image: rhumb.UUID{1, 2, 3}, Seed0: 0x1234, Seed1: 0x5679} }

func TestRoot(t *testing.T) {
	p := make([]byte, RootSize)
	EncodeRoot(p, testRoot())
	got, err := DecodeRoot(p)
	if err != nil || got != testRoot() {
		t.Fatalf("%+v, %v", got, err)
	}
	cases := map[string]struct {
		change func(p []byte) []byte
		kind   rhumb.Kind
	}{
		"short":      {func(p []byte) []byte { return p[:RootSize-1] }, rhumb.Corrupt},
		"magic":      {func(p []byte) []byte { p[0] = 'X'; return p }, rhumb.Corrupt},
		"major":      {func(p []byte) []byte { p[8]++; return p }, rhumb.Incompatible},
		"big endian": {func(p []byte) []byte { p[16], p[19] = p[19], p[16]; return p }, rhumb.Incompatible},
		"seed":       {func(p []byte) []byte { p[40]++; return p }, rhumb.Corrupt},
		"feature": {func(p []byte) []byte {
			p[56] = 1
			le.PutUint32(p[60:], Checksum(p[:60]))
			return p
		}, rhumb.Incompatible},
		"size": {func(p []byte) []byte {
			p[20] = 1
			le.PutUint32(p[60:], Checksum(p[:60]))
			return p
		}, rhumb.Corrupt},
	}
	for name, c := range cases {
		if _, err := DecodeRoot(c.change(bytes.Clone(p))); rhumb.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want kind %s", name, err, c.kind)
		}
	}
}

func TestCommit(t *testing.T) {
	p := make([]byte, RingEntrySize)
	want := Commit{Version: 7, Closed: 8, Event: -9, Wall: 10, Mono: 11, Records: 12}
	EncodeCommit(p, want)
	if got, ok := DecodeCommit(p, 7); !ok || got != want {
		t.Errorf("%+v, %t", got, ok)
	}
	if _, ok := DecodeCommit(p, 23); ok {
		t.Error("the entry of version 7 passes for that of 23")
	}
	for i := range 48 {
		q := bytes.Clone(p)
		q[i] ^= 4
		if _, ok := DecodeCommit(q, 7); ok {
			t.Errorf("a torn entry passes: byte %d", i)
		}
	}
	if _, ok := DecodeCommit(make([]byte, RingEntrySize), 0); ok {
		t.Error("an empty entry passes for version 0")
	}
}

func testTable() Table {
	return Table{
		ID: 9, Name: strings.Repeat("t", TableNameSizeMax), KeyKind: KeyName, Flags: TableUsed | TableOrdered | TableSummed,
		ShardFirst: 8, ShardCount: 16, LocationField: strings.Repeat("l", LocationFieldSizeMax),
	}
}

func TestTable(t *testing.T) {
	p := make([]byte, TableEntrySize)
	EncodeTable(p, testTable())
	got, used, err := DecodeTable(p)
	if err != nil || !used || got != testTable() {
		t.Fatalf("%+v, %t, %v", got, used, err)
	}
	if !got.Ordered() || got.Spatial() || !got.Summed() {
		t.Errorf("features of %#x", got.Flags)
	}
	if _, used, err := DecodeTable(make([]byte, TableEntrySize)); used || err != nil {
		t.Errorf("an empty entry: %t, %v", used, err)
	}
	for name, change := range map[string]func(t *Table){
		"no shards":       func(t *Table) { t.ShardCount = 0 },
		"three shards":    func(t *Table) { t.ShardCount = 3 },
		"too many shards": func(t *Table) { t.ShardFirst, t.ShardCount = 250, 16 },
		"kind":            func(t *Table) { t.KeyKind = 2 },
		"no name":         func(t *Table) { t.Name = "" },
	} {
		bad := testTable()
		change(&bad)
		EncodeTable(p, bad)
		if _, _, err := DecodeTable(p); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("%s: %v, want corrupt", name, err)
		}
	}
	EncodeTable(p, Table{Name: PositionsTable, Flags: TableUsed, ShardCount: 1})
	if _, _, err := DecodeTable(p); rhumb.KindOf(err) != rhumb.Incompatible {
		t.Errorf("positions without checksums: %v, want incompatible", err)
	}
}

func TestShard(t *testing.T) {
	p := make([]byte, ShardEntrySize)
	want := Shard{Generation: 1, Base: 2, FileSize: 3, Closed: 4, Table: 5, Index: 6}
	EncodeShard(p, want)
	if got, used, err := DecodeShard(p); err != nil || !used || got != want {
		t.Errorf("%+v, %t, %v", got, used, err)
	}
	p[9] ^= 1
	if _, _, err := DecodeShard(p); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("%v, want corrupt", err)
	}
	if _, used, err := DecodeShard(make([]byte, ShardEntrySize)); used || err != nil {
		t.Errorf("an empty entry: %t, %v", used, err)
	}
}

// No bytes make the decoders of the root panic, and what they take they give back as it was.
func FuzzRoot(f *testing.F) {
	p := make([]byte, RootSize)
	EncodeRoot(p, testRoot())
	EncodeCommit(p[RootRing:], Commit{Version: 16, Closed: 1})
	EncodeTable(p[RootTables:], testTable())
	EncodeShard(p[RootShards:], Shard{Generation: 1, FileSize: 9})
	f.Add(p[:64], p[RootRing:][:RingEntrySize], p[RootTables:][:TableEntrySize], p[RootShards:][:ShardEntrySize])
	f.Fuzz(func(t *testing.T, root, commit, table, shard []byte) {
		p := make([]byte, RootSize)
		copy(p[:64], root)
		if r, err := DecodeRoot(p); err == nil {
			q := make([]byte, 64)
			EncodeRoot(q, r)
			if !bytes.Equal(q[:60], p[:60]) {
				t.Errorf("root %x came back as %x", p[:60], q[:60])
			}
		}
		entry := make([]byte, RingEntrySize)
		copy(entry, commit)
		DecodeCommit(entry, le.Uint64(entry))
		entry = make([]byte, TableEntrySize)
		copy(entry, table)
		if tab, used, err := DecodeTable(entry); used && err == nil && (tab.Name == "" || tab.ShardCount == 0) {
			t.Errorf("table %+v", tab)
		}
		entry = make([]byte, ShardEntrySize)
		copy(entry, shard)
		if s, used, err := DecodeShard(entry); used && err == nil && s.Generation == 0 {
			t.Errorf("shard %+v", s)
		}
	})
}
