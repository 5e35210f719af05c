package snapshot

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// skipFirst is the first word that a skip list node may take.
const skipFirst = format.OrderHead + 2 + format.OrderHeightMax

// initOrder makes an empty skip list.
func (s *segment) initOrder() {
	clear(s.skip[:skipFirst])
	s.skip[format.OrderHead] = format.NoPrev
	s.skip[format.OrderHead+1] = format.OrderHeightMax
	s.words = skipFirst
}

// linkOrder puts a key that the base lacks into the skip list. A key that is there already, left by a commit that was never
// finished, stays as it is. Only the publisher writes; readers follow the links at any time, as in LevelDB's memtable.
func (s *segment) linkOrder(hash uint64, ref uint32) bool {
	var before [format.OrderHeightMax]uint32
	at := uint32(format.OrderHead)
	for level := format.OrderHeightMax - 1; level >= 0; level-- {
		for {
			next := s.skip[at+2+uint32(level)]
			if next == 0 {
				break
			}
			c := compareKeys(s.kind, s.heap, s.skip[next], ref)
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
	height := min(1+uint32(bits.TrailingZeros64(hash|1<<62))/2, format.OrderHeightMax)
	if uint64(s.words)+2+uint64(height) > uint64(len(s.skip)) {
		return false
	}
	node := s.words
	s.words += 2 + height
	s.skip[node], s.skip[node+1] = ref, height
	for level := range height {
		s.skip[node+2+level] = s.skip[before[level]+2+level]
	}
	s.file.store64(format.SegmentOrder, uint64(s.words))
	for level := range height {
		atomic.StoreUint32(&s.skip[before[level]+2+level], node)
	}
	return true
}

// compareKeys orders two records of a heap: numbers by value, names by their bytes, shard keys after all names.
func compareKeys(kind format.KeyKind, heap []byte, a, b uint32) int {
	if kind == format.KeyUint64 {
		return cmp.Compare(headAt(heap, a).key, headAt(heap, b).key)
	}
	return compareNames(nameKey(heap, a), nameKey(heap, b))
}

// compareNames compares keys with their length bytes before them.
func compareNames(a, b []byte) int {
	if aShard, bShard := a[0] == format.ShardKeyLen, b[0] == format.ShardKeyLen; aShard != bShard {
		if aShard {
			return 1
		}
		return -1
	}
	return bytes.Compare(a[1:], b[1:])
}

// sortKey is a reference with as much of its key as fits into a word, so that few comparisons look at the record.
type sortKey struct {
	prefix uint64
	ref    uint32
	shard  bool
}

// sortRefs sorts references by key.
func (p *Publisher) sortRefs(kind format.KeyKind, heap []byte, refs []uint32) {
	keys := p.sortKeys[:0]
	for _, ref := range refs {
		k := sortKey{prefix: headAt(heap, ref).key, ref: ref}
		if kind == format.KeyName {
			name := nameKey(heap, ref)
			var first [8]byte
			copy(first[:], name[1:])
			k.prefix, k.shard = binary.BigEndian.Uint64(first[:]), name[0] == format.ShardKeyLen
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b sortKey) int {
		if a.shard == b.shard && a.prefix != b.prefix {
			return cmp.Compare(a.prefix, b.prefix)
		}
		return compareKeys(kind, heap, a.ref, b.ref)
	})
	for i, k := range keys {
		refs[i] = k.ref
	}
	p.sortKeys = keys
}
