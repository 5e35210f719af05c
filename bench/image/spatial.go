package image

import (
	"slices"
	"sort"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb/bench/roads"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// forest holds one set of boxes under three indexes: the packed R-tree in columns (rtree), the same
// tree with one box after another, as in flatbush, and an array ordered by cells along the Hilbert
// curve, as S2 and H3 are used.
type forest struct {
	tree   rtree.Tree
	cursor rtree.Cursor
	hits   []uint32

	levels [][]format.Box // levels of the flat tree, leaves first
	refs   []uint32
	stack  []flatNode

	keys           []uint64 // Hilbert keys of the centres of the leaves
	halfX, halfY   int64    // half extents of the largest box, rounded up
	nodes, refSect []byte
}

// flatNode is a node of the flat tree.
type flatNode struct{ level, first int }

// buildForest recreates the boxes of the image; arg is the seed of the roads. Found is the size of
// the R-tree in bytes, and Latencies holds the processor time of its build.
func (s *server) buildForest(_ int, arg string, r *reply) error {
	seed, err := strconv.ParseUint(arg, 10, 64)
	if err != nil {
		return err
	}
	boxes := roads.New(seed).Boxes(int(s.records))
	f := &forest{refs: make([]uint32, len(boxes))}
	for i := range f.refs {
		f.refs[i] = uint32(i)
	}
	n, m := rtree.Size(len(boxes))
	f.nodes, f.refSect = make([]byte, n), make([]byte, m)
	var sorter rtree.Sorter
	// Allocation is not measured.
	sorter.Order(boxes[:1])
	var order []uint32
	// The first pass faults the pages in.
	for range 2 {
		begin := threadCPU()
		order = sorter.Order(boxes)
		sorted := threadCPU()
		rtree.Build(f.nodes, f.refSect, boxes, f.refs, order)
		r.Latencies = []int64{int64(threadCPU() - begin), int64(sorted - begin)}
	}
	r.Found = uint64(n + m)
	if f.tree, err = rtree.Open(f.nodes, f.refSect); err != nil {
		return err
	}
	f.buildRivals(boxes, order)
	f.useHugePages()
	s.forest = f
	return nil
}

// buildRivals builds the other two indexes.
func (f *forest) buildRivals(boxes []format.Box, order []uint32) {
	leaves := make([]format.Box, len(boxes))
	f.keys = make([]uint64, len(boxes))
	for i, o := range order {
		b := boxes[o]
		leaves[i], f.refs[i], f.keys[i] = b, o, rtree.HilbertKey(b)
		f.halfX = max(f.halfX, (int64(b.MaxX)-int64(b.MinX)+1)/2)
		f.halfY = max(f.halfY, (int64(b.MaxY)-int64(b.MinY)+1)/2)
	}
	// The sorter compares fewer bits than the key has. Boxes that are equal in those bits are not
	// in order yet.
	sort.Sort(&byKey{f.keys, leaves, f.refs})
	f.levels = append(f.levels, leaves)
	for below := leaves; len(below) > format.NodeLanes; below = f.levels[len(f.levels)-1] {
		var level []format.Box
		for part := range slices.Chunk(below, format.NodeLanes) {
			u := part[0]
			for _, b := range part[1:] {
				// A node is as large as its children need.
				u = format.Box{MinX: min(u.MinX, b.MinX), MinY: min(u.MinY, b.MinY), MaxX: max(u.MaxX, b.MaxX), MaxY: max(u.MaxY, b.MaxY)}
			}
			level = append(level, u)
		}
		f.levels = append(f.levels, level)
	}
}

// useHugePages moves the memory of the indexes to huge pages, as the image is on huge pages. If the
// kernel refuses, all three indexes are slower to the same degree.
func (f *forest) useHugePages() {
	collapsePages(f.nodes)
	collapsePages(f.refSect)
	for _, level := range f.levels {
		collapsePages(level)
	}
	collapsePages(f.refs)
	collapsePages(f.keys)
}

// hugePage is the size of a huge page.
const hugePage = 2 << 20

// collapsePages asks the kernel to move the whole huge pages within a slice.
func collapsePages[T any](s []T) {
	size := uintptr(len(s)) * unsafe.Sizeof(*new(T))
	p := unsafe.Pointer(unsafe.SliceData(s))
	skip := -uintptr(p) & (hugePage - 1)
	if size < skip+hugePage {
		return
	}
	// Advice; a refusal does no harm.
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(p, skip)), (size-skip)&^(hugePage-1)), unix.MADV_COLLAPSE)
}

// byKey sorts boxes and references by key.
type byKey struct {
	keys  []uint64
	boxes []format.Box
	refs  []uint32
}

func (s *byKey) Len() int           { return len(s.keys) }
func (s *byKey) Less(i, j int) bool { return s.keys[i] < s.keys[j] }
func (s *byKey) Swap(i, j int) {
	s.keys[i], s.keys[j] = s.keys[j], s.keys[i]
	s.boxes[i], s.boxes[j] = s.boxes[j], s.boxes[i]
	s.refs[i], s.refs[j] = s.refs[j], s.refs[i]
}

// searchTiles queries an index for tiles, starting at the given one, and counts the hits.
func (s *server) searchTiles(ops int, arg string, r *reply, find func(f *forest, q format.Box, dst []uint32) []uint32) error {
	from, err := strconv.Atoi(arg)
	f := s.forest
	for i := range ops {
		f.hits = find(f, s.tiles[(from+i)%len(s.tiles)], f.hits[:0])
		r.Found += uint64(len(f.hits))
	}
	return err
}

func (s *server) searchSoA(ops int, arg string, r *reply) error {
	return s.searchTiles(ops, arg, r, func(f *forest, q format.Box, dst []uint32) []uint32 { return f.tree.Search(&f.cursor, q, dst) })
}

func (s *server) searchAoS(ops int, arg string, r *reply) error {
	return s.searchTiles(ops, arg, r, (*forest).searchFlat)
}

func (s *server) searchCells(ops int, arg string, r *reply) error {
	return s.searchTiles(ops, arg, r, (*forest).searchCells)
}

// searchFlat searches the flat tree, one box after another.
func (f *forest) searchFlat(q format.Box, dst []uint32) []uint32 {
	f.stack = append(f.stack[:0], flatNode{len(f.levels) - 1, 0})
	for len(f.stack) > 0 {
		at := f.stack[len(f.stack)-1]
		f.stack = f.stack[:len(f.stack)-1]
		boxes := f.levels[at.level]
		for i, end := at.first, min(at.first+format.NodeLanes, len(boxes)); i < end; i++ {
			b := &boxes[i]
			if b.MinX > q.MaxX || b.MinY > q.MaxY || b.MaxX < q.MinX || b.MaxY < q.MinY {
				continue
			}
			if at.level == 0 {
				dst = append(dst, f.refs[i])
			} else {
				f.stack = append(f.stack, flatNode{at.level - 1, i * format.NodeLanes})
			}
		}
	}
	return dst
}

// cellsMax is the greatest number of cells per side of a covering.
const cellsMax = 4

// hilbertScale is that of rtree: steps of the curve per unit, times 2^32.
const hilbertScale = (1 << (rtree.HilbertBits + 32)) / (2*format.LonUnitsMax + 1)

// curveStep returns the step of the curve that contains a unit.
func curveStep(unit, offset int64) uint64 {
	return uint64(max(unit+offset, 0)) * hilbertScale >> 32
}

// stepUnit returns a unit within a step.
func stepUnit(step uint64, offset int64) int32 {
	return int32(int64((step<<32+hilbertScale-1)/hilbertScale) - offset)
}

// searchCells covers the query with at most 4 by 4 cells and tests the boxes in them. The query is
// grown by the largest half extent, because the array is ordered by centres.
func (f *forest) searchCells(q format.Box, dst []uint32) []uint32 {
	x0, x1 := curveStep(int64(q.MinX)-f.halfX, format.LonUnitsMax), curveStep(int64(q.MaxX)+f.halfX, format.LonUnitsMax)
	y0, y1 := curveStep(int64(q.MinY)-f.halfY, format.LatUnitsMax), curveStep(int64(q.MaxY)+f.halfY, format.LatUnitsMax)
	shift := 0
	// Find the smallest cell size at which four by four cells cover the query.
	for x1>>shift-x0>>shift >= cellsMax || y1>>shift-y0>>shift >= cellsMax {
		shift++
	}
	var buf [cellsMax * cellsMax]uint64
	ranges := buf[:0]
	for y := y0 >> shift; y <= y1>>shift; y++ {
		for x := x0 >> shift; x <= x1>>shift; x++ {
			px, py := stepUnit(x<<shift, format.LonUnitsMax), stepUnit(y<<shift, format.LatUnitsMax)
			// The key of any point of a cell, without its low bits, is the key of the cell.
			ranges = append(ranges, rtree.HilbertKey(format.Box{MinX: px, MinY: py, MaxX: px, MaxY: py})>>(2*shift))
		}
	}
	slices.Sort(ranges)
	// Consecutive cells are one range of keys, which saves searches.
	for i := 0; i < len(ranges); {
		j := i + 1
		for j < len(ranges) && ranges[j] == ranges[j-1]+1 {
			j++
		}
		dst = f.testBetween(ranges[i]<<(2*shift), (ranges[j-1]+1)<<(2*shift), q, dst)
		i = j
	}
	return dst
}

// testBetween tests the leaves with keys from (inclusive) to to (exclusive).
func (f *forest) testBetween(from, to uint64, q format.Box, dst []uint32) []uint32 {
	at, _ := slices.BinarySearch(f.keys, from)
	for ; at < len(f.keys) && f.keys[at] < to; at++ {
		b := &f.levels[0][at]
		if b.MinX <= q.MaxX && b.MinY <= q.MaxY && b.MaxX >= q.MinX && b.MaxY >= q.MinY {
			dst = append(dst, f.refs[at])
		}
	}
	return dst
}
