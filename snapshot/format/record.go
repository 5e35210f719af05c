package format

import (
	"math"
	"math/bits"

	"github.com/rhumbdb/rhumb"
)

// A bucket is one cache line: u16 fingerprints[10], u32 references[10], u32 next (an overflow
// bucket, counted from the first primary one; 0 for none). Fingerprint 0 is an empty slot.
const (
	BucketSize  = 64
	BucketSlots = 10
	BucketRefs  = 20
	BucketNext  = 60
	// BucketLoad is the average number of slots of a primary bucket that a build plans to fill,
	// including keys of the append area.
	BucketLoad = 7
)

// Offsets in a record: u64 key or hash, u32 version relative to the base, u32 previous version's
// reference, u16 length of the value, u16 flags, u32 checksum. The payload follows: HLC (8), expiry
// (8), box (16), each if its flag is set, then for KeyName tables the length of the key (1 byte)
// and the key, then the value.
const (
	RecordVersion = 8
	RecordPrev    = 12
	RecordLen     = 16
	RecordFlags   = 18
	RecordSum     = 20
)

// Flags of a record.
const (
	FlagTombstone uint16 = 1  // the key has no value from this version on
	FlagBox       uint16 = 2  // the payload has the box: i32 min lon, min lat, max lon, max lat in 1e-7 degrees
	FlagExpiry    uint16 = 4  // the payload has the time, ns since 1970, after which readers treat it as a tombstone
	FlagMoved     uint16 = 8  // the record is found through the spatial delta and not through the R-tree
	FlagHLC       uint16 = 16 // the payload has the timestamp of the write
)

const (
	// AbortedVersion marks a record of a commit that was never finished; it is greater than the
	// version of every view.
	AbortedVersion uint32 = math.MaxUint32
	// NoPrev is the reference that ends a chain of versions.
	NoPrev uint32 = math.MaxUint32
	// LongValue as the length means that the actual length precedes the value, in LongLenSize
	// bytes.
	LongValue uint16 = math.MaxUint16
	// LongLenSize is the size of the length before a long value.
	LongLenSize = 4
	// NameSizeMax is the greatest length of a key in a snapshot table.
	NameSizeMax = 254
	// ShardKeyLen in place of a key's length means that a 16-byte shard key follows. A shard key
	// never equals a name.
	ShardKeyLen = 255
	// ShardKeySize is the length of a shard key in bytes.
	ShardKeySize = 16
	// ValueSizeMax is the greatest size of a value.
	ValueSizeMax = rhumb.ValueSizeMax
)

// Key is a record's key: a number, a name or a shard key.
type Key struct {
	Number   uint64 // KeyUint64
	Name     []byte // KeyName: the name, or the 16 bytes of a shard key
	ShardKey bool
}

// mixWords multiplies two words and folds the halves of the product.
func mixWords(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// HashNumber hashes a KeyUint64 key.
func (r *Root) HashNumber(key uint64) uint64 { return mixWords(key^r.Seed0, r.Seed1) }

// HashName hashes a KeyName key: length byte (ShardKeyLen for a shard key), then words of 8 bytes,
// the last filled with zeros.
func (r *Root) HashName(name []byte, shardKey bool) uint64 {
	n := uint64(len(name))
	if shardKey {
		n = ShardKeyLen
	}
	// The length goes in first, so that names that differ only in trailing zeros hash differently.
	h := mixWords(r.Seed0^n, r.Seed1)
	for len(name) >= 8 {
		h = mixWords(h^le.Uint64(name), r.Seed1)
		name = name[8:]
	}
	if len(name) > 0 {
		var w [8]byte
		copy(w[:], name)
		h = mixWords(h^le.Uint64(w[:]), r.Seed1)
	}
	return mixWords(h^hashFinal, r.Seed1)
}

const hashFinal = 0x2d358dccaa6c78a5

// Fingerprint returns the 16 bits of a hash that are in the bucket, never 0.
func Fingerprint(hash uint64) uint16 {
	if f := uint16(hash); f != 0 {
		return f
	}
	return 1
}

// BucketOf returns the primary bucket of a hash.
func BucketOf(hash uint64, buckets uint32) uint32 {
	hi, _ := bits.Mul64(hash, uint64(buckets))
	return uint32(hi)
}

// ShardOf returns the shard of a hash. count must be a power of two of at most ShardsMax.
func ShardOf(hash uint64, count uint16) uint16 { return uint16(hash>>16) & (count - 1) }

// RecordSize returns the size of a record in bytes before it is rounded up to RecordAlign. key is
// the length of a KeyName key and value that of the value.
func RecordSize(kind KeyKind, flags uint16, key, value int) int {
	// The flags are powers of two, so the size of each optional field is a multiple of its flag:
	// 16, 8 and 8 bytes.
	n := RecordHeadSize + value + int(flags&FlagBox)*8
	n += int(flags&FlagHLC) / 2
	n += int(flags&FlagExpiry) * 2
	if kind == KeyName {
		n += 1 + key
	}
	if value >= int(LongValue) {
		n += LongLenSize
	}
	return n
}

// Units returns a size in units of RecordAlign, rounded up.
func Units(size int) uint32 { return uint32((size + RecordAlign - 1) / RecordAlign) }

// The scale of coordinates in an image: 1e-7 degrees.
const (
	UnitsPerDegree = 10_000_000
	LonUnitsMax    = 180 * UnitsPerDegree
	LatUnitsMax    = 90 * UnitsPerDegree
)

// Box is a rectangle in 1e-7 degrees. One with MinX > MaxX crosses the antimeridian.
type Box struct{ MinX, MinY, MaxX, MaxY int32 }

// MakeBox turns a box in degrees into units, rounding outwards by less than one unit (about 1 cm).
func MakeBox(b rhumb.Box) Box {
	return Box{
		MinX: clampUnits(math.Floor(b.Min.Lon*UnitsPerDegree), LonUnitsMax), MinY: clampUnits(math.Floor(b.Min.Lat*UnitsPerDegree), LatUnitsMax),
		MaxX: clampUnits(math.Ceil(b.Max.Lon*UnitsPerDegree), LonUnitsMax), MaxY: clampUnits(math.Ceil(b.Max.Lat*UnitsPerDegree), LatUnitsMax),
	}
}

// MakePoint turns a point in degrees into a box of no extent, rounded to the nearest unit.
func MakePoint(p rhumb.Point) Box {
	x, y := clampUnits(math.Round(p.Lon*UnitsPerDegree), LonUnitsMax), clampUnits(math.Round(p.Lat*UnitsPerDegree), LatUnitsMax)
	return Box{x, y, x, y}
}

// clampUnits clamps a rounded number of units to a limit: exactly 180 degrees may round beyond it.
func clampUnits(v float64, limit int32) int32 {
	return int32(min(max(v, -float64(limit)), float64(limit)))
}

// Degrees returns the box in degrees.
func (b Box) Degrees() rhumb.Box {
	return rhumb.Box{
		Min: rhumb.Point{Lat: float64(b.MinY) / UnitsPerDegree, Lon: float64(b.MinX) / UnitsPerDegree},
		Max: rhumb.Point{Lat: float64(b.MaxY) / UnitsPerDegree, Lon: float64(b.MaxX) / UnitsPerDegree},
	}
}

// Crosses reports whether the box crosses the antimeridian.
func (b Box) Crosses() bool { return b.MinX > b.MaxX }

// Valid reports whether the box is on the earth, with the lower edge first. Queries do not find
// invalid boxes.
func (b Box) Valid() bool {
	return b.MinY <= b.MaxY && b.MinY >= -LatUnitsMax && b.MaxY <= LatUnitsMax &&
		min(b.MinX, b.MaxX) >= -LonUnitsMax && max(b.MinX, b.MaxX) <= LonUnitsMax
}

// Split returns the one or two plain boxes that b consists of. A box that crosses the antimeridian
// is its part east of MinX, then its part west of MaxX.
func (b Box) Split() (parts [2]Box, n int) {
	if !b.Crosses() {
		return [2]Box{b}, 1
	}
	return [2]Box{{b.MinX, b.MinY, LonUnitsMax, b.MaxY}, {-LonUnitsMax, b.MinY, b.MaxX, b.MaxY}}, 2
}

// Intersects reports whether two plain boxes touch or overlap.
func (b Box) Intersects(o Box) bool {
	return b.MinX <= o.MaxX && o.MinX <= b.MaxX && b.MinY <= o.MaxY && o.MinY <= b.MaxY
}

// Position is the value of a record of PositionsTable, PositionSize bytes: how far the image
// follows a range.
type Position struct {
	Epoch rhumb.Epoch
	Seq   uint64
	HLC   rhumb.Timestamp
}

// PositionSize is the length of an encoded position.
const PositionSize = 24

// EncodePosition appends the position: three u64.
func EncodePosition(dst []byte, p Position) []byte {
	dst = le.AppendUint64(dst, uint64(p.Epoch))
	dst = le.AppendUint64(dst, p.Seq)
	return le.AppendUint64(dst, uint64(p.HLC))
}

// DecodePosition reads a position.
func DecodePosition(p []byte) (Position, bool) {
	if len(p) != PositionSize {
		return Position{}, false
	}
	return Position{rhumb.Epoch(le.Uint64(p)), le.Uint64(p[8:]), rhumb.Timestamp(le.Uint64(p[16:]))}, true
}

// PositionKey returns the key of a range in PositionsTable.
func PositionKey(r rhumb.RangeID) uint64 { return uint64(r.Region)<<32 | uint64(r.Slot) }
