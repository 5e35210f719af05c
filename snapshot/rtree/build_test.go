package rtree

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestLayout keeps the bytes of trees as transcripts: "build" gets the boxes, a line each, and shows the sections.
func TestLayout(t *testing.T) {
	datadriven.RunTest(t, "testdata/layout", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "build" {
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
		var boxes []format.Box
		for line := range strings.Lines(d.Input) {
			var b format.Box
			if _, err := fmt.Sscan(line, &b.MinX, &b.MinY, &b.MaxX, &b.MaxY); err != nil {
				d.Fatalf(t, "%q: %v", line, err)
			}
			boxes = append(boxes, b)
		}
		var copies int
		if d.MaybeScanArgs(t, "copies", &copies) {
			boxes = slices.Repeat(boxes, copies)
		}
		nodes, refs := buildSections(boxes, new(Sorter).Order(boxes))
		return dump("nodes", nodes) + dump("refs", refs)
	})
}

// dump shows the first words of a section, 16 to a line, and the checksum of all.
func dump(name string, p []byte) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %d bytes, crc32c %08x\n", name, len(p), format.Checksum(p))
	for at := 0; at < min(len(p), 1024); at += 64 {
		fmt.Fprintf(&out, "%4d:", at)
		for i := at; i < at+64; i += 4 {
			switch v := int32(le.Uint32(p[i:])); v {
			case math.MaxInt32:
				out.WriteString(" max")
			case math.MinInt32:
				out.WriteString(" min")
			default:
				fmt.Fprintf(&out, " %d", v)
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// TestOrder guards that Order is the order of HilbertKey, cut to the bits that are sorted, and then of positions.
func TestOrder(t *testing.T) {
	var s Sorter
	for _, shape := range boxShapes {
		for _, n := range []int{0, 1, 2, 1000, 30_000, 500} {
			boxes := makeBoxes(rand.New(rand.NewPCG(uint64(n), 9)), n, shape.make)
			want := make([]uint32, n)
			for i := range want {
				want[i] = uint32(i)
			}
			key := func(i uint32) uint64 { return HilbertKey(boxes[i]) >> (2*HilbertBits - sortBits) }
			slices.SortStableFunc(want, func(a, b uint32) int { return int(int64(key(a)) - int64(key(b))) })
			if got := s.Order(boxes); !slices.Equal(got, want) {
				t.Errorf("%s, %d boxes: another order", shape.name, n)
			}
		}
	}
}

// TestHilbertKey guards that the curve is a Hilbert curve that stays in the world: it visits every cell once and steps to a
// neighbour each time, over the whole world in coarse cells and in its lowest corner in the finest.
func TestHilbertKey(t *testing.T) {
	for _, tc := range []struct{ bits, columns, rows int }{{6, 64, 32}, {HilbertBits, 64, 64}} {
		cells := make([]corner, tc.columns*tc.rows)
		for x := range int64(tc.columns) {
			for y := range int64(tc.rows) {
				b := around(corner{(2*x+1)*fullTurn>>(tc.bits+1) - format.LonUnitsMax, (2*y+1)*fullTurn>>(tc.bits+1) - format.LatUnitsMax}, 9, 9)
				k := HilbertKey(b) >> (2 * (HilbertBits - tc.bits))
				if k >= uint64(len(cells)) || cells[k] != (corner{}) {
					t.Fatalf("%d bits: cell %d, %d has key %d, which is taken or too great", tc.bits, x, y, k)
				}
				cells[k] = corner{x + 1, y + 1}
			}
		}
		for i := 1; i < len(cells); i++ {
			dx, dy := cells[i].x-cells[i-1].x, cells[i].y-cells[i-1].y
			if dx*dx+dy*dy != 1 {
				t.Fatalf("%d bits: keys %d and %d are at %v and %v", tc.bits, i-1, i, cells[i-1], cells[i])
			}
		}
	}
	corners := []format.Box{world, around(corner{format.LonUnitsMax, format.LatUnitsMax}, 0, 0), around(corner{format.LonUnitsMax, -format.LatUnitsMax}, 0, 0)}
	for _, b := range corners {
		if k := HilbertKey(b); k>>(2*HilbertBits-1) != 0 {
			t.Errorf("%v has key %#x, in the upper half of the curve", b, k)
		}
	}
}

// TestSize guards the sizes against a count of the levels one by one, and the aim of 22 bytes a box.
func TestSize(t *testing.T) {
	for _, n := range []int{0, 1, 16, 17, 256, 257, 1_000_000, ItemsMax} {
		want := format.TreeHeaderSize
		for m := n; m > 0; {
			m = (m + format.NodeLanes - 1) / format.NodeLanes
			want += m * format.NodeSize
			if m == 1 {
				break
			}
		}
		nodes, refs := Size(n)
		if wantRefs := (n + 15) / 16 * 64; nodes != want || refs != wantRefs {
			t.Errorf("%d boxes: %d and %d bytes, want %d and %d", n, nodes, refs, want, wantRefs)
		}
		if n >= 1_000_000 && nodes+refs > 22*n {
			t.Errorf("%d boxes take %d bytes", n, nodes+refs)
		}
	}
}

// TestBounds guards the box around everything.
func TestBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 16, 17, 1000} {
		boxes := makeBoxes(r, n, boxShapes[2].make)
		want := empty
		for _, b := range boxes {
			want = format.Box{MinX: min(want.MinX, b.MinX), MinY: min(want.MinY, b.MinY), MaxX: max(want.MaxX, b.MaxX), MaxY: max(want.MaxY, b.MaxY)}
		}
		tree, _ := build(t, boxes)
		if got, ok := tree.Bounds(); !ok || got != want || tree.Items() != n {
			t.Errorf("%d boxes: %v %v of %d items, want %v", n, got, ok, tree.Items(), want)
		}
	}
	if _, ok := new(Tree).Bounds(); ok {
		t.Error("a tree over nothing has bounds")
	}
}

// TestOpenCorrupt guards that each kind of damage is reported with its offset.
// TestEffort counts all nodes that touch, for trees of which each leaf is a sample.
func TestEffort(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for n := range effortSamples + 1 {
		boxes := makeBoxes(r, n, func(r *rand.Rand) format.Box { return around(anywhere(r), 1e8, 1e8) })
		tree, _ := build(t, boxes)
		touched := 0
		for _, q := range boxes {
			for level := range tree.levels {
				for node := range tree.count[level] {
					for lane := range uint32(format.NodeLanes) {
						if level > 0 && tree.boxAt(level, node, lane).Intersects(q) {
							touched++
						}
					}
				}
			}
			touched++ // the root
		}
		if want := float64(touched) / float64(max(n, 1)); tree.Effort() != want {
			t.Errorf("%d boxes: the effort is %v, want %v", n, tree.Effort(), want)
		}
	}
}

// An order of leaves that is worse than Hilbert's shows, and the worst of trees takes no longer than a bound.
func TestEffortOfOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	boxes := makeBoxes(r, 100_000, func(r *rand.Rand) format.Box { return around(anywhere(r), 1000, 1000) })
	tree, order := build(t, boxes)
	sorted := tree.Effort()
	if sorted > 3*float64(tree.levels) {
		t.Errorf("%v nodes in a tree of %d levels", sorted, tree.levels)
	}
	open := func(order []uint32) float64 {
		tree, err := Open(buildSections(boxes, order))
		if err != nil {
			t.Fatal(err)
		}
		return tree.Effort()
	}
	for i := 0; i+32 <= len(order); i += 32 { // moves about by a leaf
		r.Shuffle(32, func(a, b int) { order[i+a], order[i+b] = order[i+b], order[i+a] })
	}
	little := open(order)
	r.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
	if much := open(order); little <= sorted || little > 2*sorted || much != effortNodesMax {
		t.Errorf("the effort is %v sorted, %v a little out of order, %v without an order", sorted, little, much)
	}
}

func TestOpenCorrupt(t *testing.T) {
	boxes := makeBoxes(rand.New(rand.NewPCG(1, 2)), 300, boxShapes[0].make)
	for _, tc := range []struct {
		name   string
		damage func(nodes, refs *[]byte)
		want   string
	}{
		{"no header", func(n, _ *[]byte) { *n = (*n)[:100] }, "want a header of 256"},
		{"levels", func(n, _ *[]byte) { le.PutUint32(*n, 13) }, "offset 0: 13 levels for 300 items, want 3"},
		{"items", func(n, _ *[]byte) { le.PutUint32((*n)[4:], 0xFFFFFFFF) }, "offset 0: 3 levels for 4294967295 items, want 8"},
		{"first of a level", func(n, _ *[]byte) { le.PutUint32((*n)[24:], 18) }, "offset 24: level 1 has 2 nodes from 18, want 2 from 19"},
		{"nodes cut off", func(n, _ *[]byte) { *n = (*n)[:len(*n)-1] }, "in 5631 bytes of nodes"},
		{"references cut off", func(_, r *[]byte) { *r = (*r)[:len(*r)-1] }, "1215 of references"},
		{"padding", func(n, _ *[]byte) { le.PutUint32((*n)[256+18*256+4*12:], 5) }, "offset 4912: lane 12 of the last node of level 0"},
	} {
		nodes, refs := buildSections(boxes, nil)
		tc.damage(&nodes, &refs)
		_, err := Open(nodes, refs)
		if rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want Corrupt with %q", tc.name, err, tc.want)
		}
	}
}

// FuzzOpen guards that no bytes make Open or a search fail, whatever tree they seem to be.
func FuzzOpen(f *testing.F) {
	for _, n := range []int{0, 1, 17, 300} {
		nodes, refs := buildSections(makeBoxes(rand.New(rand.NewPCG(1, 2)), n, boxShapes[3].make), nil)
		f.Add(nodes, refs, int32(0), int32(0), int32(1_000_000_000), int32(500_000_000))
	}
	f.Fuzz(func(t *testing.T, nodes, refs []byte, minX, minY, maxX, maxY int32) {
		tree, err := Open(nodes, refs)
		if err != nil {
			if rhumb.KindOf(err) != rhumb.Corrupt {
				t.Fatalf("%v is not Corrupt", err)
			}
			return
		}
		var c Cursor
		for _, q := range []format.Box{{MinX: minX, MinY: minY, MaxX: maxX, MaxY: maxY}, world} {
			hits := tree.Search(&c, q, nil)
			if len(hits) > tree.Items() {
				t.Fatalf("%d hits among %d items", len(hits), tree.Items())
			}
		}
	})
}
