package nodelog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/rhumbdb/rhumb"
)

// The first sector of a segment identifies it. It is written when the log is created, and never again. Integers are big endian:
//
//	offset  size
//	 0       8   magic "RHUMBLOG"
//	 8       4   format of the log
//	12       4   index of the segment
//	16       4   number of segments
//	20       8   size of each segment
//	28      16   id of the log
//	44       4   CRC-32C of all bytes before
//	48       …   zero, up to the end of the sector
const (
	segmentMagic  = "RHUMBLOG"
	segmentFormat = 1
	segmentFields = 44
)

// segmentHeader is the content of the first sector of a segment.
type segmentHeader struct {
	index, count int
	size         int64
	id           rhumb.UUID
}

// encode returns the first sector.
func (h *segmentHeader) encode() []byte {
	b := make([]byte, 0, Sector)
	b = append(b, segmentMagic...)
	b = binary.BigEndian.AppendUint32(b, segmentFormat)
	b = binary.BigEndian.AppendUint32(b, uint32(h.index))
	b = binary.BigEndian.AppendUint32(b, uint32(h.count))
	b = binary.BigEndian.AppendUint64(b, uint64(h.size))
	b = append(b, h.id[:]...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return b[:Sector]
}

// decodeSegment decodes the first sector of a file. The checksum is compared before the format, so that a wrong bit in the format is damage and
// not a newer format.
func decodeSegment(path string, b []byte) (h segmentHeader, err error) {
	const op rhumb.Op = "nodelog.Open"
	switch {
	case len(b) < Sector || string(b[:8]) != segmentMagic:
		return h, damaged(path, 0, "the file is no segment of a log")
	case crc32.Checksum(b[:segmentFields], castagnoli) != binary.BigEndian.Uint32(b[segmentFields:]):
		return h, damaged(path, segmentFields, "the checksum of the segment's header does not match")
	}
	if f := binary.BigEndian.Uint32(b[8:]); f != segmentFormat {
		return h, rhumb.Ef(op, rhumb.Incompatible, "%s: the log has format %d, and this binary reads format %d; use the binary that wrote the log, or a newer one", path, f, segmentFormat)
	}
	h.index, h.count = int(binary.BigEndian.Uint32(b[12:])), int(binary.BigEndian.Uint32(b[16:]))
	h.size = int64(binary.BigEndian.Uint64(b[20:]))
	copy(h.id[:], b[28:])
	if h.count < SegmentsLeast || h.count > SegmentsMax || h.size < SegmentBytesLeast || h.size > SegmentBytesMax || h.size%Sector != 0 {
		return h, damaged(path, 16, fmt.Sprintf("%d segments of %d bytes are not possible", h.count, h.size))
	}
	return h, nil
}

// checkPlace returns the damage of a segment that is intact, but not the one that want describes. bytes is the size of the file. If want.count
// is 0, the shape of the log is not known yet. Open and Read share the check, so that both describe damage with the same words.
func (h *segmentHeader) checkPlace(path string, want segmentHeader, bytes int64) error {
	if want.count == 0 {
		want.count, want.size = h.count, h.size
	}
	// The id comes first: a segment of another log says nothing about the shape of this one.
	switch {
	case h.id != want.id:
		return damaged(path, 28, fmt.Sprintf("the segment belongs to log %s, and not to %s: the directory was put together from different times or stores", h.id, want.id))
	case h.index != want.index || h.count != want.count || h.size != want.size:
		return damaged(path, 12, fmt.Sprintf("the file is segment %d of %d with %d bytes each, and not segment %d of %d with %d", h.index, h.count, h.size, want.index, want.count, want.size))
	case bytes != h.size:
		return damaged(path, min(bytes, h.size), fmt.Sprintf("the file has %d bytes, and not %d", bytes, h.size))
	}
	return nil
}

// missingLog returns the damage of a log whose directory is gone.
func missingLog(dir string) error { return damaged(dir, 0, "the directory of the log is missing") }

// Damage is the cause of an error about bytes of a log that were durable and are gone or wrong.
type Damage struct {
	File   string
	Offset int64
	What   string
	// Lost is set unless all records that the log is known to have had were trimmed.
	Lost bool
}

// Error returns "file:offset: what".
func (d *Damage) Error() string { return fmt.Sprintf("%s:%d: %s", d.File, d.Offset, d.What) }

// damaged returns the error of damage.
func damaged(path string, at int64, what string) error {
	return &rhumb.Error{Op: "nodelog.Open", Kind: rhumb.Corrupt, Err: &Damage{path, at, what, true}}
}
