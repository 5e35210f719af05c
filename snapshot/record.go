package snapshot

import (
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// flags gives the flags that a record's fields ask for.
func (r *Record) flags() (f uint16) {
	if r.HLC != 0 {
		f |= format.FlagHLC
	}
	if r.Expiry != 0 {
		f |= format.FlagExpiry
	}
	if r.HasBox {
		f |= format.FlagBox
	}
	return f
}

// encodeRecord writes a whole record of size bytes into dst, which is filled up with zeros. It has no predecessor yet.
func encodeRecord(dst []byte, size int, t *format.Table, hash uint64, rec *Record, flags uint16, ver uint32) {
	h := (*recordHead)(unsafe.Pointer(unsafe.SliceData(dst[:format.RecordHeadSize])))
	*h = recordHead{key: hash, ver: ver, prev: format.NoPrev, size: uint16(min(len(rec.Value), int(format.LongValue))), flags: flags}
	if t.KeyKind == format.KeyUint64 {
		h.key = rec.Key.Number
	}
	p := dst[format.RecordHeadSize:]
	if flags&format.FlagHLC != 0 {
		le.PutUint64(p, uint64(rec.HLC))
		p = p[8:]
	}
	if flags&format.FlagExpiry != 0 {
		le.PutUint64(p, uint64(rec.Expiry))
		p = p[8:]
	}
	if flags&format.FlagBox != 0 {
		le.PutUint32(p, uint32(rec.Box.MinX))
		le.PutUint32(p[4:], uint32(rec.Box.MinY))
		le.PutUint32(p[8:], uint32(rec.Box.MaxX))
		le.PutUint32(p[12:], uint32(rec.Box.MaxY))
		p = p[16:]
	}
	if t.KeyKind == format.KeyName {
		p[0] = byte(len(rec.Key.Name))
		if rec.Key.ShardKey {
			p[0] = format.ShardKeyLen
		}
		p = p[1+copy(p[1:], rec.Key.Name):]
	}
	if h.size == format.LongValue {
		le.PutUint32(p, uint32(len(rec.Value)))
		p = p[format.LongLenSize:]
	}
	copy(p, rec.Value)
	if size < len(dst) {
		clear(dst[size:])
	}
	if t.Summed() {
		h.sum = format.RecordChecksum(dst[:size])
	}
}

// decode gives a record as a Record that aliases the heap.
func (s *segment) decode(ref uint32) Record {
	h := s.record(ref)
	r := Record{HLC: hlc(s.heap, ref), Expiry: expiry(s.heap, ref)}
	r.Box, r.HasBox = box(s.heap, ref)
	p := payload(s.heap, ref)[keyOffset(h.flags):]
	if s.kind == format.KeyName {
		n := 1 + nameSize(p[0])
		r.Key = format.Key{Name: p[1:n:n], ShardKey: p[0] == format.ShardKeyLen}
	} else {
		r.Key.Number = h.key
	}
	at, n := value(s.kind, s.heap, ref)
	r.Value = s.heap[int(ref)*format.RecordAlign+at:][:n:n]
	return r
}

// checkRecordAt checks that a record lies wholly below a unit and refers only to what lies before it.
func (s *segment) checkRecordAt(ref, end uint32) error {
	const op rhumb.Op = "snapshot.check"
	bad := func(what string) error {
		return rhumb.Ef(op, rhumb.Corrupt, "heap, unit %d (file offset %d): %s", ref, s.section(format.SectionHeap).Offset+uint64(ref)*format.RecordAlign, what)
	}
	room := (uint64(end) - uint64(ref)) * format.RecordAlign
	if ref >= end {
		return bad("a record begins behind the records")
	}
	h := s.record(ref)
	// The fixed parts and the length of a name lie within one unit. That of a long value may not.
	need := uint64(format.RecordHeadSize + keyOffset(h.flags))
	if s.kind == format.KeyName {
		need += 1 + uint64(nameSize(payload(s.heap, ref)[keyOffset(h.flags)]))
	}
	if h.size == format.LongValue && need+format.LongLenSize > room {
		return bad("a record ends behind the records")
	}
	at, n := value(s.kind, s.heap, ref)
	switch {
	case uint64(at)+uint64(n) > room:
		return bad("a record ends behind the records")
	case n > format.ValueSizeMax || h.size == format.LongValue && n < int(format.LongValue):
		return bad("a record has a value that is too long, or is marked as long and is not")
	case h.prev != format.NoPrev && h.prev >= ref:
		return bad("a record refers to a later one")
	}
	return nil
}
