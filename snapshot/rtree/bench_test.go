package rtree

import (
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/bench/roads"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"golang.org/x/sys/unix"
)

var benchRoads = flag.Int("roads", 1_000_000, "road segments for benchmarks of searches")

// flatTree is what the searches are compared with: the layout of flatbush, boxes one after the other, tested one by one.
type flatTree struct {
	levels [][]format.Box
	refs   []uint32
	stack  []flatNode
}

type flatNode struct{ level, first int }

func makeFlat(boxes []format.Box, order []uint32) *flatTree {
	leaves := make([]format.Box, len(boxes))
	f := &flatTree{refs: make([]uint32, len(boxes))}
	for i, o := range order {
		leaves[i], f.refs[i] = boxes[o], refOf(o)
	}
	f.levels = append(f.levels, leaves)
	for below := leaves; len(below) > format.NodeLanes; {
		var level []format.Box
		for i := 0; i < len(below); i += format.NodeLanes {
			u := empty
			for _, b := range below[i:min(i+format.NodeLanes, len(below))] {
				u = format.Box{MinX: min(u.MinX, b.MinX), MinY: min(u.MinY, b.MinY), MaxX: max(u.MaxX, b.MaxX), MaxY: max(u.MaxY, b.MaxY)}
			}
			level = append(level, u)
		}
		f.levels = append(f.levels, level)
		below = level
	}
	return f
}

func (f *flatTree) search(q format.Box, dst []uint32) []uint32 {
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

// cpuTime returns the processor time of this thread, which is all that tells anything on a busy machine.
func cpuTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// BenchmarkSearch asks for tiles of the sizes of TrafficDB's figures, placed where there is much ("data") and evenly over
// all land ("area"). The flat tree and every kernel take turns within one run: x-flat is how many times faster than the
// flat tree a kernel is. In a turn each has other tiles, so that none finds the cache filled by the one before.
func BenchmarkSearch(b *testing.B) {
	boxes := roads.New(1).Boxes(*benchRoads)
	tree, order := build(b, boxes)
	flat := makeFlat(boxes, order)
	for _, side := range []float64{0.1, 2, 5, 10, 20, 50} {
		tiles := roads.NewTiles(7, boxes)
		b.Run(fmt.Sprintf("data/%gkm", side), func(b *testing.B) { benchSearch(b, &tree, flat, tiles.Data, side) })
		b.Run(fmt.Sprintf("area/%gkm", side), func(b *testing.B) { benchSearch(b, &tree, flat, tiles.Area, side) })
	}
}

const (
	benchSlices = 64
	benchTiles  = 64 // of a slice
)

func benchSearch(b *testing.B, tree *Tree, flat *flatTree, tile func(float64) format.Box, side float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tiles := make([]format.Box, benchSlices*benchTiles)
	for i := range tiles {
		tiles[i] = tile(side)
	}
	best := kernel
	defer func() { kernel = best }()
	var c Cursor
	var hits []uint32
	all := availableKernels()
	spent := make([]time.Duration, len(all)+1)
	found, turn := 0, 0
	for b.Loop() {
		for i := range spent {
			slice := (turn + i*benchSlices/len(spent)) % benchSlices * benchTiles
			begin := cpuTime(b)
			for _, q := range tiles[slice:][:benchTiles] {
				if i == len(all) {
					hits = flat.search(q, hits[:0])
				} else {
					kernel = all[i]
					hits = tree.Search(&c, q, hits[:0])
				}
				found += len(hits)
			}
			spent[i] += cpuTime(b) - begin
		}
		turn++
	}
	queries := float64(turn * benchTiles)
	for k := range all {
		b.ReportMetric(float64(spent[len(all)])/float64(spent[k]), "x-flat-"+all[k].name)
	}
	b.ReportMetric(float64(spent[0])/queries, "cpu-ns/query")
	b.ReportMetric(float64(found)/queries/float64(len(spent)), "hits/query")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkBuild measures order and tree together, on one thread.
func BenchmarkBuild(b *testing.B) {
	boxes := roads.New(1).Boxes(1_000_000)
	refs := make([]uint32, len(boxes))
	n, m := Size(len(boxes))
	nodes, refSection := make([]byte, n), make([]byte, m)
	var s Sorter
	b.Run("order", func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		begin := cpuTime(b)
		for b.Loop() {
			s.Order(boxes)
		}
		b.ReportMetric(float64(cpuTime(b)-begin)/float64(b.N*len(boxes)), "cpu-ns/box")
	})
	b.Run("all", func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		begin := cpuTime(b)
		for b.Loop() {
			Build(nodes, refSection, boxes, refs, s.Order(boxes))
		}
		b.ReportMetric(float64(cpuTime(b)-begin)/float64(b.N*len(boxes)), "cpu-ns/box")
	})
}
