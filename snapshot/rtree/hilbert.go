package rtree

import (
	"fmt"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

const (
	// HilbertBits is the number of bits an axis of a Hilbert key: 360 degrees in steps of about 19
	// m.
	HilbertBits = 21
	// ItemsMax is the greatest number of boxes that one tree holds; a crossing box counts twice.
	ItemsMax = 1 << itemBits

	itemBits = 26
	// sortBits are the bits of the key that order the boxes, so that key and position share one
	// word: steps of about 76 m.
	sortBits = 64 - itemBits
	// hilbertScale times units of longitude, divided by 2^32, is below 2^HilbertBits; that of
	// latitudes is below half of it.
	hilbertScale = 1 << (HilbertBits + 32) / (fullTurn + 1)
)

// hilbertStep follows the curve three bits per axis further. Its index is the orientation (2 bits),
// then three bits of x and three of y. Its value is the new orientation (2 bits), then six bits of
// the key. The table takes 256 bytes, which stay in the L1 cache; a table for more bits would not.
var hilbertStep = makeHilbertStep()

// makeHilbertStep runs the loop of H. S. Warren, Hacker's Delight, figure 16-5, in all four
// orientations: bit 0 means that the axes are swapped, bit 1 that both are flipped.
func makeHilbertStep() (table [256]uint8) {
	for i := range table {
		state, x, y := i>>6, i>>3&7, i&7
		key := 0
		for bit := 2; bit >= 0; bit-- {
			bx, by := x>>bit&1, y>>bit&1
			if state&2 != 0 {
				bx, by = 1-bx, 1-by
			}
			if state&1 != 0 {
				bx, by = by, bx
			}
			key = key<<2 | 3*bx ^ by
			if by == 0 {
				if bx == 1 {
					state ^= 2
				}
				state ^= 1
			}
		}
		table[i] = uint8(state<<6 | key)
	}
	return table
}

// HilbertKey returns the position of a plain box's centre on a Hilbert curve, a number of
// 2*HilbertBits bits. Boxes with similar keys are close to each other.
//
// The curve fills a square of 360 by 360 degrees, whose lower half is the world. It begins in the
// orientation that fills this half first, so that it never leaves the world and no node of the tree
// combines boxes from two distant places.
func HilbertKey(b format.Box) uint64 {
	// The sum of two longitudes does not fit into 32 bits.
	x := uint32(uint64((int64(b.MinX)+int64(b.MaxX))>>1+format.LonUnitsMax) * hilbertScale >> 32)
	y := uint32(uint64((int64(b.MinY)+int64(b.MaxY))>>1+format.LatUnitsMax) * hilbertScale >> 32)
	// State 1 is the orientation with swapped axes, in which the curve fills the lower half first.
	key, state := uint64(0), uint32(1)
	for shift := HilbertBits - 3; shift >= 0; shift -= 3 {
		step := uint32(hilbertStep[uint8(state<<6|x>>shift&7<<3|y>>shift&7)])
		key = key<<6 | uint64(step&63)
		state = step >> 6
	}
	return key
}

// Sorter sorts boxes into Hilbert order. It keeps its memory, 20 bytes per box, for the next time.
// The zero value is ready.
//
// A key and the position of its box share one word, so the sort moves half as many bytes as a sort
// of pairs.
type Sorter struct {
	keys, swap []uint64
	order      []uint32
}

// Digits of the radix sort, lowest first: sortBits in four passes.
const (
	digitBits = 10
	digits    = (sortBits + digitBits - 1) / digitBits
)

// Order returns the positions of the boxes in Hilbert order; boxes with equal keys keep their
// order. The boxes must be plain. The result belongs to the Sorter and is valid until the next
// call. Order panics on more than ItemsMax boxes.
func (s *Sorter) Order(boxes []format.Box) []uint32 {
	if len(boxes) > ItemsMax {
		panic(fmt.Sprintf("rtree: %d boxes, at most %d fit into one tree", len(boxes), ItemsMax))
	}
	s.growMemory(len(boxes))
	var counts [digits][1 << digitBits]uint32
	for i, b := range boxes {
		// All digits are counted in the same pass that computes the keys, so that each later pass
		// reads the keys only once.
		k := HilbertKey(b) >> (2*HilbertBits - sortBits) << itemBits
		s.keys[i] = k | uint64(i)
		for d := range counts {
			counts[d][digitOf(k, d)]++
		}
	}
	for d := range counts {
		if len(boxes) > 0 && counts[d][digitOf(s.keys[0], d)] != uint32(len(boxes)) {
			// A digit that is equal in all keys needs no pass. The places of a city differ in few
			// digits.
			s.sortByDigit(d, &counts[d])
		}
	}
	for i, k := range s.keys {
		s.order[i] = uint32(k) & (ItemsMax - 1)
	}
	return s.order
}

// digitOf returns a digit of a key.
func digitOf(key uint64, d int) uint64 { return key >> (itemBits + d*digitBits) & (1<<digitBits - 1) }

// sortByDigit sorts the keys by one digit. It is stable, so that the passes from the lowest digit
// up sort by all of them.
func (s *Sorter) sortByDigit(d int, counts *[1 << digitBits]uint32) {
	at := uint32(0)
	for i, n := range counts {
		// The count of each digit becomes the position of its first key.
		counts[i] = at
		at += n
	}
	for _, k := range s.keys {
		v := digitOf(k, d)
		s.swap[counts[v]] = k
		counts[v]++
	}
	s.keys, s.swap = s.swap, s.keys
}

// growMemory makes room for n boxes.
func (s *Sorter) growMemory(n int) {
	if cap(s.keys) < n || cap(s.swap) < n {
		s.keys, s.swap, s.order = make([]uint64, n), make([]uint64, n), make([]uint32, n)
	}
	s.keys, s.swap, s.order = s.keys[:n], s.swap[:n], s.order[:n]
}
