package main

import (
	"fmt"
	"strconv"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// graph is the part of the roads that does not change: their geometry. It is read once, while
// speeds are read during each search.
type graph struct {
	nodes []rhumb.Point
	edges []edge
	out   [][]int32 // edges of each node
	at    map[[2]string]int32
	// named are the edges by the name of their record.
	named map[string]int32
}

// edge is a road segment. The direction of traffic is ignored: every segment can be driven both
// ways.
type edge struct {
	name   []byte
	ends   [2]int32
	metres float64
	kmh    float64 // assumed speed without a live one
}

// usualSpeeds are the assumed speeds by kind of road, in km/h. Cars do not use kinds without an
// entry.
var usualSpeeds = map[string]float64{
	"motorway": 100, "motorway_link": 60, "trunk": 80, "trunk_link": 50, "primary": 45, "primary_link": 40, "secondary": 40,
	"secondary_link": 35, "tertiary": 35, "tertiary_link": 30, "unclassified": 25, "road": 25, "residential": 20,
	"living_street": 10, "service": 10,
}

// fastest bounds every speed, in km/h. The estimate of the search uses it, and must never exceed
// the true cost.
const fastest = 130.0

// loadGraph reads all road segments that cars can use from a view.
func loadGraph(roads *reader.Table) (*graph, error) {
	g := &graph{at: map[[2]string]int32{}, named: map[string]int32{}}
	for item, err := range roads.All() {
		if err != nil {
			return nil, err
		}
		// A record that cannot be decoded is reported and not skipped.
		if err := g.addSegment(item.Name, item.Value); err != nil {
			return nil, fmt.Errorf("segment %s: %w", item.Name, err)
		}
	}
	g.keepLargest()
	if len(g.edges) == 0 {
		return nil, fmt.Errorf("table roads has no road segments; see examples/router/README.md for how to ingest some")
	}
	return g, nil
}

// addSegment adds a record in the form of the ingest mapping "roads".
func (g *graph) addSegment(name, value []byte) error {
	rec, err := rhumb.DecodeRecord(value)
	if err != nil {
		return err
	}
	text := func(field string) string {
		v, _ := rec.Get(field)
		// Other fields are numbers, whose text is the same for equal values.
		if v.Kind() == rhumb.FieldString {
			return v.Text()
		}
		return v.String()
	}
	kmh, ok := usualSpeeds[text("highway")]
	if !ok {
		// Cars do not use this kind of road.
		return nil
	}
	if limit, err := strconv.ParseFloat(text("maxspeed"), 64); err == nil && limit > 0 {
		// Limits above fastest would break the estimate of the search.
		kmh = min(limit, fastest)
	}
	a, err := g.nodeAt(text("lat1"), text("lon1"))
	if err != nil {
		return err
	}
	b, err := g.nodeAt(text("lat2"), text("lon2"))
	if err != nil {
		return err
	}
	g.edges = append(g.edges, edge{
		name: append([]byte(nil), name...), ends: [2]int32{a, b}, metres: geo.Distance(g.nodes[a], g.nodes[b]), kmh: kmh,
	})
	return nil
}

// nodeAt returns the node at a position. Segments that meet have exactly equal coordinates, down to
// the last digit, so the text is the key.
func (g *graph) nodeAt(lat, lon string) (int32, error) {
	key := [2]string{lat, lon}
	if n, ok := g.at[key]; ok {
		return n, nil
	}
	y, err := strconv.ParseFloat(lat, 64)
	if err != nil {
		return 0, err
	}
	x, err := strconv.ParseFloat(lon, 64)
	if err != nil {
		return 0, err
	}
	n := int32(len(g.nodes))
	g.at[key] = n
	g.nodes = append(g.nodes, rhumb.Point{Lat: y, Lon: x})
	return n, nil
}

// keepLargest keeps the edges of the largest connected part of the graph and links them to its
// nodes, so that there is a route between any two of them. Parts are found by union-find.
func (g *graph) keepLargest() {
	part := make([]int32, len(g.nodes))
	for i := range part {
		part[i] = int32(i)
	}
	find := func(n int32) int32 {
		for part[n] != n {
			// Path halving keeps the trees flat.
			part[n] = part[part[n]]
			n = part[n]
		}
		return n
	}
	for _, e := range g.edges {
		part[find(e.ends[0])] = find(e.ends[1])
	}
	size := map[int32]int{}
	largest := int32(-1)
	for _, e := range g.edges {
		p := find(e.ends[0])
		size[p]++
		// The part with the most edges wins.
		if largest < 0 || size[p] > size[largest] {
			largest = p
		}
	}
	kept := g.edges[:0]
	g.out = make([][]int32, len(g.nodes))
	for _, e := range g.edges {
		if find(e.ends[0]) != largest {
			continue
		}
		n := int32(len(kept))
		kept = append(kept, e)
		g.named[string(e.name)] = n
		for _, end := range e.ends {
			g.out[end] = append(g.out[end], n)
		}
	}
	g.edges = kept
}

// nearestNode returns the node nearest to a position, among the ends of the nearest segment in the
// image that cars can use.
func (g *graph) nearestNode(roads *reader.Table, p rhumb.Point) (int32, error) {
	const among = 200
	best, distance := int32(-1), 0.0
	err := roads.VisitNearest(p, among, func(it *reader.Item) bool {
		n, ok := g.named[string(it.Name)]
		// A footpath, or a part that is not connected.
		if !ok {
			return true
		}
		for _, end := range g.edges[n].ends {
			// Routes run from node to node, so the nearer end of the segment counts.
			if d := geo.Distance(p, g.nodes[end]); best < 0 || d < distance {
				best, distance = end, d
			}
		}
		return false
	})
	if err == nil && best < 0 {
		err = fmt.Errorf("found no road near %v", p)
	}
	return best, err
}
