package format

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC-32C of p, as in RFC 3720, appendix B.4.
func Checksum(p []byte) uint32 { return ExtendChecksum(0, p) }

// checksumPiece is how much is read ahead of the sum, in bytes.
const checksumPiece = 4 << 10

// ExtendChecksum returns the checksum of what sum covers followed by p.
//
// The implementation interleaves the CRC instruction over three parts of p, and the hardware
// prefetcher, which expects sequential reads, does not keep up: a sum over uncached memory took
// nearly three times as long. So each piece is read into the cache first.
func ExtendChecksum(sum uint32, p []byte) uint32 {
	for len(p) > checksumPiece {
		ReadAhead(p[:checksumPiece])
		sum = crc32.Update(sum, castagnoli, p[:checksumPiece])
		p = p[checksumPiece:]
	}
	return crc32.Update(sum, castagnoli, p)
}

// ReadAhead loads p into the cache as fast as memory delivers it: it reads one byte of each line of
// 64, in order. It returns their exclusive or, so that the compiler keeps the reads.
//
//go:noinline
func ReadAhead(p []byte) (x byte) {
	for i := 0; i < len(p); i += 64 {
		x ^= p[i]
	}
	return x
}

// RecordChecksum returns the checksum of a record of a summed table. p is the record without the
// padding of its last unit. The sum covers all of it.
func RecordChecksum(p []byte) uint32 {
	var fixed [12]byte
	flags := le.Uint16(p[RecordFlags:])
	copy(fixed[:8], p[:8])
	le.PutUint16(fixed[8:], le.Uint16(p[RecordLen:]))
	// FlagMoved changes when the record is linked, so LinkChecksum covers it.
	le.PutUint16(fixed[10:], flags&^FlagMoved)
	sum := ExtendChecksum(Checksum(fixed[:]), p[RecordHeadSize:])
	return sum ^ LinkChecksum(le.Uint32(p[RecordVersion:]), le.Uint32(p[RecordPrev:]), flags)
}

// LinkChecksum returns the part of a record's checksum that covers its version, its predecessor and
// FlagMoved. It is separate from the CRC, so that linking or copying a record replaces this part
// without reading the payload, and damage of the payload stays detectable. The factors are odd, so
// a change of any one of the three fields always changes the checksum.
func LinkChecksum(ver, prev uint32, flags uint16) uint32 {
	return ver*0x9E3779B1 ^ prev*0x85EBCA77 ^ uint32(flags&FlagMoved)*0xC2B2AE3D
}
