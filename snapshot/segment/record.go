package segment

import (
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Record is one version of a key.
type Record struct {
	Key format.Key
	// HLC is the timestamp of the write; 0 if there is none, and then every closed view shows the
	// record.
	HLC rhumb.Timestamp
	// Expiry is the time in ns since 1970 after which readers find nothing; 0 for never.
	Expiry int64
	// Box is where the record is, if HasBox.
	Box    format.Box
	HasBox bool
	// Value is the stored value. It is copied before the call returns.
	Value []byte
}

// Encoding is what must be known of a record before its bytes are written: where it goes, and how
// much room it takes.
type Encoding struct {
	// Hash is the hash of the key. It decides the shard and the bucket.
	Hash  uint64
	Flags uint16
	// Size is the size of the record in bytes.
	Size int
	// Units is Size in units of 64 bytes, rounded up.
	Units uint32
}

// EncodingOf measures a record. More flags, such as format.FlagTombstone, are added to those that
// the fields ask for.
func EncodingOf(root *format.Root, kind format.KeyKind, rec *Record, more uint16) Encoding {
	e := Encoding{Flags: flagsOf(rec) | more}
	if kind == format.KeyUint64 {
		e.Hash = root.HashNumber(rec.Key.Number)
	} else {
		e.Hash = root.HashName(rec.Key.Name, rec.Key.ShardKey)
	}
	e.Size = format.RecordSize(kind, e.Flags, len(rec.Key.Name), len(rec.Value))
	e.Units = format.Units(e.Size)
	return e
}

// flagsOf returns the flags that the fields of a record ask for.
func flagsOf(r *Record) (flags uint16) {
	if r.HLC != 0 {
		flags |= format.FlagHLC
	}
	if r.Expiry != 0 {
		flags |= format.FlagExpiry
	}
	if r.HasBox {
		flags |= format.FlagBox
	}
	return flags
}

// EncodeAt writes a record at a unit of a heap, as a version that has no predecessor yet. It clears
// the rest of the last unit: the file may be recycled, and bytes of an old record must not show up.
func (h Heap) EncodeAt(at uint32, rec *Record, e Encoding, ver uint32, summed bool) {
	dst := h.Mem[int(at)*format.RecordAlign:][:int(e.Units)*format.RecordAlign]
	// The slice expression checks the bounds of the head.
	head := (*RecordHead)(unsafe.Pointer(unsafe.SliceData(dst[:format.RecordHeadSize])))
	// All of the head is written, since the file may be recycled. NoRef until the record is linked.
	*head = RecordHead{Key: e.Hash, Ver: ver, Prev: NoRef, Size: uint16(min(len(rec.Value), int(format.LongValue))), Flags: e.Flags}
	if h.Kind == format.KeyUint64 {
		head.Key = rec.Key.Number
	}
	p := dst[format.RecordHeadSize:]
	if e.Flags&format.FlagHLC != 0 {
		littleEndian.PutUint64(p, uint64(rec.HLC))
		p = p[8:]
	}
	if e.Flags&format.FlagExpiry != 0 {
		littleEndian.PutUint64(p, uint64(rec.Expiry))
		p = p[8:]
	}
	if e.Flags&format.FlagBox != 0 {
		littleEndian.PutUint32(p, uint32(rec.Box.MinX))
		littleEndian.PutUint32(p[4:], uint32(rec.Box.MinY))
		littleEndian.PutUint32(p[8:], uint32(rec.Box.MaxX))
		littleEndian.PutUint32(p[12:], uint32(rec.Box.MaxY))
		p = p[16:]
	}
	if h.Kind == format.KeyName {
		p[0] = byte(len(rec.Key.Name))
		if rec.Key.ShardKey {
			p[0] = format.ShardKeyLen
		}
		p = p[1+copy(p[1:], rec.Key.Name):]
	}
	if head.Size == format.LongValue {
		littleEndian.PutUint32(p, uint32(len(rec.Value)))
		p = p[format.LongLenSize:]
	}
	copy(p, rec.Value)
	if e.Size < len(dst) {
		clear(dst[e.Size:])
	}
	if summed {
		// Linking adjusts the checksum for version, predecessor and flags without reading the
		// record again.
		head.Sum = format.RecordChecksum(dst[:e.Size])
	}
}

// Decode returns a record whose Key.Name and Value alias the heap.
func (h Heap) Decode(ref uint32) Record {
	head := h.At(ref)
	r := Record{HLC: h.HLC(ref), Expiry: h.Expiry(ref)}
	r.Box, r.HasBox = h.Box(ref)
	if h.Kind == format.KeyName {
		name := h.nameOf(ref)
		r.Key = format.Key{Name: name[1:len(name):len(name)], ShardKey: name[0] == format.ShardKeyLen}
	} else {
		r.Key.Number = head.Key
	}
	at, n := h.valueSpan(ref)
	r.Value = h.Mem[int(ref)*format.RecordAlign+at:][:n:n]
	return r
}

// WipeValue clears the value of a record that no view shows any more, so that deleted data does not
// stay in memory.
func (h Heap) WipeValue(ref uint32) {
	at, n := h.valueSpan(ref)
	clear(h.Mem[int(ref)*format.RecordAlign+at:][:n])
}

// checkRecordAt checks that a record ends at or before a unit, and that it refers only to what lies
// before it. heapOffset is the offset of the heap in the file, for messages.
func (h Heap) checkRecordAt(ref, end uint32, heapOffset uint64) error {
	const op rhumb.Op = "snapshot.check"
	bad := func(what string) error {
		return rhumb.Ef(op, rhumb.Corrupt, "heap, unit %d (file offset %d): %s", ref, heapOffset+uint64(ref)*format.RecordAlign, what)
	}
	room := (uint64(end) - uint64(ref)) * format.RecordAlign
	if ref >= end {
		return bad("a record begins after the last record")
	}
	head := h.At(ref)
	// The fixed parts and the length byte of a name lie within the first unit, which is there. The
	// length of a long value may lie beyond it, so it is not read before it is known to lie within
	// the records.
	need := uint64(format.RecordHeadSize + keyOffset(head.Flags))
	if h.Kind == format.KeyName {
		need += 1 + uint64(nameSize(h.payloadOf(ref)[keyOffset(head.Flags)]))
	}
	if head.Size == format.LongValue && need+format.LongLenSize > room {
		return bad("a record ends after the last record")
	}
	at, n := h.valueSpan(ref)
	switch {
	case uint64(at)+uint64(n) > room:
		return bad("a record ends after the last record")
	case n > format.ValueSizeMax || head.Size == format.LongValue && n < int(format.LongValue):
		return bad("a value is too long, or is marked as long and is not")
	case head.Prev != NoRef && head.Prev >= ref:
		return bad("a record refers to a later record")
	}
	return nil
}
