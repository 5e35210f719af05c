package format

import (
	"encoding/binary"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// The sizes and offsets of the root file, in bytes. See docs/formats/snapshot.md.
const (
	RootName  = "root"
	RootMagic = "RHBROOT1"
	RootSize  = 32 << 10

	// Major changes when readers of an earlier version would misread; Minor when something is
	// added.
	Major = 2
	Minor = 0
	// EndianTag reads differently on a machine of the other byte order, whose images are rejected.
	EndianTag = 0x01020304

	// RootCommitted is the offset of the commit word: the newest version that is completely
	// visible. Mutable, atomic.
	RootCommitted = 64
	// RootTableSeq is a sequence lock over the tables and shards: odd while they change. Mutable,
	// atomic.
	RootTableSeq = 128
	// RootLife counts the starts of the publisher; RootHeartbeat is CLOCK_MONOTONIC in ns when it
	// was last alive; RootPID and RootState (u32) are its process and one of the States. Mutable,
	// atomic.
	RootLife      = 192
	RootHeartbeat = 200
	RootPID       = 208
	RootState     = 212
	// RootGeneration is the greatest generation number that was ever given to a file of the image.
	// Mutable, the publisher's own.
	RootGeneration = 216

	// RootRing is the ring of the last RingSize commits: the entry of version v is at v % RingSize.
	RootRing      = 256
	RingSize      = 16
	RingEntrySize = 64

	// RootTables holds TablesMax table entries, RootShards ShardsMax shard entries.
	RootTables     = 4096
	TablesMax      = 32
	TableEntrySize = 256
	RootShards     = 12288
	ShardsMax      = 256
	ShardEntrySize = 64
)

// States of a publisher.
const (
	StateLive     uint32 = 1 // it publishes
	StateStopping uint32 = 2 // it stopped cleanly; the image stays readable
)

// PositionsTable is the name of the table that every image has: the key is a range (region in the
// high 32 bits, slot in the low), the value the log position that the version covers. It is summed,
// and readers always check its records.
const PositionsTable = "_positions"

// Root is the immutable header of an image.
type Root struct {
	Minor uint32
	// Image is the random ID of the image.
	Image rhumb.UUID
	// Seed0 and Seed1 are the secret seeds of the image's hash; Seed1 is odd.
	Seed0, Seed1 uint64
}

// EncodeRoot writes the header into the first 64 bytes of p.
func EncodeRoot(p []byte, r Root) {
	clear(p[:64])
	copy(p, RootMagic)
	le.PutUint32(p[8:], Major)
	le.PutUint32(p[12:], r.Minor)
	le.PutUint32(p[16:], EndianTag)
	le.PutUint32(p[20:], RootSize)
	copy(p[24:40], r.Image[:])
	le.PutUint64(p[40:], r.Seed0)
	le.PutUint64(p[48:], r.Seed1)
	le.PutUint32(p[60:], Checksum(p[:60]))
}

// DecodeRoot decodes and checks the header. It fails with kind Corrupt if the header is damaged or
// foreign, and with Incompatible if another major version wrote it.
func DecodeRoot(p []byte) (Root, error) {
	const op rhumb.Op = "format.DecodeRoot"
	if len(p) < RootSize {
		return Root{}, rhumb.Ef(op, rhumb.Corrupt, "root has %d bytes, want %d", len(p), RootSize)
	}
	if err := checkHead(op, p, RootMagic, RootSize, Checksum(p[:60]), le.Uint32(p[60:])); err != nil {
		return Root{}, err
	}
	if flags := le.Uint32(p[56:]); flags != 0 {
		return Root{}, rhumb.Ef(op, rhumb.Incompatible, "root needs features %#x that this version lacks; use a newer one", flags)
	}
	return Root{
		Minor: le.Uint32(p[12:]), Image: rhumb.UUID(p[24:40]),
		Seed0: le.Uint64(p[40:]), Seed1: le.Uint64(p[48:]),
	}, nil
}

// Commit is the ring entry of a version.
type Commit struct {
	Version uint64
	// Closed is a timestamp up to which every range of the image is complete; 0 when none is known.
	Closed rhumb.Timestamp
	// Event is the time of the newest event in the commit as set by the writer, in ns since 1970; 0
	// if unknown.
	Event int64
	// Wall (CLOCK_REALTIME) and Mono (CLOCK_MONOTONIC) are when it was committed, in ns.
	Wall int64
	Mono uint64
	// Records is the number of record versions in the commit.
	Records uint32
}

// EncodeCommit encodes a ring entry of RingEntrySize bytes into p. The publisher stores the entry
// before the commit word.
func EncodeCommit(p []byte, c Commit) {
	le.PutUint64(p[8:], uint64(c.Closed))
	le.PutUint64(p[16:], uint64(c.Event))
	le.PutUint64(p[24:], uint64(c.Wall))
	le.PutUint64(p[32:], c.Mono)
	le.PutUint32(p[40:], c.Records)
	le.PutUint64(p[48:], 0)
	le.PutUint64(p[56:], 0)
	le.PutUint64(p[0:], c.Version)
	le.PutUint32(p[44:], Checksum(p[:44]))
}

// DecodeCommit decodes a ring entry; ok is false if the entry is torn, or belongs to another
// version because the ring has wrapped around.
func DecodeCommit(p []byte, version uint64) (c Commit, ok bool) {
	if le.Uint64(p) != version || Checksum(p[:44]) != le.Uint32(p[44:]) {
		return Commit{}, false
	}
	return Commit{
		Version: version, Closed: rhumb.Timestamp(le.Uint64(p[8:])), Event: int64(le.Uint64(p[16:])),
		Wall: int64(le.Uint64(p[24:])), Mono: le.Uint64(p[32:]), Records: le.Uint32(p[40:]),
	}, true
}

// KeyKind is how a table's keys are stored.
type KeyKind uint8

// The kinds of keys.
const (
	// KeyUint64 keys are 8 bytes, stored in the record's head; as a name, a key is the number in
	// big-endian order.
	KeyUint64 KeyKind = 0
	// KeyName keys are 1 to NameSizeMax bytes, or a shard key of 16, stored in the payload.
	KeyName KeyKind = 1
)

// Features of a table, as bits of Table.Flags.
const (
	TableUsed    uint16 = 1
	TableOrdered uint16 = 2 // sorted references, for scans by prefix
	TableSpatial uint16 = 4 // an R-tree and a spatial delta
	TableSummed  uint16 = 8 // every record carries its CRC-32C
)

// TableNameSizeMax is the greatest length of a table's name, LocationFieldSizeMax of its location
// field's, in bytes.
const (
	TableNameSizeMax     = 128
	LocationFieldSizeMax = 63
)

// Table is an entry of the root's tables.
type Table struct {
	ID      rhumb.TableID
	Name    string
	KeyKind KeyKind
	Flags   uint16
	// Shards are ShardFirst to ShardFirst+ShardCount-1 of the root; their number is a power of two.
	ShardFirst, ShardCount uint16
	// LocationField is the record field from which the box is derived; "" if there is none.
	LocationField string
}

// Ordered, Spatial and Summed report the table's features.
func (t Table) Ordered() bool { return t.Flags&TableOrdered != 0 }

// Spatial reports whether the table has a spatial index.
func (t Table) Spatial() bool { return t.Flags&TableSpatial != 0 }

// Summed reports whether the records carry checksums.
func (t Table) Summed() bool { return t.Flags&TableSummed != 0 }

// EncodeTable writes a table entry of TableEntrySize bytes.
func EncodeTable(p []byte, t Table) {
	p = p[:TableEntrySize]
	clear(p)
	le.PutUint32(p, uint32(t.ID))
	le.PutUint16(p[4:], t.Flags|TableUsed)
	p[6] = byte(t.KeyKind)
	p[7] = byte(len(t.Name))
	le.PutUint16(p[8:], t.ShardFirst)
	le.PutUint16(p[10:], t.ShardCount)
	copy(p[16:144], t.Name)
	p[144] = byte(len(t.LocationField))
	copy(p[145:208], t.LocationField)
	le.PutUint32(p[12:], Checksum(p))
}

// DecodeTable decodes a table entry; used is false if the entry holds no table.
func DecodeTable(p []byte) (t Table, used bool, err error) {
	const op rhumb.Op = "format.DecodeTable"
	var b [TableEntrySize]byte
	copy(b[:], p)
	if le.Uint16(b[4:])&TableUsed == 0 {
		return Table{}, false, nil
	}
	sum := le.Uint32(b[12:])
	le.PutUint32(b[12:], 0)
	if Checksum(b[:]) != sum {
		return Table{}, false, rhumb.E(op, rhumb.Corrupt, "a table entry does not match its checksum")
	}
	t = Table{
		ID: rhumb.TableID(le.Uint32(b[:])), Flags: le.Uint16(b[4:]), KeyKind: KeyKind(b[6]),
		ShardFirst: le.Uint16(b[8:]), ShardCount: le.Uint16(b[10:]),
	}
	n, f := int(b[7]), int(b[144])
	switch {
	case n == 0 || n > TableNameSizeMax || f > LocationFieldSizeMax:
		return Table{}, false, rhumb.Ef(op, rhumb.Corrupt, "a table entry has names of %d and %d bytes", n, f)
	case t.KeyKind > KeyName:
		return Table{}, false, rhumb.Ef(op, rhumb.Corrupt, "table %.128q has keys of kind %d", b[16:16+n], t.KeyKind)
	case t.ShardCount == 0 || t.ShardCount&(t.ShardCount-1) != 0 || int(t.ShardFirst)+int(t.ShardCount) > ShardsMax:
		return Table{}, false, rhumb.Ef(op, rhumb.Corrupt, "table %.128q has %d shards from %d", b[16:16+n], t.ShardCount, t.ShardFirst)
	}
	if string(b[16:16+n]) == PositionsTable && !t.Summed() {
		return Table{}, false, rhumb.Ef(op, rhumb.Incompatible, "the table %s has no checksums; the node makes the image anew when it starts", PositionsTable)
	}
	t.Name, t.LocationField = string(b[16:16+n]), string(b[145:145+f])
	return t, true, nil
}

// Shard is an entry of the root's shards: the live generation of one shard.
type Shard struct {
	Generation uint64 // 0: the entry is not used
	// Base is the version that the generation's base shows; records carry their version relative to
	// it.
	Base uint64
	// FileSize is the size of the segment file in bytes.
	FileSize uint64
	// Closed is the closed timestamp when the generation was built: views at an earlier timestamp
	// are not possible.
	Closed rhumb.Timestamp
	Table  rhumb.TableID
	Index  uint32 // of the shard in its table
}

// EncodeShard writes a shard entry of ShardEntrySize bytes.
func EncodeShard(p []byte, s Shard) {
	p = p[:ShardEntrySize]
	clear(p)
	le.PutUint64(p, s.Generation)
	le.PutUint64(p[8:], s.Base)
	le.PutUint64(p[16:], s.FileSize)
	le.PutUint64(p[24:], uint64(s.Closed))
	le.PutUint32(p[32:], uint32(s.Table))
	le.PutUint32(p[36:], s.Index)
	le.PutUint32(p[44:], Checksum(p[:44]))
}

// DecodeShard decodes a shard entry; used is false if the entry holds no shard.
func DecodeShard(p []byte) (s Shard, used bool, err error) {
	const op rhumb.Op = "format.DecodeShard"
	var b [ShardEntrySize]byte
	copy(b[:], p)
	if le.Uint64(b[:]) == 0 {
		return Shard{}, false, nil
	}
	if Checksum(b[:44]) != le.Uint32(b[44:]) {
		return Shard{}, false, rhumb.E(op, rhumb.Corrupt, "a shard entry does not match its checksum")
	}
	return Shard{
		Generation: le.Uint64(b[:]), Base: le.Uint64(b[8:]), FileSize: le.Uint64(b[16:]),
		Closed: rhumb.Timestamp(le.Uint64(b[24:])), Table: rhumb.TableID(le.Uint32(b[32:])), Index: le.Uint32(b[36:]),
	}, true, nil
}

// SegmentName returns the name of a segment's file.
func SegmentName(shard int, generation uint64) string {
	return fmt.Sprintf("seg.%d.%d", shard, generation)
}

var le = binary.LittleEndian

// checkHead checks the fields that root and segment headers have in common.
func checkHead(op rhumb.Op, p []byte, magic string, size, sum, want uint32) error {
	switch {
	case string(p[:8]) != magic:
		return rhumb.Ef(op, rhumb.Corrupt, "it begins with %q, not %q: this is another kind of file", p[:8], magic)
	case le.Uint32(p[16:]) != EndianTag:
		return rhumb.Ef(op, rhumb.Incompatible, "byte order tag %#x: written on a machine of another byte order", le.Uint32(p[16:]))
	case le.Uint32(p[8:]) != Major:
		return rhumb.Ef(op, rhumb.Incompatible, "format %d, this version reads %d", le.Uint32(p[8:]), Major)
	case sum != want:
		return rhumb.Ef(op, rhumb.Corrupt, "the header's checksum is %#x, counted %#x", want, sum)
	case le.Uint32(p[20:]) != size:
		return rhumb.Ef(op, rhumb.Corrupt, "header of %d bytes, want %d", le.Uint32(p[20:]), size)
	}
	return nil
}
