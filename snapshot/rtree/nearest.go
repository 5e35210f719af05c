package rtree

import (
	"math"
	"math/bits"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Neighbour is an item that Nearest found.
type Neighbour[T any] struct {
	Item   T
	Metres float64 // from the point to the item's box
}

// Nearest gives the k items nearest to a point that are at most limit metres away, nearest first and, among equally near
// ones, in the order of compare. The result is exact, by Distance.
//
// The search is the caller's: it calls visit once for every item whose box touches one of one or two plain boxes, and
// gives the item's whole box, which may cross the antimeridian. Nearest asks it for the boxes around a circle, and again for
// a larger circle until k items lie within: what lies outside is farther away than all of them. It begins with a radius of
// start metres, see Tree.StartRadius; a bad one costs time only. Each further circle is at least twice as wide as the last.
func Nearest[T any](p rhumb.Point, k int, limit, start float64, compare func(a, b T) int,
	search func(boxes []format.Box, visit func(item T, box format.Box)),
) []Neighbour[T] {
	if k <= 0 || !(limit >= 0) {
		return nil
	}
	limit = min(limit, geo.DistanceMax)
	best := &nearestSet[T]{k: k, compare: compare}
	if !(start >= radiusMin) {
		start = radiusMin
	}
	for radius := start; ; {
		radius = min(radius, limit)
		best.items = best.items[:0]
		best.limit = radius
		boxes, n := Circle(p, radius)
		search(boxes[:n], func(item T, box format.Box) { best.offer(item, Distance(p, box)) })
		if len(best.items) == k || radius >= limit {
			return best.sorted()
		}
		radius = wider(radius, len(best.items), k)
	}
}

// radiusMin is the least radius that Nearest begins with in metres: it doubles at most 25 times, to half the earth.
const radiusMin = 1.0

// wider gives the next radius when found of k items lie within one: for items spread evenly it would hold twice k.
func wider(radius float64, found, k int) float64 {
	return radius * min(max(2, math.Sqrt(2*float64(k)/float64(max(found, 1)))), 16)
}

// nearestSet keeps the k nearest of the items that it is offered, as a heap with the farthest on top.
type nearestSet[T any] struct {
	k       int
	limit   float64
	compare func(a, b T) int
	items   []Neighbour[T]
}

func (s *nearestSet[T]) order(a, b Neighbour[T]) int {
	switch {
	case a.Metres < b.Metres:
		return -1
	case a.Metres > b.Metres:
		return 1
	}
	return s.compare(a.Item, b.Item)
}

func (s *nearestSet[T]) offer(item T, metres float64) {
	if metres > s.limit {
		return
	}
	n := Neighbour[T]{item, metres}
	full := len(s.items) == s.k
	if full && s.order(n, s.items[0]) >= 0 {
		return
	}
	if full {
		s.items[0] = n
		s.down()
		return
	}
	s.items = append(s.items, n)
	s.up()
}

// up moves the last item to its place.
func (s *nearestSet[T]) up() {
	for i := len(s.items) - 1; i > 0; {
		parent := (i - 1) / 2
		if s.order(s.items[i], s.items[parent]) <= 0 {
			return
		}
		s.items[i], s.items[parent] = s.items[parent], s.items[i]
		i = parent
	}
}

// down moves the first item to its place.
func (s *nearestSet[T]) down() {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(s.items) {
			return
		}
		if child+1 < len(s.items) && s.order(s.items[child+1], s.items[child]) > 0 {
			child++
		}
		if s.order(s.items[i], s.items[child]) >= 0 {
			return
		}
		s.items[i], s.items[child] = s.items[child], s.items[i]
		i = child
	}
}

func (s *nearestSet[T]) sorted() []Neighbour[T] {
	slices.SortFunc(s.items, s.order)
	return s.items
}

// StartRadius gives a radius in metres around a point within which there likely are k leaves of the tree, for Nearest. It
// walks from the root to the nearest node that holds at least k leaves, and takes as many of its children as hold k.
func (t *Tree) StartRadius(p rhumb.Point, k int) float64 {
	if t.levels == 0 {
		return geo.DistanceMax
	}
	node, level, leaves := uint32(0), t.levels-1, 1 // in each child
	for range level {
		leaves *= format.NodeLanes
	}
	for ; level > 0 && leaves >= k; level-- {
		node = node*format.NodeLanes + t.nearestLane(p, level, node)
		leaves /= format.NodeLanes
	}
	var reach []float64
	for m := t.children(level, node); m != 0; m &= m - 1 {
		if b := t.box(level, node, uint32(bits.TrailingZeros32(m))); level == 0 {
			reach = append(reach, Distance(p, b))
		} else {
			reach = append(reach, farCorner(p, b))
		}
	}
	slices.Sort(reach)
	return reach[min(len(reach), max(k+leaves-1, leaves)/leaves)-1]
}

// nearestLane gives the lane of a node whose box is nearest to a point.
func (t *Tree) nearestLane(p rhumb.Point, level int, node uint32) (best uint32) {
	nearest := math.Inf(1)
	for m := t.children(level, node); m != 0; m &= m - 1 {
		lane := uint32(bits.TrailingZeros32(m))
		if d := Distance(p, t.box(level, node, lane)); d < nearest {
			best, nearest = lane, d
		}
	}
	return best
}

// farCorner gives the distance to the farther of two opposite corners of a plain box.
func farCorner(p rhumb.Point, b format.Box) float64 {
	d := b.Degrees()
	return max(geo.Distance(p, d.Min), geo.Distance(p, d.Max))
}
