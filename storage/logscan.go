package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"

	"github.com/rhumbdb/rhumb/storage/nodelog"
)

// A log file is a sequence of blocks, and a block is a sequence of chunks that never cross its end.
// A record is one full chunk, or a first, any number of middle and a last chunk. Integers are
// little endian:
//
//	checksum(4) size(2) kind(1) log number(4) [synced length(8)] payload
//
// The checksum is a masked CRC-32C of everything after the size. Kinds 5 to 8 (full, first, middle,
// last) have no synced length. Kinds 9 to 12 have one: a promise that the file was synced up to
// there before the chunk was written. A block whose end has no room for another chunk is filled
// with zeros. A log that was closed ends in a trailer: kind 5, no payload, the next log number, no
// checksum.
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

// chunkSum returns the masked checksum of the bytes after the size of a chunk.
func chunkSum(b []byte) uint32 { return maskSum(crc32.Checksum(b, castagnoli)) }

// maskSum masks a checksum as Pebble does, and unmaskSum reverts that. A masked checksum keeps data
// that contains checksums from having a weak checksum itself.
func maskSum(c uint32) uint32   { return bits.RotateLeft32(c, 17) + 0xa282ead8 }
func unmaskSum(m uint32) uint32 { return bits.RotateLeft32(m-0xa282ead8, 15) }

// chunk is a valid chunk.
type chunk struct {
	size        int   // header and payload
	promised    int64 // synced length; 0 if the chunk has none
	first, last bool  // whether it is the first or last chunk of its record
}

// chunkHeaderSize returns the size of the header of a kind of chunk, or 0 for an unknown kind.
func chunkHeaderSize(kind byte) int {
	switch {
	case kind >= kindFull && kind <= kindLast:
		return chunkHeader
	case kind >= kindPlainFull && kind <= kindPlainLast:
		return plainHeader
	}
	return 0
}

// parseChunk decodes the chunk at the start of b, which ends with its block. ok is false unless the
// whole chunk is valid.
func parseChunk(b []byte, number uint32) (c chunk, ok bool) {
	if len(b) < plainHeader {
		return c, false
	}
	kind := b[6]
	header := chunkHeaderSize(kind)
	c.size = header + int(binary.LittleEndian.Uint16(b[4:]))
	// A file that is reused still holds chunks of its previous log. They are valid but for their
	// number.
	if header == 0 || c.size > len(b) || binary.LittleEndian.Uint32(b[7:]) != number {
		return c, false
	}
	if chunkSum(b[6:c.size]) != binary.LittleEndian.Uint32(b) {
		return c, false
	}
	place := kind - kindPlainFull
	if header == chunkHeader {
		place = kind - kindFull
		// The bound keeps the sum of lengths from overflowing, whatever a chunk says.
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

// logScan is the result of reading a whole log file. The zero value is that of an empty file.
//
// Invariant: end <= at <= size of the file.
type logScan struct {
	// end is the offset after the last record before the first break: what remains if the log is
	// cut.
	end int64
	// at is the offset of the first byte that is not part of a valid chunk, or the end of the file.
	at int64
	// closed is set if a trailer follows the last record.
	closed bool
	// promised is the greatest synced length that a valid chunk anywhere in the file promises.
	promised int64
	// resumes is set if a valid chunk of the log follows the break.
	resumes bool
	// flipped is set if one changed bit would make the chunk, or trailer, at the break valid. No
	// interrupted write leaves that.
	flipped bool
}

// How a start treats a log.
const (
	logIntact  = iota
	logTorn    // cut off an interrupted write, which was never reported as synced
	logDamaged // cut the log at the damage
)

// logVerdict says whether a log is damaged and where.
type logVerdict struct {
	what    int
	at, end int64 // see logScan
	why     string
	lost    bool // whether a record that was synced may be lost
}

// judge distinguishes damage from an interrupted write. synced is a lower bound of the bytes that
// were synced; strict is set for a log that was closed.
//
// Only a promise proves damage, not a valid chunk after the break: a disk writes the pages of one
// sync in any order, so a power loss leaves valid chunks after a hole that was never acknowledged.
// Counting those as damage would make all nodes that lose power together short together.
func (scan *logScan) judge(synced int64, strict bool) logVerdict {
	v := logVerdict{at: scan.at, end: scan.end}
	// Both are lower bounds of the synced part: one from the log itself, which a power loss does
	// not set back, and one from SYNCED, which covers the last sync if the process was killed.
	promised := max(scan.promised, synced)
	switch {
	case promised > scan.at:
		// Bytes up to promised were durable once, and the log breaks off before that.
		v.what, v.why = logDamaged, fmt.Sprintf("the log breaks off here, although %d bytes of it were synced", promised)
	case scan.closed:
		return v
	case scan.flipped:
		// This covers the last sync before a power loss, which no promise covers.
		v.what, v.why = logDamaged, "one bit is wrong"
	case strict:
		// A closed log was synced whole, with its trailer.
		v.what, v.why = logDamaged, "the log breaks off here, although it was closed"
	case scan.resumes:
		// The disk wrote the end of the last, interrupted sync before its beginning. Pebble would
		// report that as damage, so the torn part is cut off before it sees the log.
		v.what = logTorn
	}
	// If the space between the last record and the synced length is too small for a record, only
	// the trailer is lost. An unknown length (0) counts as a loss.
	v.lost = v.what == logDamaged && (synced == 0 || promised-scan.end >= chunkHeader)
	return v
}

// scanLog reads a log file of a size from its start. It also reads what follows a break, for the
// promises of later chunks.
func scanLog(r io.ReaderAt, size int64, number uint32) (scan logScan, err error) {
	sc := logScanner{number: number}
	buf := make([]byte, logBlock)
	for base := int64(0); base < size; base += logBlock {
		b := buf[:min(logBlock, size-base)]
		// A short read is an error of the disk and not the end of the log, because size is known.
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

// logScanner is the state of scanLog between blocks.
type logScanner struct {
	number uint32
	scan   logScan
	inside bool // the record of the last chunk is not complete
	broken bool // the first break was found
}

// scanBlock reads the next block of the file.
func (sc *logScanner) scanBlock(b []byte, base int64) {
	at := 0
	for at < len(b) && !sc.broken && !sc.scan.closed {
		n, ok := sc.scanChunk(b[at:], base+int64(at), len(b) == logBlock)
		if !ok {
			// The search starts one byte later: the chunk at this offset is known to be invalid.
			sc.noteBreak(b[at:], base+int64(at))
			at++
			break
		}
		at += n
	}
	// After a trailer the search continues too: what follows it is normally of an older log, but a
	// flipped bit may have made the trailer.
	if sc.broken || sc.scan.closed {
		sc.searchChunks(b[min(at, len(b)):])
	}
}

// scanChunk decodes the chunk at the start of b and returns its size. full is set unless the block
// is the file's last and shorter than a block.
func (sc *logScanner) scanChunk(b []byte, at int64, full bool) (n int, ok bool) {
	// The end of a block that is too small for another chunk.
	if full && len(b) < chunkHeader && allZero(b) {
		return len(b), true
	}
	// The trailer has no checksum, so it is compared byte by byte. Inside a record there can be
	// none.
	if !sc.inside && len(b) >= trailerSize && string(b[:trailerSize]) == string(logTrailer(sc.number)) {
		sc.scan.closed, sc.scan.at = true, at+trailerSize
		return trailerSize, true
	}
	c, ok := parseChunk(b, sc.number)
	// A first chunk inside a record, or another chunk outside of one, means that chunks are
	// missing.
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

// noteBreak records the first break.
func (sc *logScanner) noteBreak(b []byte, at int64) {
	sc.broken = true
	sc.scan.at = at
	sc.scan.flipped = oneBitOff(b, sc.number)
}

// searchChunks looks for valid chunks at every offset of b, because after a break nobody knows
// where a chunk begins. Bytes that are no chunk pass only if a checksum and the log number match at
// once.
func (sc *logScanner) searchChunks(b []byte) {
	for at := 0; at+plainHeader <= len(b); at++ {
		c, ok := parseChunk(b[at:], sc.number)
		if !ok {
			continue
		}
		sc.scan.resumes = true
		sc.scan.promised = max(sc.scan.promised, c.promised)
		// The payload of a valid chunk may itself contain bytes of a log, so it is skipped.
		at += c.size - 1
	}
}

// allZero reports whether all bytes are zero.
func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// oneBitOff reports whether b begins with a chunk or trailer that is valid but for exactly one bit.
//
// Steps: compare with the trailer; try each bit of the size, which determines the bytes that the
// checksum covers; compute from the checksum which other single bit would explain the difference.
// Trying every bit instead would take a checksum of up to 32 KiB for each of 262,144 bits.
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
	// flip reports whether b is valid with one bit changed.
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
	// The kind byte may be the damaged one, so both sizes of headers are tried.
	stored := binary.LittleEndian.Uint32(b)
	for _, header := range []int{plainHeader, chunkHeader} {
		end := header + int(binary.LittleEndian.Uint16(b[4:]))
		if end > len(b) {
			continue
		}
		// The damaged bit is in the checksum itself.
		if bits.OnesCount32(stored^chunkSum(b[6:end])) == 1 && flip(bits.TrailingZeros32(stored^chunkSum(b[6:end]))) {
			return true
		}
		// The damaged bit is among the covered bytes. CRC is linear: the difference of the
		// checksums depends only on which bits differ.
		if bit, ok := nodelog.FlippedBit(end-6, unmaskSum(stored)^crc32.Checksum(b[6:end], castagnoli)); ok && flip(6*8+bit) {
			return true
		}
	}
	return false
}

// promiseSynced writes a synced length into the chunks of one write to a log, in place. Pebble's
// own length counts only the bytes of its last, partly filled block, so it lacks every full block
// (decision 16). b must begin at a chunk, or in the zeros at the end of a block.
func promiseSynced(b []byte, at, synced int64) {
	for len(b) >= plainHeader {
		room := int(logBlock - at%logBlock)
		// Pebble fills the end of a block with zeros if a chunk header does not fit.
		if room < chunkHeader {
			n := min(room, len(b))
			b, at = b[n:], at+int64(n)
			continue
		}
		header := chunkHeaderSize(b[6])
		size := header + int(binary.LittleEndian.Uint16(b[4:]))
		// Anything else is not a chunk: the trailer, or a format that this build does not know. The
		// bytes stay as Pebble wrote them.
		if header == 0 || size > len(b) || size > room {
			return
		}
		// A length that is greater already was written by Pebble and is true. The checksum covers
		// the length, so it is computed again.
		if header == chunkHeader && int64(binary.LittleEndian.Uint64(b[11:])) < synced {
			binary.LittleEndian.PutUint64(b[11:], uint64(synced))
			binary.LittleEndian.PutUint32(b, chunkSum(b[6:size]))
		}
		b, at = b[size:], at+int64(size)
	}
}
