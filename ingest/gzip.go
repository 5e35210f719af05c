package ingest

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// gzipReader unpacks a gzip stream of one or more members and tracks its position in the packed
// stream. The checksum of a member follows its data, so only the members before the current one are
// known to be intact.
type gzipReader struct {
	src    *countedBytes
	z      *gzip.Reader
	n      int64 // bytes unpacked
	member int64 // offset in the packed stream at which the current member begins
	proved int64 // bytes unpacked up to there; their checksums are correct
}

// countedBytes counts the bytes that gzip reads, and keeps the last of them. It implements
// io.ByteReader, so that gzip does not read more than it needs, and the count is exact.
type countedBytes struct {
	src  *bufio.Reader
	n    int64
	last [gzipTrailer]byte // ring buffer: byte i of the stream is at i mod 8
}

// gzipTrailer is the size of the checksum and the length at the end of a member.
const gzipTrailer = 8

func (c *countedBytes) ReadByte() (byte, error) {
	b, err := c.src.ReadByte()
	if err == nil {
		c.last[c.n%gzipTrailer] = b
		c.n++
	}
	return b, err
}

func (c *countedBytes) Read(p []byte) (int, error) {
	n, err := c.src.Read(p)
	// Only the last bytes can be a trailer.
	for i := max(0, n-gzipTrailer); i < n; i++ {
		c.last[(c.n+int64(i))%gzipTrailer] = p[i]
	}
	c.n += int64(n)
	return n, err
}

// trailerLength returns the unpacked length of a member, if the stream ends with the trailer of
// one.
func (c *countedBytes) trailerLength() uint32 {
	var b [4]byte
	for i := range b {
		b[i] = c.last[(c.n+int64(i)+gzipTrailer-4)%gzipTrailer]
	}
	return binary.LittleEndian.Uint32(b[:])
}

// newGzipReader returns a reader at the beginning of the first member.
func newGzipReader(src *bufio.Reader) (*gzipReader, error) {
	r := &gzipReader{src: &countedBytes{src: src}}
	z, err := gzip.NewReader(r.src)
	if err != nil {
		return nil, r.classifyError(err)
	}
	// Members are read one by one, because only the end of a member proves its data.
	z.Multistream(false)
	r.z = z
	return r, nil
}

// Read returns the bytes that it could unpack together with the error that follows them.
func (r *gzipReader) Read(p []byte) (int, error) {
	n, err := r.z.Read(p)
	r.n += int64(n)
	if err == nil {
		return n, nil
	}
	if err != io.EOF {
		return n, r.classifyError(err)
	}
	// The end of a member: its checksum was correct.
	r.member, r.proved = r.src.n, r.n
	// Another member may follow, as after concatenating two files. Its header is read here.
	if err = r.z.Reset(r.src); err == io.EOF {
		return n, io.EOF
	} else if err != nil {
		return n, r.classifyError(err)
	}
	r.z.Multistream(false)
	return n, nil
}

// classifyError returns damage of the packed stream as a gzipDamage, with its place, and other
// errors unchanged.
func (r *gzipReader) classifyError(err error) error {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	switch {
	// Either the stream is truncated, or damage before this place made the decompressor read past
	// the trailer.
	case err == io.ErrUnexpectedEOF:
		return &gzipDamage{at: r.src.n, from: r.member, cut: !r.overran(), err: err}
	case corrupt || err == gzip.ErrChecksum || err == gzip.ErrHeader:
		return &gzipDamage{at: r.src.n, from: r.member, err: err}
	}
	return err
}

// overran reports whether the stream probably is complete, so that an unexpected end is the result
// of damage before it: the length at the end of the stream is close to the number of bytes
// unpacked. At most one in fifteen truncated streams looks like that; the lines of their last
// member are then not accepted.
func (r *gzipReader) overran() bool {
	// Damage may change the amount unpacked, so the length need not match exactly.
	unpacked := r.n - r.proved
	most := uint32(min(4096+unpacked/8, 1<<27))
	// Unsigned arithmetic: true if the difference is between -most and most, modulo 2^32 as in the
	// trailer.
	return r.src.trailerLength()-uint32(unpacked)+most <= 2*most
}

// gzipDamage is damage of a gzip stream.
type gzipDamage struct {
	at, from int64 // where it was detected, and where the member begins
	cut      bool  // the stream is truncated at this place, and everything before is correct
	err      error
}

func (d *gzipDamage) Error() string {
	if d.cut {
		return fmt.Sprintf("the gzip stream is truncated: it ends at byte %d, within the member that begins at byte %d", d.at, d.from)
	}
	return fmt.Sprintf("the gzip stream is damaged between byte %d, where the member begins, and byte %d: %v", d.from, d.at, d.err)
}

func (d *gzipDamage) Unwrap() error { return d.err }

// checkGzip unpacks a stream to its end. It returns the number of intact bytes at the beginning,
// and the damage after them. Intact are all members with a correct checksum, and everything before
// the end of a truncated stream.
func checkGzip(src io.Reader) (intact int64, damage *gzipDamage, err error) {
	r, err := newGzipReader(bufio.NewReaderSize(src, blockSize))
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	found, ok := errors.AsType[*gzipDamage](err)
	switch {
	case err == nil:
		return r.n, nil, nil
	case !ok:
		return 0, nil, err
		// Not even the first header could be read.
	case r == nil:
		return 0, found, nil
	// Everything that could be unpacked precedes the truncation.
	case found.cut:
		return r.n, found, nil
	}
	return r.proved, found, nil
}

// intactReader returns the first bytes of a stream and then the damage that follows them.
type intactReader struct {
	src    io.Reader
	left   int64
	damage error
}

func (r *intactReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, r.damage
	}
	n, err := r.src.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	return n, err
}
