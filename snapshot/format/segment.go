package format

import "github.com/rhumbdb/rhumb"

// The layout of a segment file, in bytes. Page 0 is written once, before the generation goes live;
// page 1 holds the words that the publisher changes.
const (
	SegmentMagic   = "RHBSEG01"
	SegmentHeader  = 8192
	SegmentSecOff  = 128 // the sections, SectionSize each
	SectionSize    = 40
	SectionsMax    = 32
	SegmentSumOff  = 4092
	SectionAlign   = 4096    // sections begin at multiples of it
	SectionHuge    = 2 << 20 // and sections of at least this size at multiples of this, for huge pages
	RecordAlign    = 64      // records begin at multiples of it; references count in it
	RecordHeadSize = 24

	// SegmentState is one of the segment states (u64). Mutable, atomic, as are all below.
	SegmentState = 4096
	// SegmentAppendHead is the end of the committed records, in units from the start of the heap;
	// SegmentAppendTail the end of the records that are complete, raised before a record is linked.
	SegmentAppendHead = 4160
	SegmentAppendTail = 4168
	// SegmentOverflow is the number of overflow buckets taken, raised before a bucket is linked;
	// SegmentLive the number of keys with a visible value, as of the last commit.
	SegmentOverflow = 4224
	SegmentLive     = 4232
	// SegmentDelta is the number of entries of the spatial delta, SegmentOrder of words of the
	// ordered delta; both raised before an entry is linked.
	SegmentDelta = 4288
	SegmentOrder = 4296
)

// States of a segment.
const (
	SegmentBuilding   uint64 = 0
	SegmentLiveState  uint64 = 1
	SegmentSuperseded uint64 = 2
	SegmentRecycled   uint64 = 3
)

// SectionType identifies the content of a section.
type SectionType uint32

// The sections of a segment. Readers skip those they do not know.
const (
	SectionIndex       SectionType = 1 // buckets: primary, then overflow
	SectionHeap        SectionType = 2 // records: base, then append area
	SectionTreeNodes   SectionType = 3 // R-tree over the base, see TreeHeader
	SectionTreeRefs    SectionType = 4 // u32 reference of each leaf lane
	SectionChanged     SectionType = 5 // one bit for each unit of the base: the base record there has a newer version
	SectionDelta       SectionType = 6 // spatial delta entries, DeltaEntrySize each
	SectionDeltaCells  SectionType = 7 // u32 heads of the delta's chains; the first is the list of large boxes
	SectionOrder       SectionType = 8 // u32 references of the base's keys in order
	SectionOrderDelta  SectionType = 9 // words of the skip list over keys that the base lacks
	sectionTypeMaximum SectionType = 9
)

// Section is a part of a segment.
type Section struct {
	Type   SectionType
	Offset uint64 // from the start of the file, in bytes
	Size   uint64 // in bytes
	Items  uint64 // how many items the base holds
	Item   uint32 // size of an item in bytes; 0 when they vary
	Sum    uint32 // CRC-32C of the base's content, of Items*Item bytes, or of the base's units for the heap; see docs
}

// Segment is the immutable header of a segment file.
type Segment struct {
	Minor      uint32
	Generation uint64
	Shard      uint32 // entry of the root's shards
	Table      rhumb.TableID
	Base       uint64 // the version that the base shows
	FileSize   uint64
	Records    uint64 // in the base
	Image      rhumb.UUID
	KeyKind    KeyKind
	// Buckets is the number of primary buckets, BucketsMax that with the room for overflow buckets.
	Buckets, BucketsMax uint32
	// BaseUnits is the length of the heap's base in units of RecordAlign.
	BaseUnits uint32
	Closed    rhumb.Timestamp
	Sections  []Section
}

// Find returns the section of a type; ok is false if the segment has none.
func (s *Segment) Find(t SectionType) (Section, bool) {
	for _, sec := range s.Sections {
		if sec.Type == t {
			return sec, true
		}
	}
	return Section{}, false
}

// CheckSum compares the checksum of a section with that of its content, which must have at least
// sec.Size bytes. It fails with kind Corrupt if they differ. Sections that change in place have no
// checksum.
func (s *Segment) CheckSum(sec Section, content []byte) error {
	const op rhumb.Op = "format.CheckSum"
	size := sec.Items * uint64(sec.Item)
	switch sec.Type {
	case SectionHeap:
		size = uint64(s.BaseUnits) * RecordAlign
	case SectionTreeNodes, SectionTreeRefs, SectionOrder:
	default:
		return nil
	}
	if size > sec.Size {
		return rhumb.Ef(op, rhumb.Corrupt, "section of type %d at offset %d: %d items of %d bytes in %d", sec.Type, sec.Offset, sec.Items, sec.Item, sec.Size)
	}
	if sum := Checksum(content[:size]); sum != sec.Sum {
		return rhumb.Ef(op, rhumb.Corrupt, "section of type %d at offset %d: checksum %#x over %d bytes, counted %#x", sec.Type, sec.Offset, sec.Sum, size, sum)
	}
	return nil
}

// EncodeSegment writes the header page of a segment, 4096 bytes, into p.
func EncodeSegment(p []byte, s Segment) {
	clear(p[:4096])
	copy(p, SegmentMagic)
	le.PutUint32(p[8:], Major)
	le.PutUint32(p[12:], s.Minor)
	le.PutUint32(p[16:], EndianTag)
	le.PutUint32(p[20:], SegmentHeader)
	le.PutUint64(p[24:], s.Generation)
	le.PutUint32(p[32:], s.Shard)
	le.PutUint32(p[36:], uint32(s.Table))
	le.PutUint64(p[40:], s.Base)
	le.PutUint64(p[48:], s.FileSize)
	le.PutUint64(p[56:], s.Records)
	copy(p[64:80], s.Image[:])
	le.PutUint32(p[80:], uint32(s.KeyKind))
	le.PutUint32(p[84:], s.Buckets)
	le.PutUint32(p[88:], uint32(len(s.Sections)))
	le.PutUint32(p[92:], s.BucketsMax)
	le.PutUint64(p[96:], uint64(s.Closed))
	le.PutUint32(p[104:], s.BaseUnits)
	for i, sec := range s.Sections {
		q := p[SegmentSecOff+i*SectionSize:]
		le.PutUint32(q, uint32(sec.Type))
		le.PutUint64(q[8:], sec.Offset)
		le.PutUint64(q[16:], sec.Size)
		le.PutUint64(q[24:], sec.Items)
		le.PutUint32(q[32:], sec.Item)
		le.PutUint32(q[36:], sec.Sum)
	}
	le.PutUint32(p[SegmentSumOff:], Checksum(p[:SegmentSumOff]))
}

// DecodeSegment decodes the header page and checks everything that a reader relies on afterwards:
// the checksum, and that every section is within the file, is aligned and is large enough for its
// declared content.
func DecodeSegment(p []byte, fileSize uint64) (Segment, error) {
	const op rhumb.Op = "format.DecodeSegment"
	if len(p) < SegmentHeader || fileSize < SegmentHeader {
		return Segment{}, rhumb.Ef(op, rhumb.Corrupt, "segment of %d bytes has no whole header of %d", fileSize, SegmentHeader)
	}
	if err := checkHead(op, p, SegmentMagic, SegmentHeader, Checksum(p[:SegmentSumOff]), le.Uint32(p[SegmentSumOff:])); err != nil {
		return Segment{}, err
	}
	s := Segment{
		Minor: le.Uint32(p[12:]), Generation: le.Uint64(p[24:]), Shard: le.Uint32(p[32:]), Table: rhumb.TableID(le.Uint32(p[36:])),
		Base: le.Uint64(p[40:]), FileSize: le.Uint64(p[48:]), Records: le.Uint64(p[56:]), Image: rhumb.UUID(p[64:80]),
		KeyKind: KeyKind(le.Uint32(p[80:])), Buckets: le.Uint32(p[84:]), BucketsMax: le.Uint32(p[92:]),
		Closed: rhumb.Timestamp(le.Uint64(p[96:])), BaseUnits: le.Uint32(p[104:]),
	}
	n := le.Uint32(p[88:])
	switch {
	case s.FileSize != fileSize:
		return Segment{}, rhumb.Ef(op, rhumb.Corrupt, "the header says %d bytes, the file has %d", s.FileSize, fileSize)
	case n > SectionsMax:
		return Segment{}, rhumb.Ef(op, rhumb.Corrupt, "%d sections, at most %d are possible", n, SectionsMax)
	case le.Uint32(p[80:]) > uint32(KeyName):
		return Segment{}, rhumb.Ef(op, rhumb.Incompatible, "keys of kind %d, which this version does not know", le.Uint32(p[80:]))
	case s.Buckets == 0 || s.BucketsMax < s.Buckets:
		return Segment{}, rhumb.Ef(op, rhumb.Corrupt, "%d primary buckets of %d", s.Buckets, s.BucketsMax)
	}
	for i := range int(n) {
		q := p[SegmentSecOff+i*SectionSize:]
		sec := Section{
			Type: SectionType(le.Uint32(q)), Offset: le.Uint64(q[8:]), Size: le.Uint64(q[16:]), Items: le.Uint64(q[24:]),
			Item: le.Uint32(q[32:]), Sum: le.Uint32(q[36:]),
		}
		// The subtraction cannot wrap, because the offset is compared with the size first.
		if sec.Offset%SectionAlign != 0 || sec.Offset < SegmentHeader || sec.Offset > fileSize || sec.Size > fileSize-sec.Offset {
			return Segment{}, rhumb.Ef(op, rhumb.Corrupt, "section %d lies at %d with %d bytes in a file of %d", i, sec.Offset, sec.Size, fileSize)
		}
		if err := checkSection(op, &s, sec); err != nil {
			return Segment{}, err
		}
		s.Sections = append(s.Sections, sec)
	}
	for _, t := range []SectionType{SectionIndex, SectionHeap} {
		if _, ok := s.Find(t); !ok {
			return Segment{}, rhumb.Ef(op, rhumb.Corrupt, "a section of type %d is missing", t)
		}
	}
	return s, nil
}

// checkSection checks that a section of a known type is large enough for all accesses that readers
// make without further checks.
func checkSection(op rhumb.Op, s *Segment, sec Section) error {
	if _, twice := s.Find(sec.Type); twice {
		return rhumb.Ef(op, rhumb.Corrupt, "two sections of type %d", sec.Type)
	}
	least := uint64(0)
	switch sec.Type {
	case SectionIndex:
		least = uint64(s.BucketsMax) * BucketSize
	case SectionHeap:
		least = uint64(s.BaseUnits) * RecordAlign
	case SectionTreeNodes:
		least = TreeHeaderSize
	case SectionTreeRefs, SectionOrder:
		least = sec.Items * 4
	case SectionChanged:
		least = (uint64(s.BaseUnits) + 63) / 64 * 8
	case SectionDeltaCells:
		least = 8
	}
	// The first comparison also rejects a number of items for which the product above wraps around.
	if sec.Items > sec.Size || sec.Size < least {
		return rhumb.Ef(op, rhumb.Corrupt, "section of type %d has %d bytes and %d items, want at least %d bytes", sec.Type, sec.Size, sec.Items, least)
	}
	return nil
}

// The R-tree: a header of TreeHeaderSize bytes, then nodes of NodeSize bytes, leaves first. The
// header holds u32 levels at 0, u32 items at 4, and from 16 on for each level u32 first node and
// u32 number of nodes.
const (
	TreeHeaderSize = 256
	TreeLevelsMax  = 12
	NodeSize       = 256
	NodeLanes      = 16
)

// The spatial delta: entries {i32 box[4], u32 ref, u32 next, u32 ver, u32 0}; next and the heads
// are the number of an entry plus one, 0 ends a chain. A box is in the chain of the cell with its
// lowest corner, or in chain 0 if it is larger than a cell.
const (
	DeltaEntrySize = 32
	DeltaCellShift = 18 // a cell is 2^18 units of 1e-7 degrees wide and high: about 2.9 km at the equator
)

// DeltaCell returns the head of the chain for the cell with its lowest corner at x, y (1e-7
// degrees). heads is the number of heads, a power of two.
func DeltaCell(x, y int32, heads uint32) uint32 {
	cx := uint32(int64(x)+LonUnitsMax) >> DeltaCellShift
	cy := uint32(int64(y)+LatUnitsMax) >> DeltaCellShift
	h := (cx*0x9E3779B1 ^ cy*0x85EBCA77) * 0xC2B2AE3D
	return 1 + uint32(uint64(h)*uint64(heads-1)>>32)
}

// DeltaHead returns the head of the chain that a plain box belongs to: the one of its cell, or 0 if
// the box is larger than a cell.
func DeltaHead(b Box, heads uint32) uint32 {
	const cell = 1 << DeltaCellShift
	if int64(b.MaxX)-int64(b.MinX) > cell || int64(b.MaxY)-int64(b.MinY) > cell {
		return 0
	}
	return DeltaCell(b.MinX, b.MinY, heads)
}

// The ordered delta is a skip list in u32 words: a node is {ref, height, next[height]}, next is the
// word of a node, 0 ends. The node at word OrderHead is the head and has no record. Word 0 is not
// used.
const (
	OrderHead      = 1
	OrderHeightMax = 12
)
