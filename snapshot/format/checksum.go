package format

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC-32C of p, as in RFC 3720, appendix B.4.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }
