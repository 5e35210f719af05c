package format

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC-32C of p, as in RFC 3720, appendix B.4.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// ExtendChecksum gives the checksum of what sum was counted over, followed by p.
func ExtendChecksum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }

// RecordChecksum gives the sum of a record of a summed table, p being its bytes without the filling. It covers all of them.
// A record with a long value has none.
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
