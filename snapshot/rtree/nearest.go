package rtree

import (
	"math"
	"math/bits"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Neighbour is an item found by Nearest.
type Neighbour[T any] struct {
	Item   T
	Metres float64 // from the point to the item's box
}

// Nearest returns the k items nearest to a point that are at most limit metres away, nearest first
// and equally near items in the order of compare. The result is exact with respect to Distance.
//
// The caller provides the search. It calls visit once for every item whose box touches one of one
// or two plain boxes, with the item's whole box, which may cross the antimeridian. Nearest searches
// the boxes around a circle, and then around larger circles until k items are within the circle:
// everything outside is farther away than all of them. It begins with a radius of start metres, see
// Tree.StartRadius; a bad start only costs time. Each further circle is at least twice as wide as
// the last.
func Nearest[T any](p rhumb.Point, k int, limit, start float64, compare func(a, b T) int,
	search func(boxes []format.Box, visit func(item T, box format.Box)),
) []Neighbour[T] {
	if k <= 0 || !(limit >= 0) {
		return nil
	}
	limit = min(limit, geo.DistanceMax)
	best := &nearestSet[T]{k: k, compare: compare}
	// The negation also catches NaN.
	if !(start >= radiusMin) {
		start = radiusMin
	}
	for radius := start; ; {
		radius = min(radius, limit)
		// A wider search finds the earlier items again, so the set starts empty.
		best.items = best.items[:0]
		best.limit = radius
		boxes, n := Circle(p, radius)
		search(boxes[:n], func(item T, box format.Box) { best.offerItem(item, Distance(p, box)) })
		// The set holds only items within the radius, so k of them prove that no nearer item exists
		// outside.
		if len(best.items) == k || radius >= limit {
			return best.sortedItems()
		}
		radius = widerRadius(radius, len(best.items), k)
	}
}

// radiusMin is the least radius that Nearest begins with, in metres. Doubling it 25 times covers
// the whole earth.
const radiusMin = 1.0

// widerRadius returns the next radius if a radius contains found of k items. If items are spread
// evenly, the new circle contains 2k.
func widerRadius(radius float64, found, k int) float64 {
	return radius * min(max(2, math.Sqrt(2*float64(k)/float64(max(found, 1)))), 16)
}

// nearestSet keeps the k nearest of the offered items in a heap with the farthest on top.
type nearestSet[T any] struct {
	k       int
	limit   float64
	compare func(a, b T) int
	items   []Neighbour[T]
}

// compareItems orders items by distance, then by the caller's order.
func (s *nearestSet[T]) compareItems(a, b Neighbour[T]) int {
	switch {
	case a.Metres < b.Metres:
		return -1
	case a.Metres > b.Metres:
		return 1
	}
	return s.compare(a.Item, b.Item)
}

// offerItem adds an item unless k nearer ones are known.
func (s *nearestSet[T]) offerItem(item T, metres float64) {
	// The search covers the boxes around the circle, whose corners are outside it.
	if metres > s.limit {
		return
	}
	n := Neighbour[T]{item, metres}
	full := len(s.items) == s.k
	if full && s.compareItems(n, s.items[0]) >= 0 {
		return
	}
	// The farthest item is replaced and sinks to its place.
	if full {
		s.items[0] = n
		s.siftDown()
		return
	}
	s.items = append(s.items, n)
	s.siftUp()
}

// siftUp moves the last item to its place.
func (s *nearestSet[T]) siftUp() {
	for i := len(s.items) - 1; i > 0; {
		parent := (i - 1) / 2
		if s.compareItems(s.items[i], s.items[parent]) <= 0 {
			return
		}
		s.items[i], s.items[parent] = s.items[parent], s.items[i]
		i = parent
	}
}

// siftDown moves the first item to its place.
func (s *nearestSet[T]) siftDown() {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(s.items) {
			return
		}
		// The farther child moves up, because the farthest item must stay on top.
		if child+1 < len(s.items) && s.compareItems(s.items[child+1], s.items[child]) > 0 {
			child++
		}
		if s.compareItems(s.items[i], s.items[child]) >= 0 {
			return
		}
		s.items[i], s.items[child] = s.items[child], s.items[i]
		i = child
	}
}

// sortedItems returns the items, nearest first. It destroys the heap.
func (s *nearestSet[T]) sortedItems() []Neighbour[T] {
	slices.SortFunc(s.items, s.compareItems)
	return s.items
}

// StartRadius returns a radius in metres around a point that likely contains k leaves of the tree,
// for Nearest. It descends from the root to the nearest node that holds at least k leaves, and
// takes as many of its children as hold k.
func (t *Tree) StartRadius(p rhumb.Point, k int) float64 {
	if t.levels == 0 {
		return geo.DistanceMax
	}
	node, level, leaves := uint32(0), t.levels-1, 1 // in each child
	// leaves becomes the number of leaves below each child of the root.
	for range level {
		leaves *= format.NodeLanes
	}
	for ; level > 0 && leaves >= k; level-- {
		node = node*format.NodeLanes + t.nearestLane(p, level, node)
		leaves /= format.NodeLanes
	}
	var reach []float64
	for m := t.childLanes(level, node); m != 0; m &= m - 1 {
		// Leaves are measured by their distance, inner boxes by their far corner.
		if b := t.boxAt(level, node, uint32(bits.TrailingZeros32(m))); level == 0 {
			reach = append(reach, Distance(p, b))
		} else {
			// All leaves of a child are within the distance of its farthest corner. The farther of
			// two opposite corners is close enough for an estimate.
			reach = append(reach, farCorner(p, b))
		}
	}
	slices.Sort(reach)
	return reach[min(len(reach), max(k+leaves-1, leaves)/leaves)-1]
}

// nearestLane returns the lane of a node whose box is nearest to a point.
func (t *Tree) nearestLane(p rhumb.Point, level int, node uint32) (best uint32) {
	nearest := math.Inf(1)
	for m := t.childLanes(level, node); m != 0; m &= m - 1 {
		lane := uint32(bits.TrailingZeros32(m))
		if d := Distance(p, t.boxAt(level, node, lane)); d < nearest {
			best, nearest = lane, d
		}
	}
	return best
}

// farCorner returns the distance to the farther of two opposite corners of a plain box.
func farCorner(p rhumb.Point, b format.Box) float64 {
	d := b.Degrees()
	return max(geo.Distance(p, d.Min), geo.Distance(p, d.Max))
}
