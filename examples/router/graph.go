package main

import (
	"fmt"
	"strconv"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// graph is what does not change about the roads: where they run. It is read once; speeds are read while a route is sought.
type graph struct {
	nodes []rhumb.Point
	edges []edge
	out   [][]int32 // of each node, its edges
	at    map[[2]string]int32
	named map[string]int32 // edges by the name of their record
}

// edge is a road segment. Direction of traffic is left out: every segment is driven both ways.
type edge struct {
	name   []byte
	ends   [2]int32
	metres float64
	kmh    float64 // where no live speed is known
}

// usual is how fast one drives on a kind of road where nothing else is known; cars do not go where it says nothing.
var usual = map[string]float64{
	"motorway": 100, "motorway_link": 60, "trunk": 80, "trunk_link": 50, "primary": 45, "primary_link": 40, "secondary": 40,
	"secondary_link": 35, "tertiary": 35, "tertiary_link": 30, "unclassified": 25, "road": 25, "residential": 20,
	"living_street": 10, "service": 10,
}

const fastest = 130.0 // km/h; no speed counts for more, so that the estimate of the search is never too great

// loadGraph reads all road segments that cars take from a view.
func loadGraph(roads *reader.Table) (*graph, error) {
	g := &graph{at: map[[2]string]int32{}, named: map[string]int32{}}
	for item, err := range roads.All() {
		if err != nil {
			return nil, err
		}
		if err := g.add(item.Name, item.Value); err != nil {
			return nil, fmt.Errorf("segment %s: %w", item.Name, err)
		}
	}
	g.keepLargest()
	if len(g.edges) == 0 {
		return nil, fmt.Errorf("the table has no road segments; see examples/router/README.md for how to ingest some")
	}
	return g, nil
}

// add takes a record as the ingest mapping "roads" writes it.
func (g *graph) add(name, value []byte) error {
	rec, err := rhumb.DecodeRecord(value)
	if err != nil {
		return err
	}
	text := func(field string) string {
		v, _ := rec.Get(field)
		if v.Kind() == rhumb.FieldString {
			return v.Text()
		}
		return v.String()
	}
	kmh, ok := usual[text("highway")]
	if !ok {
		return nil
	}
	if limit, err := strconv.ParseFloat(text("maxspeed"), 64); err == nil && limit > 0 {
		kmh = min(limit, fastest)
	}
	a, err := g.node(text("lat1"), text("lon1"))
	if err != nil {
		return err
	}
	b, err := g.node(text("lat2"), text("lon2"))
	if err != nil {
		return err
	}
	g.edges = append(g.edges, edge{
		name: append([]byte(nil), name...), ends: [2]int32{a, b}, metres: geo.Distance(g.nodes[a], g.nodes[b]), kmh: kmh,
	})
	return nil
}

// node gives the number of the place where segments meet: those that share an end have it to the last digit.
func (g *graph) node(lat, lon string) (int32, error) {
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

// keepLargest drops all edges but those of the largest part of the graph that hangs together, and links the rest to its
// nodes, so that there is a route between any two.
func (g *graph) keepLargest() {
	part := make([]int32, len(g.nodes))
	for i := range part {
		part[i] = int32(i)
	}
	find := func(n int32) int32 {
		for part[n] != n {
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

// snap gives the node nearest to a place, by way of the segments that the image has nearest to it.
func (g *graph) snap(roads *reader.Table, p rhumb.Point) (int32, error) {
	const among = 200
	best, distance := int32(-1), 0.0
	err := roads.VisitNearest(p, among, func(it *reader.Item) bool {
		n, ok := g.named[string(it.Name)]
		if !ok { // a footpath, or an island
			return true
		}
		for _, end := range g.edges[n].ends {
			if d := geo.Distance(p, g.nodes[end]); best < 0 || d < distance {
				best, distance = end, d
			}
		}
		return false
	})
	if err == nil && best < 0 {
		err = fmt.Errorf("no road near %v", p)
	}
	return best, err
}
