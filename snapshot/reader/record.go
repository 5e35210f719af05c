package reader

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Records are read in place. All fields that a look-up needs are in the first 64 bytes of a record,
// and recordAt has checked that these are within the heap; the lengths of names and values are
// compared with the end of the heap before they are used. Fields do not change once a view can see
// the record, except for the version, which recovery may overwrite in a record that no view shows.

// Item is a record as a view shows it. Name and Value alias the image. They are valid until the
// view is unlocked and must not be written to.
type Item struct {
	// Value is the stored value, in Rhumb's value encoding: see rhumb.DecodeOpaque and
	// rhumb.DecodeRecord.
	Value []byte
	// Name is the key of a KeyName table, of rhumb.ShardKeySize bytes when ShardKey is set. It is
	// nil in a KeyUint64 table.
	Name []byte
	// Number is the key of a KeyUint64 table.
	Number uint64
	// Version is the version of the image that added the value. For a value older than the live
	// generation it is the version at which the generation was built.
	Version uint64
	// HLC is the timestamp of the write; 0 if the publisher does not know it.
	HLC rhumb.Timestamp
	// Expiry is when the value ends, in ns since 1970; 0 for never.
	Expiry int64
	// Box is the location of the record, if HasBox.
	Box format.Box
	// Distance is how far the box is from the point of the query, in metres. Only Radius and
	// Nearest set it.
	Distance float64
	// ShardKey reports whether the server assigned the name, and HasBox whether Box is set. Found
	// is false for a key that MultiGet did not find; all other fields are zero then.
	ShardKey, HasBox, Found bool
}

// record is the head of a mapped record. It is a single pointer: the methods read fields in place.
type record struct{ p unsafe.Pointer }

// word returns the number, or the hash of the name.
func (r record) word() uint64 { return *(*uint64)(r.p) }

// version returns the version relative to the generation's base. Recovery overwrites it in records
// of commits that were not finished, so the load is atomic.
func (r record) version() uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Add(r.p, format.RecordVersion)))
}

// prev returns the reference of the version before.
func (r record) prev() uint32 { return *(*uint32)(unsafe.Add(r.p, format.RecordPrev)) }

// flags returns the flags.
func (r record) flags() uint16 { return *(*uint16)(unsafe.Add(r.p, format.RecordFlags)) }

// lengthAndFlags returns the length of the value in the lower half, LongValue for a long one, and
// the flags in the upper half. One load reads both.
func (r record) lengthAndFlags() uint32 { return *(*uint32)(unsafe.Add(r.p, format.RecordLen)) }

// sum returns the checksum, 0 in a table that is not summed.
func (r record) sum() uint32 { return *(*uint32)(unsafe.Add(r.p, format.RecordSum)) }

// The fixed parts of the payload all lie within the first unit, so that they can be read wherever a
// record begins.
const _ = uint(format.RecordAlign - format.RecordHeadSize - 8 - 8 - 16)

// hlc returns the timestamp of the write, or 0.
func (r record) hlc() rhumb.Timestamp {
	if r.flags()&format.FlagHLC == 0 {
		return 0
	}
	return rhumb.Timestamp(*(*uint64)(unsafe.Add(r.p, format.RecordHeadSize)))
}

// expiry returns the expiry; ok is false if there is none.
func (r record) expiry() (ns int64, ok bool) {
	f := r.flags()
	if f&format.FlagExpiry == 0 {
		return 0, false
	}
	// FlagHLC is 16, so half of it is the size of the HLC. No branch is needed to find the expiry.
	return *(*int64)(unsafe.Add(r.p, format.RecordHeadSize+uintptr(f&format.FlagHLC)/2)), true
}

// boxAt returns the offset of the box. Without a box the variable part of the payload begins there.
func boxAt(f uint16) uintptr {
	return format.RecordHeadSize + uintptr(f&format.FlagHLC)/2 + uintptr(f&format.FlagExpiry)*2
}

// nameAt returns the offset of the length of the name in a KeyName table, and of the value in
// another.
func nameAt(f uint16) uintptr { return boxAt(f) + uintptr(f&format.FlagBox)*8 }

// box returns the box; ok is false if there is none.
func (r record) box() (b format.Box, ok bool) {
	f := r.flags()
	if f&format.FlagBox == 0 {
		return b, false
	}
	// The fields before the box have 8 bytes each, so the load is aligned.
	return *(*format.Box)(unsafe.Add(r.p, boxAt(f))), true
}

// bytesFrom returns the number of bytes from a record to the end of the heap.
func (g *segment) bytesFrom(ref uint32) uintptr { return uintptr(g.units-ref) * format.RecordAlign }

// value returns the offset and the length of a record's value, given the offset at which its key
// ends. ok is false if the value does not fit into the heap.
func (g *segment) value(r record, ref uint32, at uintptr) (begin, n uintptr, ok bool) {
	// Every length is compared with the rest of the heap. The subtraction cannot wrap, since at <=
	// room is checked first.
	room := g.bytesFrom(ref)
	n = uintptr(*(*uint16)(unsafe.Add(r.p, format.RecordLen)))
	if n == uintptr(format.LongValue) {
		if at+format.LongLenSize > room {
			return 0, 0, false
		}
		// The length follows the key and need not be aligned, so it is read by bytes.
		n = uintptr(binary.LittleEndian.Uint32((*[format.LongLenSize]byte)(unsafe.Add(r.p, at))[:]))
		at += format.LongLenSize
	}
	return at, n, at <= room && n <= room-at && n <= format.ValueSizeMax
}

// name returns the key of a record of a KeyName table. ok is false if the key does not fit into the
// heap.
func (g *segment) name(r record, ref uint32) (name []byte, shardKey, ok bool) {
	at := nameAt(r.flags())
	if at >= g.bytesFrom(ref) {
		return nil, false, false
	}
	n := uintptr(*(*uint8)(unsafe.Add(r.p, at)))
	if n == format.ShardKeyLen {
		// 255 is longer than any name. It marks a shard key, whose length is fixed.
		n, shardKey = format.ShardKeySize, true
	}
	if n+1 > g.bytesFrom(ref)-at {
		return nil, false, false
	}
	return unsafe.Slice((*byte)(unsafe.Add(r.p, at+1)), n), shardKey, true
}

// sameName reports whether a record has the name that is looked up.
func (g *segment) sameName(r record, ref uint32, key *lookupKey) bool {
	name, shardKey, ok := g.name(r, ref)
	return ok && shardKey == key.shardKey && string(name) == string(key.name)
}

// visibleVersion follows the chain of versions from a record to the one that the view shows. ok is
// false if there is none. Tombstones and expired records count as visible here; see hasNoValue.
func (v *View) visibleVersion(g *segment, ref uint32) (r record, at uint32, ok bool, err error) {
	limit := v.limitOf(g)
	for {
		r, ok = g.recordAt(ref)
		if !ok {
			return r, ref, false, g.corruptAt("a reference points past the heap", g.refOffset(ref))
		}
		if v.shows(r, limit) {
			return r, ref, true, nil
		}
		// The view is older than this version, or its closed timestamp is.
		prev := r.prev()
		if prev == format.NoPrev {
			return r, ref, false, nil
		}
		if prev >= ref { // earlier versions lie lower, so that every chain ends
			return r, ref, false, g.corruptAt("a chain of versions leads upwards", g.refOffset(ref))
		}
		ref = prev
	}
}

// shows reports whether the view includes the version of a record. limit is the version of the view
// relative to the generation's base.
func (v *View) shows(r record, limit uint32) bool {
	return r.version() <= limit && (v.closed == 0 || r.hlc() <= v.closed)
}

// limitOf returns the version of the view relative to a generation's base. The greatest relative
// version means aborted, and no view reaches it.
func (v *View) limitOf(g *segment) uint32 {
	return uint32(min(v.version-g.version, math.MaxUint32-1))
}

// hasNoValue reports whether a visible record is a tombstone or has expired.
func (v *View) hasNoValue(r record) bool {
	if r.flags()&(format.FlagTombstone|format.FlagExpiry) == 0 {
		return false
	}
	// Nearly all records have returned above, so that a single test of the flags is their only
	// cost.
	ns, expires := r.expiry()
	return r.flags()&format.FlagTombstone != 0 || expires && ns <= v.wall
}

// isPlain reports whether a record is that of a number and needs no second look: its version is
// below the bound, and its value is neither long nor expiring.
//
// If the flags are the expected ones, a single subtraction checks them together with the adjacent
// length. So the address of the value does not depend on the loaded flags.
func (r record) isPlain(l *lane, number, bound uint64) bool {
	return r.word() == number && l.version+uint64(r.version()) < bound &&
		(r.lengthAndFlags()-l.flags < uint32(format.LongValue) || r.neverEnds())
}

// neverEnds reports whether a record has a value that is neither long nor expiring.
func (r record) neverEnds() bool {
	return r.flags()&(format.FlagTombstone|format.FlagExpiry) == 0 && uint16(r.lengthAndFlags()) != format.LongValue
}

// fillPlain fills an item, which must be zero, with a record that isPlain.
func (r record) fillPlain(it *Item, l *lane) {
	it.Value = r.plainValue(l)
	it.Number = r.word()
	it.Version = l.version + uint64(r.version())
	it.Found = true
	it.HLC = r.hlc()
	it.Box, it.HasBox = r.box()
}

// plainValue returns the value of a record that isPlain.
func (r record) plainValue(l *lane) []byte {
	// The lane holds the offset of the value in a typical record. Only other records have their
	// flags decoded.
	n, at := r.lengthAndFlags(), uintptr(l.at)
	if n-l.flags >= uint32(format.LongValue) {
		at = nameAt(r.flags())
	}
	n &= math.MaxUint16
	return (*[math.MaxUint16]byte)(unsafe.Add(r.p, at))[:n:n] // unsafe.Slice would check that it does not go round
}

// fillItem fills an item with a visible record.
func (t *Table) fillItem(it *Item, g *segment, r record, ref uint32) error {
	at := nameAt(r.flags())
	*it = Item{}
	if t.t.KeyKind == format.KeyUint64 {
		it.Number = r.word()
	} else {
		name, shardKey, ok := g.name(r, ref)
		if !ok {
			return g.corruptAt("a key runs past the heap", g.refOffset(ref))
		}
		it.Name, it.ShardKey = name, shardKey
		at += 1 + uintptr(len(name))
	}
	at, n, ok := g.value(r, ref, at)
	if !ok {
		return g.corruptAt("a value runs past the heap", g.refOffset(ref))
	}
	it.Value = unsafe.Slice((*byte)(unsafe.Add(r.p, at)), n)
	it.Version, it.Found = g.version+uint64(r.version()), true
	it.HLC = r.hlc()
	it.Expiry, _ = r.expiry()
	it.Box, it.HasBox = r.box()
	if t.t.summed {
		return g.checkSum(r, ref, at+n)
	}
	return nil
}
