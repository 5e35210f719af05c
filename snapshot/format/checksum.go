package format

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC-32C of p, as in RFC 3720, appendix B.4.
func Checksum(p []byte) uint32 { return ExtendChecksum(0, p) }

// checksumPiece is how much is read ahead of the sum.
const checksumPiece = 4 << 10

// ExtendChecksum gives the checksum of what sum was counted over, followed by p.
//
// The processor's instruction is used on three parts of p by turns, of which memory that is read ahead in order is not aware:
// a sum of what is not in the cache took nearly three times as long. So each piece is brought into the cache before.
func ExtendChecksum(sum uint32, p []byte) uint32 {
	for len(p) > checksumPiece {
		ReadAhead(p[:checksumPiece])
		sum = crc32.Update(sum, castagnoli, p[:checksumPiece])
		p = p[checksumPiece:]
	}
	return crc32.Update(sum, castagnoli, p)
}

// ReadAhead brings p into the cache, as fast as memory gives it: it reads a byte of each line of 64, in their order.
//
//go:noinline
func ReadAhead(p []byte) (x byte) {
	for i := 0; i < len(p); i += 64 {
		x ^= p[i]
	}
	return x
}

// RecordChecksum gives the sum of a record of a summed table, p being its bytes without the filling. It covers all of them.
func RecordChecksum(p []byte) uint32 {
	var fixed [12]byte
	flags := le.Uint16(p[RecordFlags:])
	copy(fixed[:8], p[:8])
	le.PutUint16(fixed[8:], le.Uint16(p[RecordLen:]))
	le.PutUint16(fixed[10:], flags&^FlagMoved)
	sum := ExtendChecksum(Checksum(fixed[:]), p[RecordHeadSize:])
	return sum ^ LinkChecksum(le.Uint32(p[RecordVersion:]), le.Uint32(p[RecordPrev:]), flags)
}

// LinkChecksum gives the part of a record's sum that stands for its version, its predecessor and FlagMoved. It is apart from
// the CRC, so that whoever links or copies a record exchanges it without a look at the payload, whose damage stays visible.
// The factors are odd: no change of one of the three goes unseen.
func LinkChecksum(ver, prev uint32, flags uint16) uint32 {
	return ver*0x9E3779B1 ^ prev*0x85EBCA77 ^ uint32(flags&FlagMoved)*0xC2B2AE3D
}
