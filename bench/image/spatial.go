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

// forest is one set of boxes under three indexes: the packed R-tree in columns (rtree), the same tree with one box after
// the other as flatbush has it, and an array in the order of cells along the Hilbert curve, as S2 and H3 are used.
type forest struct {
	tree   rtree.Tree
	cursor rtree.Cursor
	hits   []uint32

	levels [][]format.Box // of the flat tree, leaves first
	refs   []uint32
	stack  []flatNode

	keys           []uint64 // of the leaves' centres
	halfX, halfY   int64    // of the largest box, rounded up
	nodes, refSect []byte
}

type flatNode struct{ level, first int }

// buildForest makes the boxes of the image again; arg is the seed of the roads. Found is the bytes of the R-tree, and
// Latencies has the processor time of its build.
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
	sorter.Order(boxes[:1]) // what is measured is no allocation
	var order []uint32
	for range 2 { // the first faults its pages in
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
	f.flatten(boxes, order)
	f.collapse()
	s.forest = f
	return nil
}

// flatten makes the other two indexes.
func (f *forest) flatten(boxes []format.Box, order []uint32) {
	leaves := make([]format.Box, len(boxes))
	f.keys = make([]uint64, len(boxes))
	for i, o := range order {
		b := boxes[o]
		leaves[i], f.refs[i], f.keys[i] = b, o, rtree.HilbertKey(b)
		f.halfX = max(f.halfX, (int64(b.MaxX)-int64(b.MinX)+1)/2)
		f.halfY = max(f.halfY, (int64(b.MaxY)-int64(b.MinY)+1)/2)
	}
	// The sorter looks at fewer bits than the key has: within those the array is in no order yet.
	sort.Sort(&byKey{f.keys, leaves, f.refs})
	f.levels = append(f.levels, leaves)
	for below := leaves; len(below) > format.NodeLanes; below = f.levels[len(f.levels)-1] {
		var level []format.Box
		for part := range slices.Chunk(below, format.NodeLanes) {
			u := part[0]
			for _, b := range part[1:] {
				u = format.Box{MinX: min(u.MinX, b.MinX), MinY: min(u.MinY, b.MinY), MaxX: max(u.MaxX, b.MaxX), MaxY: max(u.MaxY, b.MaxY)}
			}
			level = append(level, u)
		}
		f.levels = append(f.levels, level)
	}
}

// collapse puts what the searches read on huge pages, as an image lies on them. Where the kernel does not, all three indexes
// are the slower for it.
func (f *forest) collapse() {
	collapse(f.nodes)
	collapse(f.refSect)
	for _, level := range f.levels {
		collapse(level)
	}
	collapse(f.refs)
	collapse(f.keys)
}

// hugePage is the size of a huge page.
const hugePage = 2 << 20

func collapse[T any](s []T) {
	size := uintptr(len(s)) * unsafe.Sizeof(*new(T))
	p := unsafe.Pointer(unsafe.SliceData(s))
	skip := -uintptr(p) & (hugePage - 1)
	if size < skip+hugePage {
		return
	}
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(p, skip)), (size-skip)&^(hugePage-1)), unix.MADV_COLLAPSE) // a wish
}

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

// search asks an index for tiles, from one on, and keeps nothing but the number of hits.
func (s *server) search(ops int, arg string, r *reply, find func(f *forest, q format.Box, dst []uint32) []uint32) error {
	from, err := strconv.Atoi(arg)
	f := s.forest
	for i := range ops {
		f.hits = find(f, s.tiles[(from+i)%len(s.tiles)], f.hits[:0])
		r.Found += uint64(len(f.hits))
	}
	return err
}

func (s *server) searchSoA(ops int, arg string, r *reply) error {
	return s.search(ops, arg, r, func(f *forest, q format.Box, dst []uint32) []uint32 { return f.tree.Search(&f.cursor, q, dst) })
}

func (s *server) searchAoS(ops int, arg string, r *reply) error {
	return s.search(ops, arg, r, (*forest).flat)
}

func (s *server) searchCells(ops int, arg string, r *reply) error {
	return s.search(ops, arg, r, (*forest).cells)
}

// flat searches the flat tree, one box after the other.
func (f *forest) flat(q format.Box, dst []uint32) []uint32 {
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

// cellsMax is how many cells a side of a covering has at most.
const cellsMax = 4

// hilbertScale is that of rtree: steps of the curve for a unit, times 2^32.
const hilbertScale = (1 << (rtree.HilbertBits + 32)) / (2*format.LonUnitsMax + 1)

// step gives the step of the curve that a place lies in, and place a unit that lies in a step.
func step(unit, offset int64) uint64 {
	return uint64(max(unit+offset, 0)) * hilbertScale >> 32
}

func place(step uint64, offset int64) int32 {
	return int32(int64((step<<32+hilbertScale-1)/hilbertScale) - offset)
}

// cells covers the query, grown by the largest half extent, by at most 4 by 4 cells, and tests what lies in them.
func (f *forest) cells(q format.Box, dst []uint32) []uint32 {
	x0, x1 := step(int64(q.MinX)-f.halfX, format.LonUnitsMax), step(int64(q.MaxX)+f.halfX, format.LonUnitsMax)
	y0, y1 := step(int64(q.MinY)-f.halfY, format.LatUnitsMax), step(int64(q.MaxY)+f.halfY, format.LatUnitsMax)
	shift := 0
	for x1>>shift-x0>>shift >= cellsMax || y1>>shift-y0>>shift >= cellsMax {
		shift++
	}
	var buf [cellsMax * cellsMax]uint64
	ranges := buf[:0]
	for y := y0 >> shift; y <= y1>>shift; y++ {
		for x := x0 >> shift; x <= x1>>shift; x++ {
			px, py := place(x<<shift, format.LonUnitsMax), place(y<<shift, format.LatUnitsMax)
			ranges = append(ranges, rtree.HilbertKey(format.Box{MinX: px, MinY: py, MaxX: px, MaxY: py})>>(2*shift))
		}
	}
	slices.Sort(ranges)
	for i := 0; i < len(ranges); {
		j := i + 1
		for j < len(ranges) && ranges[j] == ranges[j-1]+1 {
			j++
		}
		dst = f.between(ranges[i]<<(2*shift), (ranges[j-1]+1)<<(2*shift), q, dst)
		i = j
	}
	return dst
}

// between tests the leaves with keys from one up to another.
func (f *forest) between(from, to uint64, q format.Box, dst []uint32) []uint32 {
	at, _ := slices.BinarySearch(f.keys, from)
	for ; at < len(f.keys) && f.keys[at] < to; at++ {
		b := &f.levels[0][at]
		if b.MinX <= q.MaxX && b.MinY <= q.MaxY && b.MaxX >= q.MinX && b.MaxY >= q.MinY {
			dst = append(dst, f.refs[at])
		}
	}
	return dst
}
