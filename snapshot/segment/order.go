package segment

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// An ordered table has two structures. The order holds the references of the base, sorted by key,
// and is never changed. Keys that the base lacks go into a skip list. A scan merges both.

// skipFirst is the first word that a node of the skip list may take: the head of the list stands
// before.
const skipFirst = format.OrderHead + 2 + format.OrderHeightMax

// clearSkipList makes an empty skip list.
func (s *Segment) clearSkipList() {
	clear(s.skip[:skipFirst])
	s.skip[format.OrderHead] = NoRef
	s.skip[format.OrderHead+1] = format.OrderHeightMax
	s.words = skipFirst
}

// linkOrder puts a key that the base lacks into the skip list. A key that is already in the list is
// left alone: an unfinished commit added it. It reports false if no words are left.
//
// Only the publisher writes the list; readers follow the links at any time, as in LevelDB's
// memtable. So the node is complete and counted before the first link to it, and links are set from
// the lowest level up: a reader that sees the node on a level also finds it on every level below.
func (s *Segment) linkOrder(hash uint64, ref uint32) bool {
	// before holds, for each level, the last node below the new key. The new node is linked right
	// after it.
	var before [format.OrderHeightMax]uint32
	at := uint32(format.OrderHead)
	for level := format.OrderHeightMax - 1; level >= 0; level-- {
		for {
			next := s.skip[at+2+uint32(level)]
			if next == 0 {
				break
			}
			c := s.Heap.Compare(s.skip[next], ref)
			if c == 0 {
				return true
			}
			if c > 0 {
				break
			}
			at = next
		}
		before[level] = at
	}
	// One node in four is on each next level. The hash decides instead of chance, so that equal
	// input makes equal bytes.
	height := min(1+uint32(bits.TrailingZeros64(hash|1<<62))/2, format.OrderHeightMax)
	if uint64(s.words)+2+uint64(height) > uint64(len(s.skip)) {
		return false
	}
	// Readers do not know the node yet: it may be written in any order until the first link.
	node := s.words
	s.words += 2 + height
	s.skip[node], s.skip[node+1] = ref, height
	for level := range height {
		s.skip[node+2+level] = s.skip[before[level]+2+level]
	}
	s.File.Store64(format.SegmentOrder, uint64(s.words))
	for level := range height {
		atomic.StoreUint32(&s.skip[before[level]+2+level], node)
	}
	return true
}

// sortKey is a reference with as much of its key as fits into a word, so that few comparisons have
// to read the record.
type sortKey struct {
	prefix uint64
	ref    uint32
	shard  bool // a shard key
}

// SortRefs sorts references by key.
func (b *Builder) SortRefs(heap Heap, refs []uint32) {
	// The keys are copied and sorted together with their references, in contiguous memory, because
	// reading the records in place would be random access.
	keys := b.sortKeys[:0]
	for _, ref := range refs {
		// A number is its own prefix, and then equal prefixes are equal keys.
		k := sortKey{prefix: heap.At(ref).Key, ref: ref}
		if heap.Kind == format.KeyName {
			name := heap.nameOf(ref)
			var first [8]byte
			copy(first[:], name[1:])
			// Big-endian words compare as their bytes do.
			k.prefix, k.shard = binary.BigEndian.Uint64(first[:]), name[0] == format.ShardKeyLen
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b sortKey) int {
		if a.shard == b.shard && a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		return heap.Compare(a.ref, b.ref)
	})
	for i, k := range keys {
		refs[i] = k.ref
	}
	b.sortKeys = keys
}

// MergeOrder writes the order of a base that has the keys of an older base and added ones. added
// must be sorted.
func (s *Segment) MergeOrder(old *Segment, added []uint32, moves *Moves) {
	out, rest := s.order[:0], old.order
	for _, ref := range added {
		// A record that moved has left its key in the place of before, so that old references can
		// be compared here.
		n := s.countBefore(rest, ref)
		out = append(append(out, rest[:n]...), ref)
		rest = rest[n:]
	}
	out = append(out, rest...)
	for i, ref := range out {
		if ref < old.Head.BaseUnits {
			out[i] = moves.PlaceOf(ref)
		}
	}
	s.sumOrder()
}

// countBefore returns how many of the references, which are sorted by key, lead to keys below the
// key of a record. It looks at 1, 2, 4, … of them before it halves: if many keys are added, the
// next place is near.
func (s *Segment) countBefore(refs []uint32, ref uint32) int {
	end := 1
	for end <= len(refs) && s.Heap.Compare(refs[end-1], ref) < 0 {
		end *= 2
	}
	from := end / 2
	return from + sort.Search(min(end-1, len(refs))-from, func(i int) bool {
		return s.Heap.Compare(refs[from+i], ref) >= 0
	})
}

// fillOrder writes the order of a new base.
func (b *Builder) fillOrder(seg *Segment) {
	copy(seg.order, b.refs)
	b.SortRefs(seg.Heap, seg.order)
	seg.sumOrder()
}

// sumOrder stores the checksum of the order.
func (s *Segment) sumOrder() {
	sec := s.section(format.SectionOrder)
	sec.Sum = format.Checksum(s.File.Mem[sec.Offset:][:len(s.order)*4])
}
