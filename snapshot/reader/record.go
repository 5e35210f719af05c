package reader

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Item is a record as a view shows it. Name and Value lie in the image and are valid until the view is unlocked; they must
// not be written to.
type Item struct {
	// Value is the stored value, in Rhumb's value encoding: see rhumb.DecodeOpaque and rhumb.DecodeRecord.
	Value []byte
	// Name is the key of a KeyName table, of rhumb.ShardKeySize bytes when ShardKey is set. It is nil in a KeyUint64 table.
	Name []byte
	// Number is the key of a KeyUint64 table.
	Number uint64
	// Version is the version of the image that brought the value; for one that is older than the live generation it is the
	// version that the generation was built at.
	Version uint64
	// HLC is the timestamp of the write; 0 when the publisher does not know it.
	HLC rhumb.Timestamp
	// Expiry is when the value ceases, in ns since 1970; 0 for never.
	Expiry int64
	// Box is where the record lies, if HasBox.
	Box format.Box
	// Distance is how far from the point of the query the box lies, in metres; only Radius and Nearest set it.
	Distance float64
	// ShardKey tells a name that the server gave. HasBox tells whether there is a Box. Found is false for a key that MultiGet
	// did not find; then all other fields are zero.
	ShardKey, HasBox, Found bool
}

// record is the head of a mapped record.
type record struct{ p unsafe.Pointer }

func (r record) word() uint64 { return *(*uint64)(r.p) }

// version is relative to the generation's base. Recovery overwrites it in records of commits that were not finished.
func (r record) version() uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Add(r.p, format.RecordVersion)))
}

func (r record) prev() uint32  { return *(*uint32)(unsafe.Add(r.p, format.RecordPrev)) }
func (r record) flags() uint16 { return *(*uint16)(unsafe.Add(r.p, format.RecordFlags)) }

// lengthAndFlags gives the length of the value, LongValue for a long one, and in the upper half the flags.
func (r record) lengthAndFlags() uint32 { return *(*uint32)(unsafe.Add(r.p, format.RecordLen)) }

func (r record) sum() uint32 { return *(*uint32)(unsafe.Add(r.p, format.RecordSum)) }

// The fixed parts of the payload all lie within the first unit, so that they can be read wherever a record begins.
const _ = uint(format.RecordAlign - format.RecordHeadSize - 8 - 8 - 16)

// hlc gives the timestamp of the write, or 0.
func (r record) hlc() rhumb.Timestamp {
	if r.flags()&format.FlagHLC == 0 {
		return 0
	}
	return rhumb.Timestamp(*(*uint64)(unsafe.Add(r.p, format.RecordHeadSize)))
}

// expiry gives the offset and the value of the expiry, or ok false.
func (r record) expiry() (ns int64, ok bool) {
	f := r.flags()
	if f&format.FlagExpiry == 0 {
		return 0, false
	}
	return *(*int64)(unsafe.Add(r.p, format.RecordHeadSize+uintptr(f&format.FlagHLC)/2)), true
}

// boxAt gives the offset of the box, which is where the payload's variable part begins when there is no box.
func boxAt(f uint16) uintptr {
	return format.RecordHeadSize + uintptr(f&format.FlagHLC)/2 + uintptr(f&format.FlagExpiry)*2
}

// nameAt gives the offset of the key's length in a KeyName table, and of the value in another.
func nameAt(f uint16) uintptr { return boxAt(f) + uintptr(f&format.FlagBox)*8 }

// box gives the box, or ok false.
func (r record) box() (b format.Box, ok bool) {
	f := r.flags()
	if f&format.FlagBox == 0 {
		return b, false
	}
	return *(*format.Box)(unsafe.Add(r.p, boxAt(f))), true
}

// room gives how many bytes of the heap there are from a record on.
func (g *segment) room(ref uint32) uintptr { return uintptr(g.units-ref) * format.RecordAlign }

// value gives where the value of a record begins whose key ends at an offset, and how long it is; ok is false when it does not fit
// the heap.
func (g *segment) value(r record, ref uint32, at uintptr) (begin, n uintptr, ok bool) {
	room := g.room(ref)
	n = uintptr(*(*uint16)(unsafe.Add(r.p, format.RecordLen)))
	if n == uintptr(format.LongValue) {
		if at+format.LongLenSize > room {
			return 0, 0, false
		}
		n = uintptr(binary.LittleEndian.Uint32((*[format.LongLenSize]byte)(unsafe.Add(r.p, at))[:]))
		at += format.LongLenSize
	}
	return at, n, at <= room && n <= room-at && n <= format.ValueSizeMax
}

// name gives the key of a record of a KeyName table, or ok false when it does not fit the heap.
func (g *segment) name(r record, ref uint32) (name []byte, shardKey, ok bool) {
	at := nameAt(r.flags())
	if at >= g.room(ref) {
		return nil, false, false
	}
	n := uintptr(*(*uint8)(unsafe.Add(r.p, at)))
	if n == format.ShardKeyLen {
		n, shardKey = format.ShardKeySize, true
	}
	if n+1 > g.room(ref)-at {
		return nil, false, false
	}
	return unsafe.Slice((*byte)(unsafe.Add(r.p, at+1)), n), shardKey, true
}

// sameName reports whether a record has the name that is looked up.
func (g *segment) sameName(r record, ref uint32, key *lookupKey) bool {
	name, shardKey, ok := g.name(r, ref)
	return ok && shardKey == key.shardKey && string(name) == string(key.name)
}

// visible follows the chain of versions from a record to the one that the view shows. It gives ok false when there is none.
// Tombstones and records whose time has passed are visible here; see gone.
func (v *View) visible(g *segment, ref uint32) (r record, at uint32, ok bool, err error) {
	limit := v.limit(g)
	for {
		r, ok = g.record(ref)
		if !ok {
			return r, ref, false, g.corrupt("a reference points past the heap", g.refOffset(ref))
		}
		if v.shows(r, limit) {
			return r, ref, true, nil
		}
		prev := r.prev()
		if prev == format.NoPrev {
			return r, ref, false, nil
		}
		if prev >= ref { // earlier versions lie lower, so that every chain ends
			return r, ref, false, g.corrupt("a chain of versions leads upwards", g.refOffset(ref))
		}
		ref = prev
	}
}

// shows reports whether a record is of a version that the view knows, limit being that relative to the generation's base.
func (v *View) shows(r record, limit uint32) bool {
	return r.version() <= limit && (v.closed == 0 || r.hlc() <= v.closed)
}

// limit gives the view's version relative to a generation's base.
func (v *View) limit(g *segment) uint32 {
	return uint32(min(v.version-g.version, math.MaxUint32-1))
}

// gone reports whether a visible record says that the key has no value.
func (v *View) gone(r record) bool {
	if r.flags()&(format.FlagTombstone|format.FlagExpiry) == 0 {
		return false
	}
	ns, expires := r.expiry()
	return r.flags()&format.FlagTombstone != 0 || expires && ns <= v.wall
}

// isPlain reports whether a record is that of a number and takes no second look: it is of a version below the bound, and has
// a value that is not long and has no end. Flags that are as expected are only compared, together with the length that they
// stand beside, so that the value's address does not wait for them.
func (r record) isPlain(l *lane, number, bound uint64) bool {
	return r.word() == number && l.version+uint64(r.version()) < bound &&
		(r.lengthAndFlags()-l.flags < uint32(format.LongValue) || r.endless())
}

// endless reports whether a record has a value that is not long and has no end.
func (r record) endless() bool {
	return r.flags()&(format.FlagTombstone|format.FlagExpiry) == 0 && uint16(r.lengthAndFlags()) != format.LongValue
}

// plain makes an item, which must be zero, of a record that isPlain.
func (r record) plain(it *Item, l *lane) {
	it.Value = r.plainValue(l)
	it.Number = r.word()
	it.Version = l.version + uint64(r.version())
	it.Found = true
	it.HLC = r.hlc()
	it.Box, it.HasBox = r.box()
}

// plainValue gives the value of a record that isPlain.
func (r record) plainValue(l *lane) []byte {
	n, at := r.lengthAndFlags(), uintptr(l.at)
	if n-l.flags >= uint32(format.LongValue) {
		at = nameAt(r.flags())
	}
	n &= math.MaxUint16
	return (*[math.MaxUint16]byte)(unsafe.Add(r.p, at))[:n:n] // unsafe.Slice would check that it does not go round
}

// fill makes an item of a visible record.
func (t *Table) fill(it *Item, g *segment, r record, ref uint32) error {
	at := nameAt(r.flags())
	*it = Item{}
	if t.t.KeyKind == format.KeyUint64 {
		it.Number = r.word()
	} else {
		name, shardKey, ok := g.name(r, ref)
		if !ok {
			return g.corrupt("a key runs past the heap", g.refOffset(ref))
		}
		it.Name, it.ShardKey = name, shardKey
		at += 1 + uintptr(len(name))
	}
	at, n, ok := g.value(r, ref, at)
	if !ok {
		return g.corrupt("a value runs past the heap", g.refOffset(ref))
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
