package entry

import (
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
	"github.com/zeebo/xxh3"
)

// The forms of an entry. Both begin with a codec version. Integers are unsigned varints unless a size is given; "bytes"
// is a length and that many bytes.
//
//	version(1) prev(16) hash(16) body
//	body     = epoch node seq start requests:count request*
//	request  = flags(1) [client(16) seq] hlc(8, big endian) existed:count bit* names:count bytes* writes:count write*
//	write    = table name:bytes value
//	value    = bytes                     in the wire form
//	value    = length                    in the index form: the bytes stand under the versioned key
//
// The hash always covers the wire form. The index form is what a store keeps beside the values, so that a value is
// written once; reading back an entry puts the values in again and checks the hash.
const codecVersion = 1

const (
	flagID   = 1 << 0
	flagNoop = 1 << 1
	flagsAll = flagID | flagNoop
)

// prefixSize is the size in bytes of what stands before the body.
const prefixSize = 1 + 2*len(Hash{})

// The least sizes in bytes of encoded things: a decoder allocates for no more of them than can follow.
const (
	requestSizeMin = 1 + 8 + 3
	nameSizeMin    = 1
	writeSizeMin   = 3
)

// Seal computes the entry's hash from Prev and its content, and returns the wire form appended to dst.
func (e *Entry) Seal(dst []byte) []byte {
	from := len(dst)
	dst = append(dst, codecVersion)
	dst = append(dst, e.Prev[:]...)
	dst = append(dst, make([]byte, len(e.Hash))...)
	dst = e.appendBody(dst, true)
	e.Hash = chain(e.Prev, dst[from+prefixSize:])
	copy(dst[from+1+len(e.Prev):], e.Hash[:])
	return dst
}

// AppendWire appends the wire form of a sealed entry to dst.
func (e *Entry) AppendWire(dst []byte) []byte { return e.append(dst, true) }

// AppendIndex appends the index form of a sealed entry to dst: all but the values.
func (e *Entry) AppendIndex(dst []byte) []byte { return e.append(dst, false) }

func (e *Entry) append(dst []byte, values bool) []byte {
	dst = append(dst, codecVersion)
	dst = append(dst, e.Prev[:]...)
	dst = append(dst, e.Hash[:]...)
	return e.appendBody(dst, values)
}

func chain(prev Hash, body []byte) Hash {
	var h xxh3.Hasher
	_, _ = h.Write(prev[:])
	_, _ = h.Write(body)
	return h.Sum128().Bytes()
}

func (e *Entry) appendBody(dst []byte, values bool) []byte {
	dst = binary.AppendUvarint(dst, uint64(e.Epoch))
	dst = binary.AppendUvarint(dst, uint64(e.Node))
	dst = binary.AppendUvarint(dst, uint64(e.Seq))
	dst = binary.AppendUvarint(dst, uint64(e.Start))
	dst = binary.AppendUvarint(dst, uint64(len(e.Requests)))
	for i := range e.Requests {
		dst = e.Requests[i].append(dst, values)
	}
	return dst
}

func (r *Request) append(dst []byte, values bool) []byte {
	var flags byte
	if !r.ID.IsZero() {
		flags |= flagID
	}
	if r.Noop {
		flags |= flagNoop
	}
	dst = append(dst, flags)
	if flags&flagID != 0 {
		dst = append(dst, r.ID.Client[:]...)
		dst = binary.AppendUvarint(dst, r.ID.Seq)
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.HLC))
	dst = binary.AppendUvarint(dst, uint64(len(r.Existed)))
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
		if values {
			dst = append(dst, w.Value...)
		}
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// DecodeWire reads the wire form and checks its hash. The entry shares memory with b.
func DecodeWire(b []byte) (*Entry, error) {
	const op rhumb.Op = "entry.DecodeWire"
	e, err := decode(op, b, true)
	if err != nil {
		return nil, err
	}
	if got := chain(e.Prev, b[prefixSize:]); got != e.Hash {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "entry %d:%d: hash is %s, computed %s", e.Epoch, e.Seq, e.Hash, got)
	}
	return e, nil
}

// DecodeIndex reads the index form: every Write.Value has its right length and no content. Fill them, then call Verify.
// Names share memory with b. The values together have at most rhumb.EntrySizeMax bytes, whatever b says.
func DecodeIndex(b []byte) (*Entry, error) {
	return decode("entry.DecodeIndex", b, false)
}

// Verify reports whether the entry's content has the entry's hash.
func (e *Entry) Verify() bool { return chain(e.Prev, e.appendBody(nil, true)) == e.Hash }

func decode(op rhumb.Op, b []byte, values bool) (*Entry, error) {
	if len(b) < prefixSize {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "entry has %d bytes, at least %d are needed", len(b), prefixSize)
	}
	if b[0] != codecVersion {
		return nil, rhumb.Ef(op, rhumb.Incompatible, "entry codec %d is not known, this binary reads %d", b[0], codecVersion)
	}
	d := decoder{op: op, size: len(b), rest: b[prefixSize:], values: values, room: rhumb.EntrySizeMax}
	e := &Entry{Prev: Hash(b[1:17]), Hash: Hash(b[17:33])}
	e.Epoch = rhumb.Epoch(d.uvarint("epoch", 1<<63))
	e.Node = rhumb.NodeID(d.uvarint("node", 1<<32-1))
	e.Seq = rhumb.Seq(d.uvarint("seq", 1<<63))
	e.Start = rhumb.Timestamp(d.uvarint("start", 1<<64-1))
	n := d.count("requests", rhumb.EntrySizeMax, requestSizeMin)
	if n > 0 {
		e.Requests = make([]Request, n)
	}
	for i := range e.Requests {
		d.request(&e.Requests[i])
	}
	if d.err == nil && len(d.rest) > 0 {
		d.fail("bytes after the last request")
	}
	if d.err != nil {
		return nil, d.err
	}
	return e, nil
}

// decoder reads a body; the first fault stays in err and stops all further reading.
type decoder struct {
	op     rhumb.Op
	size   int
	rest   []byte
	values bool
	room   int // bytes that values may still have together
	err    error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = rhumb.Ef(d.op, rhumb.Corrupt, "entry: %s at offset %d of %d", what, d.size-len(d.rest), d.size)
	}
	d.rest = nil
}

func (d *decoder) uvarint(what string, most uint64) uint64 {
	v, n := binary.Uvarint(d.rest)
	// A needless zero byte at the end would let two encodings hold one entry, and only one of them has its hash.
	if d.err != nil || n <= 0 || v > most || n > 1 && d.rest[n-1] == 0 {
		d.fail("bad " + what)
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count reads a number of items, each of which takes at least each bytes of what is left.
func (d *decoder) count(what string, most, each int) int {
	n := d.uvarint(what, uint64(most))
	if n > uint64(len(d.rest)/each) {
		d.fail("bad number of " + what)
		return 0
	}
	return int(n)
}

func (d *decoder) take(what string, n int) []byte {
	if d.err != nil || n > len(d.rest) {
		d.fail(what + " is cut short")
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) bytes(what string, most int) []byte {
	return d.take(what, int(d.uvarint("length of "+what, uint64(most))))
}

func (d *decoder) request(r *Request) {
	flags := d.take("flags", 1)
	if d.err != nil || flags[0]&^flagsAll != 0 {
		d.fail("unknown flags")
		return
	}
	if flags[0]&flagID != 0 {
		copy(r.ID.Client[:], d.take("client", len(r.ID.Client)))
		r.ID.Seq = d.uvarint("client seq", 1<<64-1)
		if d.err == nil && r.ID.IsZero() {
			d.fail("request id is zero")
		}
	}
	r.Noop = flags[0]&flagNoop != 0
	if b := d.take("hlc", 8); d.err == nil {
		r.HLC = rhumb.Timestamp(binary.BigEndian.Uint64(b))
	}
	d.existed(r)
	if n := d.count("names", rhumb.BatchOpsMax, nameSizeMin); n > 0 {
		r.Names = make([][]byte, n)
		for i := range r.Names {
			r.Names[i] = d.bytes("name", rhumb.NameSizeMax)
		}
	}
	n := d.count("writes", rhumb.BatchOpsMax, writeSizeMin)
	if n > 0 {
		r.Writes = make([]Write, n)
	}
	for i := range r.Writes {
		w := &r.Writes[i]
		w.Table = rhumb.TableID(d.uvarint("table", 1<<32-1))
		w.Name = d.bytes("name", rhumb.NameSizeMax)
		size := int(d.uvarint("length of value", uint64(d.room)))
		d.room -= size
		switch {
		case d.values:
			w.Value = d.take("value", size)
		case d.err == nil:
			w.Value = make([]byte, size)
		}
		if d.err != nil {
			return
		}
	}
}

func (d *decoder) existed(r *Request) {
	n := int(d.uvarint("existed", rhumb.BatchOpsMax))
	bits := d.take("existed", (n+7)/8)
	if d.err != nil || n == 0 {
		return
	}
	r.Existed = make([]bool, n)
	for i := range r.Existed {
		r.Existed[i] = bits[i/8]&(1<<(i%8)) != 0
	}
	if n%8 != 0 && bits[len(bits)-1]>>(n%8) != 0 {
		d.fail("bits after the last of existed")
	}
}
