package segment

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A record begins at a multiple of 64 bytes and has, in this order:
//
//	0   8   the number, or the hash of the name
//	8   4   version relative to the base
//	12  4   reference of the version before
//	16  2   length of the value
//	18  2   flags
//	20  4   checksum in summed tables
//	24  8   timestamp, if FlagHLC
//	    8   expiry, if FlagExpiry
//	    16  box, if FlagBox
//	    1   length of the name, and the name, in tables of names
//	    4   length of a long value
//	        the value, and zeros up to the next multiple of 64
//
// The optional parts are so few and so small that they all begin in the first 64 bytes. A look-up
// therefore reads one or two cache lines: key, version, flags and box are in the first one.
// References count units of 64 bytes, so that 32 bits reach 256 GiB and no reference leads into the
// middle of a head.

var littleEndian = binary.LittleEndian

// NoRef is the reference of no record.
const NoRef = format.NoPrev

// Heap is memory that holds consecutive records. A reference counts units of 64 bytes from its
// start.
//
// The methods trust the records: of a mapped file that was opened again, Open has checked every
// record first.
type Heap struct {
	Mem  []byte
	Kind format.KeyKind
}

// RecordHead is the fixed part of a record, laid over the mapped bytes. The payload follows:
// timestamp, expiry, box, name, long length and value, each only if the flags or the table say so.
type RecordHead struct {
	Key   uint64 // the number, or the hash of the name
	Ver   uint32 // version relative to the base, or format.AbortedVersion
	Prev  uint32 // reference of the version before, or NoRef
	Size  uint16 // bytes of the value, or format.LongValue
	Flags uint16
	Sum   uint32 // 0 in a table that is not summed
}

// The types that are laid over mapped memory must have exactly the sizes of the format: a negative
// array length does not compile.
var (
	_ [format.BucketSize - unsafe.Sizeof(bucket{})]struct{}
	_ [unsafe.Sizeof(bucket{}) - format.BucketSize]struct{}
	_ [format.DeltaEntrySize - unsafe.Sizeof(deltaEntry{})]struct{}
	_ [format.RecordHeadSize - unsafe.Sizeof(RecordHead{})]struct{}
)

// At returns the head of a record, which the payload follows.
func (h Heap) At(ref uint32) *RecordHead {
	off := int(ref) * format.RecordAlign
	_ = h.Mem[off+format.RecordHeadSize-1] // the conversion below is unchecked
	return (*RecordHead)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(h.Mem)), off))
}

// Address returns the address of a record, for prefetching.
func (h Heap) Address(ref uint32) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(h.Mem))) + uintptr(ref)*format.RecordAlign
}

// payloadOf returns everything from the end of the head on.
func (h Heap) payloadOf(ref uint32) []byte {
	return h.Mem[int(ref)*format.RecordAlign+format.RecordHeadSize:]
}

// HLC returns the timestamp of a record, or 0 if the record has none.
func (h Heap) HLC(ref uint32) rhumb.Timestamp {
	if h.At(ref).Flags&format.FlagHLC == 0 {
		return 0
	}
	return rhumb.Timestamp(littleEndian.Uint64(h.payloadOf(ref)))
}

// Expiry returns when a record ends, in ns since 1970, or 0 for never.
func (h Heap) Expiry(ref uint32) int64 {
	flags := h.At(ref).Flags
	if flags&format.FlagExpiry == 0 {
		return 0
	}
	return int64(littleEndian.Uint64(h.payloadOf(ref)[flags&format.FlagHLC/2:]))
}

// HasNoValue reports whether a record says that its key has no value at a time: it is a tombstone,
// or it has ended.
func (h Heap) HasNoValue(ref uint32, wall int64) bool {
	end := h.Expiry(ref)
	return h.IsTombstone(ref) || end != 0 && end <= wall
}

// IsTombstone reports whether a record deletes its key.
func (h Heap) IsTombstone(ref uint32) bool { return h.At(ref).Flags&format.FlagTombstone != 0 }

// IsAborted reports whether a record never counts: its commit was not finished, or its key was
// given another place.
func (h Heap) IsAborted(ref uint32) bool { return h.At(ref).Ver == format.AbortedVersion }

// Box returns the box of a record; ok is false if the record has none.
func (h Heap) Box(ref uint32) (b format.Box, ok bool) {
	flags := h.At(ref).Flags
	if flags&format.FlagBox == 0 {
		return b, false
	}
	p := h.payloadOf(ref)[boxOffset(flags):]
	return format.Box{
		MinX: int32(littleEndian.Uint32(p)), MinY: int32(littleEndian.Uint32(p[4:])),
		MaxX: int32(littleEndian.Uint32(p[8:])), MaxY: int32(littleEndian.Uint32(p[12:])),
	}, true
}

// sameBox reports whether two records have the same box, or both have none.
func (h Heap) sameBox(a, b uint32) bool {
	x, y := h.At(a).Flags, h.At(b).Flags
	switch {
	case (x^y)&format.FlagBox != 0:
		return false
	case x&format.FlagBox == 0:
		return true
	}
	// Two words instead of four coordinates: every commit to a spatial table compares.
	p, q := h.payloadOf(a)[boxOffset(x):], h.payloadOf(b)[boxOffset(y):]
	return littleEndian.Uint64(p) == littleEndian.Uint64(q) && littleEndian.Uint64(p[8:]) == littleEndian.Uint64(q[8:])
}

// boxOffset returns where the box begins in the payload. The flags are powers of two, so that
// dividing and multiplying them yields the 8 bytes of each field that is present without a branch.
func boxOffset(flags uint16) int { return int(flags&format.FlagHLC/2 + flags&format.FlagExpiry*2) }

// keyOffset returns where the name begins in the payload, or the value in a table of numbers.
func keyOffset(flags uint16) int {
	return boxOffset(flags) + int(flags&format.FlagBox*8)
}

// nameOf returns the name of a record together with the length byte before it.
func (h Heap) nameOf(ref uint32) []byte {
	p := h.payloadOf(ref)[keyOffset(h.At(ref).Flags):]
	return p[:1+nameSize(p[0])]
}

// nameSize returns how many bytes of name follow a length byte.
func nameSize(length byte) int {
	if length == format.ShardKeyLen {
		return format.ShardKeySize
	}
	return int(length)
}

// valueSpan returns where the value begins, in bytes from the start of the record, and how long it
// is.
func (h Heap) valueSpan(ref uint32) (at, n int) {
	head := h.At(ref)
	at = format.RecordHeadSize + keyOffset(head.Flags)
	if h.Kind == format.KeyName {
		at += 1 + nameSize(h.Mem[int(ref)*format.RecordAlign+at])
	}
	// The length of a long value is before the value itself.
	if head.Size == format.LongValue {
		return at + format.LongLenSize, int(littleEndian.Uint32(h.Mem[int(ref)*format.RecordAlign+at:]))
	}
	return at, int(head.Size)
}

// Size returns the size of a record in bytes.
func (h Heap) Size(ref uint32) int {
	at, n := h.valueSpan(ref)
	return at + n
}

// Units returns how many units a record takes.
func (h Heap) Units(ref uint32) uint32 { return format.Units(h.Size(ref)) }

// bytesOf returns the bytes of a record without the filling of its last unit.
func (h Heap) bytesOf(ref uint32) []byte {
	return h.Mem[int(ref)*format.RecordAlign:][:h.Size(ref)]
}

// sameKey reports whether two records, which may be in two heaps of one kind, have the same key.
// Names are compared by their hashes first.
func (h Heap) sameKey(ref uint32, other Heap, otherRef uint32) bool {
	if h.At(ref).Key != other.At(otherRef).Key {
		return false
	}
	return h.Kind == format.KeyUint64 || bytes.Equal(h.nameOf(ref), other.nameOf(otherRef))
}

// keyText returns the key of a record for messages.
func (h Heap) keyText(ref uint32) any {
	if h.Kind == format.KeyName {
		return string(h.nameOf(ref)[1:])
	}
	return h.At(ref).Key
}

// Compare orders two records by key: numbers by value, names by their bytes, and shard keys after
// all names.
func (h Heap) Compare(a, b uint32) int {
	if h.Kind == format.KeyUint64 {
		return cmp.Compare(h.At(a).Key, h.At(b).Key)
	}
	return compareNames(h.nameOf(a), h.nameOf(b))
}

// compareNames compares two names that have their length bytes before them.
func compareNames(a, b []byte) int {
	// A shard key is a key of its own, equal to no name, even if their bytes are the same.
	if aShard, bShard := a[0] == format.ShardKeyLen, b[0] == format.ShardKeyLen; aShard != bShard {
		if aShard {
			return 1
		}
		return -1
	}
	return bytes.Compare(a[1:], b[1:])
}

// Shape is what decides whether a version can take the place of another in a base.
type Shape struct {
	Units uint32
	Gone  bool // it is a tombstone
	Boxed bool
}

// ShapeOf returns the shape of a record.
func (h Heap) ShapeOf(ref uint32) Shape {
	flags := h.At(ref).Flags
	return Shape{Units: h.Units(ref), Gone: flags&format.FlagTombstone != 0, Boxed: flags&format.FlagBox != 0}
}

// Fits reports whether a version of this shape can take the place of one of another. A tombstone
// always can, because a deletion leaves the record in the base as it is and only sets a flag. Any
// other version must take as many units, since references to later records must stay valid, and
// must also agree in having a box, since the R-tree either has a leaf for the record or has none.
func (v Shape) Fits(was Shape) bool {
	return v.Gone || v.Units == was.Units && v.Boxed == was.Boxed
}

// sameShape reports whether two versions of one key are no tombstones and have one shape. It may
// report false for two that have: the caller takes true as a promise and false as a reason to look.
// A commit asks for every record that it links, so that the usual case, an update with another
// value of the same length, is two comparisons of words that are in the cache.
func (h Heap) sameShape(a, b uint32) bool {
	x, y := h.At(a), h.At(b)
	// Both have the same key, so that the names are equally long. Equal flags mean equal optional
	// fields. FlagMoved takes no room, and a long value has its length elsewhere.
	if x.Size == y.Size && x.Size != format.LongValue && (x.Flags^y.Flags)&^format.FlagMoved == 0 {
		return x.Flags&format.FlagTombstone == 0
	}
	v, w := h.ShapeOf(a), h.ShapeOf(b)
	return v == w && !v.Gone
}
