package format

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC-32C of p, as in RFC 3720, appendix B.4.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// ExtendChecksum gives the checksum of what sum was counted over, followed by p.
func ExtendChecksum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }

// RecordChecksum gives the sum of a record of a summed table, p being its bytes without the filling: the key word, the length
// and the flags without FlagMoved, and the payload. Version and previous reference are not summed, since they change.
// A record with a long value has none.
func RecordChecksum(p []byte) uint32 {
	var fixed [12]byte
	copy(fixed[:8], p[:8])
	le.PutUint16(fixed[8:], le.Uint16(p[RecordLen:]))
	le.PutUint16(fixed[10:], le.Uint16(p[RecordFlags:])&^FlagMoved)
	return ExtendChecksum(Checksum(fixed[:]), p[RecordHeadSize:])
}
