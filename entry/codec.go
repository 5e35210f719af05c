package entry

import (
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
	"github.com/zeebo/xxh3"
)

// An entry has two encoded forms. Both begin with a codec version. Integers are unsigned varints
// unless a size is given; "bytes" is a length and that many bytes.
//
//	version(1) prev(16) hash(16) body
//	body     = epoch node seq start requests:count request*
//	request  = flags(1) [client(16) seq] hlc(8, big endian) existed:count bit* names:count bytes* writes:count write*
//	           [split] [slot*]
//	write    = table name:bytes value
//	value    = bytes                     in the wire form
//	value    = length                    in the index form: the bytes are stored under the versioned key
//	slot     = of each write; absent if all keys are in the first slot of the range
//
// The hash always covers the wire form. A store keeps the index form, because the values are already
// stored under their keys and should not be written twice. Reading an entry back inserts the values
// again and checks the hash, which therefore also detects damaged values.
const codecVersion = 1

const (
	flagID   = 1 << 0
	flagNoop = 1 << 1
	// The flags below are set only in clusters whose version has rhumb.FeatureSplit: earlier builds do not
	// decode them.
	flagSlots = 1 << 2
	flagSplit = 1 << 3
	// These two are set only in clusters whose version has rhumb.FeatureMerge.
	flagEnd  = 1 << 4
	flagTake = 1 << 5
	flagsAll = flagID | flagNoop | flagSlots | flagSplit | flagEnd | flagTake
)

// prefixSize is the number of bytes before the body.
const prefixSize = 1 + 2*len(Hash{})

// Minimum encoded sizes in bytes. A decoder allocates no more elements than the remaining bytes can
// hold, so damaged counts cannot exhaust memory.
const (
	requestSizeMin = 1 + 8 + 3
	nameSizeMin    = 1
	writeSizeMin   = 3
)

// Seal sets the entry's hash from Prev and its content, and returns dst with the wire form
// appended.
func (e *Entry) Seal(dst []byte) []byte {
	from := len(dst)
	dst = append(dst, codecVersion)
	dst = append(dst, e.Prev[:]...)
	// The hash covers the body that follows it, so its place is filled in last.
	dst = append(dst, make([]byte, len(e.Hash))...)
	dst = e.appendBody(dst, true)
	e.Hash = chainHash(e.Prev, dst[from+prefixSize:])
	copy(dst[from+1+len(e.Prev):], e.Hash[:])
	return dst
}

// AppendWire appends the wire form of a sealed entry to dst.
func (e *Entry) AppendWire(dst []byte) []byte { return e.appendForm(dst, true) }

// AppendIndex appends the index form of a sealed entry to dst: everything but the values.
func (e *Entry) AppendIndex(dst []byte) []byte { return e.appendForm(dst, false) }

// appendForm appends one of the two forms of a sealed entry to dst.
func (e *Entry) appendForm(dst []byte, values bool) []byte {
	dst = append(dst, codecVersion)
	dst = append(dst, e.Prev[:]...)
	dst = append(dst, e.Hash[:]...)
	return e.appendBody(dst, values)
}

// chainHash returns the hash of a body whose predecessor has the hash prev.
func chainHash(prev Hash, body []byte) Hash {
	var h xxh3.Hasher
	// Writes to an xxh3.Hasher never fail.
	_, _ = h.Write(prev[:])
	_, _ = h.Write(body)
	return h.Sum128().Bytes()
}

// appendBody appends the body, with or without values.
func (e *Entry) appendBody(dst []byte, values bool) []byte {
	dst = binary.AppendUvarint(dst, uint64(e.Epoch))
	dst = binary.AppendUvarint(dst, uint64(e.Node))
	dst = binary.AppendUvarint(dst, uint64(e.Seq))
	dst = binary.AppendUvarint(dst, uint64(e.Start))
	dst = binary.AppendUvarint(dst, uint64(len(e.Requests)))
	for i := range e.Requests {
		dst = e.Requests[i].appendTo(dst, values)
	}
	return dst
}

// appendTo appends the request, with or without values.
func (r *Request) appendTo(dst []byte, values bool) []byte {
	var flags byte
	// Requests without an ID are common in bulk loads and save 17 bytes or more.
	if !r.ID.IsZero() {
		flags |= flagID
	}
	if r.Noop {
		flags |= flagNoop
	}
	if r.Split != 0 {
		flags |= flagSplit
	}
	if r.End {
		flags |= flagEnd
	}
	if !r.Take.IsZero() {
		flags |= flagTake
	}
	for i := range r.Writes {
		if r.Writes[i].Slot != 0 {
			flags |= flagSlots
			break
		}
	}
	dst = append(dst, flags)
	if flags&flagID != 0 {
		dst = append(dst, r.ID.Client[:]...)
		dst = binary.AppendUvarint(dst, r.ID.Seq)
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.HLC))
	dst = binary.AppendUvarint(dst, uint64(len(r.Existed)))
	// Eight flags per byte, lowest bit first. The decoder requires the unused high bits to be zero, so
	// that each entry has exactly one encoding and one hash.
	for i := 0; i < len(r.Existed); i += 8 {
		var bits byte
		for j := i; j < min(i+8, len(r.Existed)); j++ {
			if r.Existed[j] {
				bits |= 1 << (j - i)
			}
		}
		dst = append(dst, bits)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Names)))
	for _, n := range r.Names {
		dst = appendBytes(dst, n)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Writes)))
	for i := range r.Writes {
		w := &r.Writes[i]
		dst = binary.AppendUvarint(dst, uint64(w.Table))
		dst = appendBytes(dst, w.Name)
		dst = binary.AppendUvarint(dst, uint64(len(w.Value)))
		// The length is written in both forms: the reader of an index entry needs it to fill in values.
		if values {
			dst = append(dst, w.Value...)
		}
	}
	if flags&flagSplit != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Split))
	}
	if flags&flagTake != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Take.Slot))
		dst = binary.AppendUvarint(dst, uint64(r.Take.Last))
		dst = binary.AppendUvarint(dst, uint64(r.Take.Epoch))
		dst = binary.AppendUvarint(dst, uint64(r.Take.Seq))
	}
	if flags&flagSlots != 0 {
		for i := range r.Writes {
			dst = binary.AppendUvarint(dst, uint64(r.Writes[i].Slot))
		}
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// DecodeWire decodes the wire form and checks its hash. The entry shares memory with b.
func DecodeWire(b []byte) (*Entry, error) {
	const op rhumb.Op = "entry.DecodeWire"
	e, err := decodeEntry(op, b, true)
	if err != nil {
		return nil, err
	}
	// The bytes are hashed as received. Hashing a re-encoded entry would cost a copy of every value.
	if got := chainHash(e.Prev, b[prefixSize:]); got != e.Hash {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "entry %d:%d: hash is %s, but its content has %s", e.Epoch, e.Seq, e.Hash, got)
	}
	return e, nil
}

// DecodeIndex decodes the index form. Every Write.Value has its length and zero bytes as content:
// the caller fills in the content and calls Verify. Names share memory with b. The lengths are
// bounded by rhumb.EntrySizeMax in total, so a damaged index entry cannot exhaust memory.
func DecodeIndex(b []byte) (*Entry, error) {
	return decodeEntry("entry.DecodeIndex", b, false)
}

// Verify reports whether the content of the entry matches its hash.
func (e *Entry) Verify() bool { return chainHash(e.Prev, e.appendBody(nil, true)) == e.Hash }

// decodeEntry decodes either form without checking the hash.
func decodeEntry(op rhumb.Op, b []byte, values bool) (*Entry, error) {
	if len(b) < prefixSize {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "entry has %d bytes, but an entry has at least %d", len(b), prefixSize)
	}
	if b[0] != codecVersion {
		return nil, rhumb.Ef(op, rhumb.Incompatible, "entry has codec %d, but this binary reads %d; use a newer binary", b[0], codecVersion)
	}
	d := decoder{op: op, size: len(b), rest: b[prefixSize:], values: values, room: rhumb.EntrySizeMax}
	e := &Entry{Prev: Hash(b[1:17]), Hash: Hash(b[17:33])}
	// The decoder keeps its first error and reads zeros afterwards, so errors are checked once below.
	e.Epoch = rhumb.Epoch(d.readUvarint("epoch", 1<<63))
	e.Node = rhumb.NodeID(d.readUvarint("node", 1<<32-1))
	e.Seq = rhumb.Seq(d.readUvarint("seq", 1<<63))
	e.Start = rhumb.Timestamp(d.readUvarint("start", 1<<64-1))
	n := d.readCount("requests", rhumb.EntrySizeMax, requestSizeMin)
	if n > 0 {
		e.Requests = make([]Request, n)
	}
	for i := range e.Requests {
		d.readRequest(&e.Requests[i])
	}
	if d.err == nil && len(d.rest) > 0 {
		d.setError("bytes after the last request")
	}
	if d.err != nil {
		return nil, d.err
	}
	return e, nil
}

// decoder reads a body. The first error stays in err and makes all further reads return zero
// values.
type decoder struct {
	op     rhumb.Op
	size   int
	rest   []byte
	values bool
	room   int // bytes that the remaining values may have in total
	err    error
}

// setError records an error at the current offset unless there is one already.
func (d *decoder) setError(what string) {
	if d.err == nil {
		d.err = rhumb.Ef(d.op, rhumb.Corrupt, "entry: %s at offset %d of %d", what, d.size-len(d.rest), d.size)
	}
	// Without remaining bytes every further read fails too, so that loops over counts end.
	d.rest = nil
}

// readUvarint reads an integer of at most most.
func (d *decoder) readUvarint(what string, most uint64) uint64 {
	v, n := binary.Uvarint(d.rest)
	// A varint padded with a zero byte would be a second encoding of the same entry, with another
	// hash.
	if d.err != nil || n <= 0 || v > most || n > 1 && d.rest[n-1] == 0 {
		d.setError("bad " + what)
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// readCount reads a number of elements. Each element takes at least each bytes of the remaining ones.
func (d *decoder) readCount(what string, most, each int) int {
	n := d.readUvarint(what, uint64(most))
	if n > uint64(len(d.rest)/each) {
		d.setError("bad number of " + what)
		return 0
	}
	return int(n)
}

// readN reads n bytes.
func (d *decoder) readN(what string, n int) []byte {
	if d.err != nil || n > len(d.rest) {
		d.setError(what + " is cut short")
		return nil
	}
	// The capacity is limited to n, so that an append by the caller cannot overwrite what follows.
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

// readBytes reads a length of at most most, and as many bytes.
func (d *decoder) readBytes(what string, most int) []byte {
	return d.readN(what, int(d.readUvarint("length of "+what, uint64(most))))
}

// readRequest decodes one request into r.
func (d *decoder) readRequest(r *Request) {
	flags := d.readN("flags", 1)
	// An unknown flag may change the layout, so the rest cannot be decoded.
	if d.err != nil || flags[0]&^flagsAll != 0 {
		d.setError("unknown flags")
		return
	}
	if flags[0]&flagID != 0 {
		copy(r.ID.Client[:], d.readN("client", len(r.ID.Client)))
		r.ID.Seq = d.readUvarint("client seq", 1<<64-1)
		// The encoder sets flagID only for nonzero ids; accepting zero would allow a second encoding.
		if d.err == nil && r.ID.IsZero() {
			d.setError("request id is zero")
		}
	}
	r.Noop = flags[0]&flagNoop != 0
	if b := d.readN("hlc", 8); d.err == nil {
		r.HLC = rhumb.Timestamp(binary.BigEndian.Uint64(b))
	}
	d.readExisted(r)
	if n := d.readCount("names", rhumb.BatchOpsMax, nameSizeMin); n > 0 {
		r.Names = make([][]byte, n)
		for i := range r.Names {
			r.Names[i] = d.readBytes("name", rhumb.NameSizeMax)
		}
	}
	n := d.readCount("writes", rhumb.BatchOpsMax, writeSizeMin)
	if n > 0 {
		r.Writes = make([]Write, n)
	}
	for i := range r.Writes {
		w := &r.Writes[i]
		w.Table = rhumb.TableID(d.readUvarint("table", 1<<32-1))
		w.Name = d.readBytes("name", rhumb.NameSizeMax)
		size := int(d.readUvarint("length of value", uint64(d.room)))
		// All values share one budget. Checking it per value would still allow BatchOpsMax large ones.
		d.room -= size
		switch {
		case d.values:
			w.Value = d.readN("value", size)
		case d.err == nil:
			w.Value = make([]byte, size)
		}
		// Each iteration may allocate, so the loop ends at the first error.
		if d.err != nil {
			return
		}
	}
	d.readSlots(r, flags[0])
}

// readSlots decodes Request.Split and the slots of the writes.
func (d *decoder) readSlots(r *Request, flags byte) {
	if flags&flagSplit != 0 {
		r.Split = rhumb.Slot(d.readUvarint("split", 1<<32-1))
		// Every entry has one encoding: a flag without effect would be a second one.
		if d.err == nil && (r.Split == 0 || !r.Noop || len(r.Writes) > 0) {
			d.setError("bad split")
		}
	}
	d.readMerge(r, flags)
	if flags&flagSlots == 0 {
		return
	}
	some := false
	for i := range r.Writes {
		r.Writes[i].Slot = rhumb.Slot(d.readUvarint("slot", 1<<32-1))
		some = some || r.Writes[i].Slot != 0
	}
	if d.err == nil && !some {
		d.setError("slots are all zero")
	}
}

// readMerge decodes Request.End and Request.Take.
func (d *decoder) readMerge(r *Request, flags byte) {
	if flags&(flagEnd|flagTake) == 0 {
		return
	}
	r.End = flags&flagEnd != 0
	if flags&flagTake != 0 {
		r.Take.Slot = rhumb.Slot(d.readUvarint("slot that is taken over", 1<<32-1))
		r.Take.Last = rhumb.Slot(d.readUvarint("last slot that is taken over", 1<<32-1))
		r.Take.Epoch = rhumb.Epoch(d.readUvarint("epoch of the end", 1<<64-1))
		r.Take.Seq = rhumb.Seq(d.readUvarint("position of the end", 1<<64-1))
	}
	// Such an entry does one thing. A flag without effect would be a second encoding.
	bad := !r.Noop || len(r.Writes) > 0 || r.Split != 0 || r.End == (flags&flagTake != 0)
	bad = bad || flags&flagTake != 0 && (r.Take.Slot == 0 || r.Take.Last < r.Take.Slot || r.Take.Seq == 0 || r.Take.Epoch == 0)
	if d.err == nil && bad {
		d.setError("bad end or takeover")
	}
}

// readExisted decodes the bits of Request.Existed.
func (d *decoder) readExisted(r *Request) {
	n := int(d.readUvarint("existed", rhumb.BatchOpsMax))
	bits := d.readN("existed", (n+7)/8)
	if d.err != nil || n == 0 {
		return
	}
	r.Existed = make([]bool, n)
	for i := range r.Existed {
		r.Existed[i] = bits[i/8]&(1<<(i%8)) != 0
	}
	if n%8 != 0 && bits[len(bits)-1]>>(n%8) != 0 {
		d.setError("bits after the last of existed")
	}
}
