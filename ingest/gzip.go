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

// gzipReader unpacks a gzip stream of one or more members, and knows where in the packed stream it is. The checksum of a
// member stands behind it, so that only the members before that one are known to be intact.
type gzipReader struct {
	src    *countedBytes
	z      *gzip.Reader
	n      int64 // bytes unpacked
	member int64 // where the present member begins in the packed stream
	proved int64 // bytes unpacked up to there, whose checksums held
}

// countedBytes counts the bytes that gzip takes, and keeps the last of them. It is an io.ByteReader, so that gzip takes no
// more than it needs.
type countedBytes struct {
	src  *bufio.Reader
	n    int64
	last [gzipTrailer]byte // a ring: byte i of the stream lies at i mod 8
}

// gzipTrailer is the size of the checksum and the length that end a member.
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
	for i := max(0, n-gzipTrailer); i < n; i++ {
		c.last[(c.n+int64(i))%gzipTrailer] = p[i]
	}
	c.n += int64(n)
	return n, err
}

// length gives the length that the last four bytes say if they end a member.
func (c *countedBytes) length() uint32 {
	var b [4]byte
	for i := range b {
		b[i] = c.last[(c.n+int64(i)+gzipTrailer-4)%gzipTrailer]
	}
	return binary.LittleEndian.Uint32(b[:])
}

func newGzipReader(src *bufio.Reader) (*gzipReader, error) {
	r := &gzipReader{src: &countedBytes{src: src}}
	z, err := gzip.NewReader(r.src)
	if err != nil {
		return nil, r.damage(err)
	}
	z.Multistream(false)
	r.z = z
	return r, nil
}

// Read returns what it could unpack together with the error that ends it.
func (r *gzipReader) Read(p []byte) (int, error) {
	n, err := r.z.Read(p)
	r.n += int64(n)
	if err == nil {
		return n, nil
	}
	if err != io.EOF {
		return n, r.damage(err)
	}
	r.member, r.proved = r.src.n, r.n
	if err = r.z.Reset(r.src); err == io.EOF {
		return n, io.EOF
	} else if err != nil {
		return n, r.damage(err)
	}
	r.z.Multistream(false)
	return n, nil
}

// damage says what is wrong with the packed stream, and where. An error of reading it is no damage.
func (r *gzipReader) damage(err error) error {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	switch {
	case err == io.ErrUnexpectedEOF:
		return &gzipDamage{at: r.src.n, from: r.member, cut: !r.overran(), err: err}
	case corrupt || err == gzip.ErrChecksum || err == gzip.ErrHeader:
		return &gzipDamage{at: r.src.n, from: r.member, err: err}
	}
	return err
}

// overran reports whether the stream seems to have its end, so that what looks like a lack of bytes is damage further ahead:
// the length that ends a member is about what was unpacked. Of streams that are really cut short one in fifteen at most looks
// like that; then the lines of its last member are not taken.
func (r *gzipReader) overran() bool {
	unpacked := r.n - r.proved
	most := uint32(min(4096+unpacked/8, 1<<27))
	return r.src.length()-uint32(unpacked)+most <= 2*most
}

// gzipDamage is a fault of a gzip stream.
type gzipDamage struct {
	at, from int64 // it was noticed at the first offset; the member begins at the other
	cut      bool  // the stream ends there, and all before is as it was written
	err      error
}

func (d *gzipDamage) Error() string {
	if d.cut {
		return fmt.Sprintf("the gzip stream is cut short: it ends at byte %d, within the member that begins at byte %d", d.at, d.from)
	}
	return fmt.Sprintf("the gzip stream is damaged between byte %d, where the member begins, and byte %d: %v", d.from, d.at, d.err)
}

func (d *gzipDamage) Unwrap() error { return d.err }

// checkGzip unpacks a stream to its end and gives the bytes from its beginning on that are intact, with the damage behind
// them: all members whose checksum holds, and what precedes the end of a stream that is cut short.
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
	case r == nil:
		return 0, found, nil
	case found.cut:
		return r.n, found, nil
	}
	return r.proved, found, nil
}

// intactReader gives the first bytes of a stream, and then the damage behind them.
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
