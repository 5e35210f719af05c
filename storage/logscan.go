package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
)

// A log file is a row of blocks, and a block a row of chunks; a chunk never crosses a block. A record is one chunk, or a
// first, some middle and a last one. Integers are little endian:
//
//	checksum(4) size(2) kind(1) log number(4) [synced length(8)] payload
//
// The checksum is a masked CRC-32C of all that follows the size. Kinds 5 to 8 (full, first, middle, last) have no synced
// length, kinds 9 to 12 have one: a promise that the file was synced up to there before the chunk was written. What is
// left of a block that has no room for another chunk is zero. A log that was closed ends in a trailer: kind 5, no
// payload, the next log number, no checksum.
const (
	logBlock    = 32 << 10
	trailerSize = 11
	plainHeader = 11
	chunkHeader = 19

	kindPlainFull = 5
	kindPlainLast = 8
	kindFull      = 9
	kindLast      = 12
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkSum returns the masked checksum of the bytes behind a chunk's size.
func chunkSum(b []byte) uint32 { return maskSum(crc32.Checksum(b, castagnoli)) }

func maskSum(c uint32) uint32   { return bits.RotateLeft32(c, 17) + 0xa282ead8 }
func unmaskSum(m uint32) uint32 { return bits.RotateLeft32(m-0xa282ead8, 15) }

// scanChunk is a valid chunk.
type chunk struct {
	size        int   // header and payload
	promised    int64 // synced length; 0 when the chunk has none
	first, last bool  // of its record
}

// chunkHeaderSize returns the size of the header of a kind of chunk, 0 for a kind that is not known.
func chunkHeaderSize(kind byte) int {
	switch {
	case kind >= kindFull && kind <= kindLast:
		return chunkHeader
	case kind >= kindPlainFull && kind <= kindPlainLast:
		return plainHeader
	}
	return 0
}

// parseChunk reads the chunk at the start of b, which ends with its block. It reports false unless all of it is valid.
func parseChunk(b []byte, number uint32) (c chunk, ok bool) {
	if len(b) < plainHeader {
		return c, false
	}
	kind := b[6]
	header := chunkHeaderSize(kind)
	c.size = header + int(binary.LittleEndian.Uint16(b[4:]))
	if header == 0 || c.size > len(b) || binary.LittleEndian.Uint32(b[7:]) != number {
		return c, false
	}
	if chunkSum(b[6:c.size]) != binary.LittleEndian.Uint32(b) {
		return c, false
	}
	place := kind - kindPlainFull
	if header == chunkHeader {
		place = kind - kindFull
		c.promised = int64(min(binary.LittleEndian.Uint64(b[11:]), 1<<62))
	}
	c.first, c.last = place <= 1, place == 0 || place == 3
	return c, true
}

// logTrailer returns the trailer of the log with a number.
func logTrailer(number uint32) []byte {
	b := make([]byte, trailerSize)
	b[6] = kindPlainFull
	binary.LittleEndian.PutUint32(b[7:], number+1)
	return b
}

// logScan is what reading a whole log file found. The zero value is that of an empty file.
type logScan struct {
	// end is the offset behind the last record before the first break: what stays when the log is cut.
	end int64
	// at is the offset of the first byte that is not part of a valid chunk, or the end of the file.
	at int64
	// closed reports that a trailer follows the last record.
	closed bool
	// promised is the greatest synced length that a valid chunk anywhere in the file promises.
	promised int64
	// resumes reports that a valid chunk of the log follows the break.
	resumes bool
	// flipped reports that the chunk, or trailer, at the break is valid but for one bit: no write that was interrupted
	// leaves that.
	flipped bool
}

// What to do about a log.
const (
	logIntact  = iota
	logTorn    // cut off what an interrupted write left, which nobody was told of
	logDamaged // cut the log at the damage
)

// logVerdict says what is the matter with a log.
type logVerdict struct {
	what    int
	at, end int64 // of the scan
	why     string
	lost    bool // a record that was synced may be gone
}

// judge tells damage from a write that was interrupted. synced is a lower bound of the bytes that were synced; strict is
// setField for a log that was closed.
func (scan *logScan) judge(synced int64, strict bool) logVerdict {
	v := logVerdict{at: scan.at, end: scan.end}
	promised := max(scan.promised, synced)
	switch {
	case promised > scan.at:
		v.what, v.why = logDamaged, fmt.Sprintf("the log breaks off here, and %d bytes of it were synced", promised)
	case scan.closed:
		return v
	case scan.flipped:
		v.what, v.why = logDamaged, "one bit is wrong"
	case strict:
		v.what, v.why = logDamaged, "the log was closed, and breaks off here"
	case scan.resumes:
		// The disk wrote the end of the last, interrupted sync before its beginning. Pebble would take that for damage.
		v.what = logTorn
	}
	// What lies between the last record and the synced length may be too small for another: it was the trailer.
	v.lost = v.what == logDamaged && (synced == 0 || promised-scan.end >= chunkHeader)
	return v
}

// scanLog reads a log file of a size from its start. It reads on behind a break, for what later chunks promise.
func scanLog(r io.ReaderAt, size int64, number uint32) (scan logScan, err error) {
	sc := logScanner{number: number}
	buf := make([]byte, logBlock)
	for base := int64(0); base < size; base += logBlock {
		b := buf[:min(logBlock, size-base)]
		if n, err := r.ReadAt(b, base); n < len(b) {
			return scan, errors.Join(err, io.ErrUnexpectedEOF)
		}
		sc.scanBlock(b, base)
	}
	if !sc.broken && !sc.scan.closed {
		sc.scan.at = size
	}
	return sc.scan, nil
}

type logScanner struct {
	number uint32
	scan   logScan
	inside bool // the last chunk was not the last of its record
	broken bool
}

// scanBlock reads the next block of the file.
func (sc *logScanner) scanBlock(b []byte, base int64) {
	at := 0
	for at < len(b) && !sc.broken && !sc.scan.closed {
		n, ok := sc.scanChunk(b[at:], base+int64(at), len(b) == logBlock)
		if !ok {
			sc.noteBreak(b[at:], base+int64(at))
			at++
			break
		}
		at += n
	}
	if sc.broken || sc.scan.closed {
		sc.searchChunks(b[min(at, len(b)):])
	}
}

// scanChunk takes in the chunk at the start of b and returns its size.
func (sc *logScanner) scanChunk(b []byte, at int64, full bool) (n int, ok bool) {
	if full && len(b) < chunkHeader && allZero(b) {
		return len(b), true
	}
	if !sc.inside && len(b) >= trailerSize && string(b[:trailerSize]) == string(logTrailer(sc.number)) {
		sc.scan.closed, sc.scan.at = true, at+trailerSize
		return trailerSize, true
	}
	c, ok := parseChunk(b, sc.number)
	if !ok || c.first == sc.inside {
		return 0, false
	}
	sc.scan.promised = max(sc.scan.promised, c.promised)
	sc.inside = !c.last
	if c.last {
		sc.scan.end = at + int64(c.size)
	}
	return c.size, true
}

// noteBreak notes the first break.
func (sc *logScanner) noteBreak(b []byte, at int64) {
	sc.broken = true
	sc.scan.at = at
	sc.scan.flipped = oneBitOff(b, sc.number)
}

// searchChunks looks for valid chunks at every offset of b: behind a break nobody knows where a chunk begins.
func (sc *logScanner) searchChunks(b []byte) {
	for at := 0; at+plainHeader <= len(b); at++ {
		c, ok := parseChunk(b[at:], sc.number)
		if !ok {
			continue
		}
		sc.scan.resumes = true
		sc.scan.promised = max(sc.scan.promised, c.promised)
		at += c.size - 1
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// oneBitOff reports whether b begins with a chunk or trailer of which exactly one bit is wrong.
func oneBitOff(b []byte, number uint32) bool {
	if len(b) < trailerSize {
		return false
	}
	different := 0
	for i, c := range logTrailer(number) {
		different += bits.OnesCount8(c ^ b[i])
	}
	if different == 1 {
		return true
	}
	try := append([]byte(nil), b...)
	flip := func(bit int) bool {
		try[bit/8] ^= 1 << (bit % 8)
		_, ok := parseChunk(try, number)
		try[bit/8] ^= 1 << (bit % 8)
		return ok
	}
	for bit := range 16 {
		if flip(32 + bit) { // the size
			return true
		}
	}
	stored := binary.LittleEndian.Uint32(b)
	for _, header := range []int{plainHeader, chunkHeader} {
		end := header + int(binary.LittleEndian.Uint16(b[4:]))
		if end > len(b) {
			continue
		}
		if bits.OnesCount32(stored^chunkSum(b[6:end])) == 1 && flip(bits.TrailingZeros32(stored^chunkSum(b[6:end]))) {
			return true
		}
		if bit, ok := flippedBit(end-6, unmaskSum(stored)^crc32.Checksum(b[6:end], castagnoli)); ok && flip(6*8+bit) {
			return true
		}
	}
	return false
}

// flippedBit returns the one bit of n bytes whose flip changes their CRC-32C by a difference. Bit 0 is the lowest of the
// first byte.
func flippedBit(n int, difference uint32) (bit int, ok bool) {
	var deltas [8]uint32 // of the bits of the byte at i
	for k := range deltas {
		deltas[k] = castagnoli[1<<k]
	}
	for i := n - 1; i >= 0; i-- {
		for k, d := range deltas {
			if d == difference {
				return 8*i + k, true
			}
			deltas[k] = castagnoli[byte(d)] ^ d>>8
		}
	}
	return 0, false
}

// promiseSynced writes a synced length into the chunks of one write to a log, in place. Pebble counts the bytes of its last,
// partly filled block only, so what it writes there falls short by every full block.
func promiseSynced(b []byte, at, synced int64) {
	for len(b) >= plainHeader {
		room := int(logBlock - at%logBlock)
		if room < chunkHeader {
			n := min(room, len(b))
			b, at = b[n:], at+int64(n)
			continue
		}
		header := chunkHeaderSize(b[6])
		size := header + int(binary.LittleEndian.Uint16(b[4:]))
		if header == 0 || size > len(b) || size > room {
			return
		}
		if header == chunkHeader && int64(binary.LittleEndian.Uint64(b[11:])) < synced {
			binary.LittleEndian.PutUint64(b[11:], uint64(synced))
			binary.LittleEndian.PutUint32(b, chunkSum(b[6:size]))
		}
		b, at = b[size:], at+int64(size)
	}
}
