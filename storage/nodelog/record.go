package nodelog

import (
	"encoding/binary"
	"hash/crc32"
)

// A record begins at a multiple of Sector and ends with zeros up to the next one. Integers are big endian:
//
//	offset  size
//	 0       4   CRC-32C of the id of the log and of all bytes from offset 4 to the end of the payload
//	 4       4   size of the payload
//	 8       1   version = 1
//	 9       1   kind: 1 = data, 2 = mark
//	10       6   zero
//	16       8   lap
//	24       8   boot
//	32       8   number
//	40       8   synced: the greatest number that was durable before the record was written
//	48       8   trimmed: the greatest number that was no longer needed then
//	56       …   payload
//
// CRC-32C and not xxh3, with which this repository checks other files: a CRC is linear, so recovery can compute which single bit explains a
// wrong checksum without trying each.
const (
	// Sector is the unit of the log. Disks write it as a whole.
	Sector = 512

	headerSize    = 56
	recordVersion = 1
	// versionsAhead bounds the versions of later builds that are told apart from bytes that are no record.
	versionsAhead = 8
	kindData      = 1
	kindMark      = 2
)

// Number identifies a record. Numbers of a log begin at 1 and are consecutive; those of marks are never replayed.
type Number uint64

// head is the header of a record without its checksum and the size of its payload.
type head struct {
	kind            byte
	lap, boot       uint64
	number          Number
	synced, trimmed Number
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumSeed returns the state of the checksum after the id of the log, so that a record of another log is never valid.
func sumSeed(id []byte) uint32 { return crc32.Checksum(id, castagnoli) }

// paddedSize returns the bytes that a record with a payload takes.
func paddedSize(payload int) int64 {
	return (int64(headerSize+payload) + Sector - 1) / Sector * Sector
}

// appendRecord appends a record whose payload is the concatenation of parts.
func appendRecord(dst []byte, seed uint32, h head, parts ...[]byte) []byte {
	from, size := len(dst), 0
	for _, p := range parts {
		size += len(p)
	}
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	dst = append(dst, recordVersion, h.kind, 0, 0, 0, 0, 0, 0)
	for _, word := range []uint64{h.lap, h.boot, uint64(h.number), uint64(h.synced), uint64(h.trimmed)} {
		dst = binary.BigEndian.AppendUint64(dst, word)
	}
	for _, p := range parts {
		dst = append(dst, p...)
	}
	binary.BigEndian.PutUint32(dst[from:], crc32.Update(seed, castagnoli, dst[from+4:]))
	// Zeros, and not the earlier content of the buffer: the bytes of a log depend on its records alone.
	end := from + int(paddedSize(size))
	for len(dst) < end {
		dst = append(dst, 0)
	}
	return dst
}

// payloadSize returns the size of the payload of the record at the start of b. ok is false if b is too short for it.
func payloadSize(b []byte) (n int, ok bool) {
	if len(b) < headerSize {
		return 0, false
	}
	size := binary.BigEndian.Uint32(b[4:])
	return int(size), uint64(size) <= uint64(len(b)-headerSize)
}

// sumMatches reports whether the checksum of the record at the start of b matches.
func sumMatches(b []byte, seed uint32) bool {
	n, ok := payloadSize(b)
	return ok && crc32.Update(seed, castagnoli, b[4:headerSize+n]) == binary.BigEndian.Uint32(b)
}

// decodeRecord decodes the record at the start of b. The payload shares memory with b. ok is false unless the whole record is valid.
// newer is the version of a record with a matching checksum that this build cannot read, and otherwise 0.
func decodeRecord(b []byte, seed uint32) (h head, payload []byte, newer byte, ok bool) {
	n, ok := payloadSize(b)
	// The checksum comes last: after the end of a log every sector is tried, most of them in the
	// middle of an old record, whose bytes may claim any size.
	if !ok || b[8] == 0 || b[8] > recordVersion+versionsAhead {
		return h, nil, 0, false
	}
	word := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	if b[8] == recordVersion {
		h = head{kind: b[9], lap: word(16), boot: word(24), number: Number(word(32)), synced: Number(word(40)), trimmed: Number(word(48))}
		// No build writes such a record. Lap 0 means that there is none, and a record cannot be
		// durable before it is written.
		bad := h.kind != kindData && h.kind != kindMark || word(8)<<16 != 0 || h.lap == 0 || h.number == 0 || h.synced >= h.number || h.trimmed > h.synced
		if bad {
			return head{}, nil, 0, false
		}
	}
	switch {
	case !sumMatches(b, seed):
		return head{}, nil, 0, false
	case b[8] != recordVersion:
		return head{}, nil, b[8], false
	}
	return h, b[headerSize : headerSize+n : headerSize+n], 0, true
}
