package main

import (
	"container/heap"
	"errors"

	"github.com/rhumbdb/rhumb/geo"
)

// speeds provides the present speeds on edges.
type speeds interface {
	// edgeSpeeds fills out with the speeds in km/h on edges that are reached the given number of
	// seconds after the departure. A search calls it once per node, for all edges of that node.
	edgeSpeeds(edges []int32, after float64, out []float64) error
}

// route is the fastest route between two nodes.
type route struct {
	edges   []int32 // from start to end
	nodes   []int32 // one more than edges
	seconds float64
	metres  float64
	// settled is the number of nodes whose edges were read, reads the number of those edges.
	settled, reads int
}

// findRoute finds the fastest route by A* (Hart, Nilsson, Raphael, 1968). The estimate of the
// remaining cost is the straight line at the greatest speed, which never exceeds the true cost, so
// the first route to reach the end is optimal.
func (g *graph) findRoute(from, to int32, live speeds) (*route, error) {
	const unseen = -1
	best := make([]float64, len(g.nodes))
	via := make([]int32, len(g.nodes))
	for i := range best {
		best[i], via[i] = unseen, unseen
	}
	done := make([]bool, len(g.nodes))
	best[from] = 0
	open := &frontier{{node: from}}
	r := &route{}
	var kmh []float64
	for open.Len() > 0 {
		n := heap.Pop(open).(candidate).node
		// The estimate never exceeds the true cost, so the first arrival is the fastest.
		if n == to {
			return g.walkBack(r, best, via, from, to), nil
		}
		// A node may be in the queue several times, with decreasing costs; the first one settles
		// it.
		if done[n] {
			continue
		}
		done[n] = true
		out := g.out[n]
		// One call reads the speeds of all edges of the node.
		kmh = append(kmh[:0], make([]float64, len(out))...)
		if err := live.edgeSpeeds(out, best[n], kmh); err != nil {
			return nil, err
		}
		r.settled++
		r.reads += len(out)
		for i, e := range out {
			next := g.edges[e].otherEnd(n)
			// At least 1 km/h, so that a standstill is expensive but not infinite.
			cost := best[n] + g.edges[e].metres/(min(max(kmh[i], 1), fastest)/3.6)
			// The old candidate stays in the queue; done drops it later.
			if best[next] == unseen || cost < best[next] {
				best[next], via[next] = cost, e
				heap.Push(open, candidate{node: next, cost: cost + geo.Distance(g.nodes[next], g.nodes[to])/(fastest/3.6)})
			}
		}
	}
	return nil, errors.New("found no route between the two positions")
}

// otherEnd returns the other end of the edge. It needs no comparison, because the sum of both ends
// is known.
func (e *edge) otherEnd(n int32) int32 { return e.ends[0] + e.ends[1] - n }

// walkBack collects the route from the end to the start and reverses it.
func (g *graph) walkBack(r *route, best []float64, via []int32, from, to int32) *route {
	r.seconds = best[to]
	r.nodes = append(r.nodes, to)
	for n := to; n != from; {
		e := via[n]
		r.edges = append(r.edges, e)
		r.metres += g.edges[e].metres
		n = g.edges[e].otherEnd(n)
		r.nodes = append(r.nodes, n)
	}
	for i, j := 0, len(r.edges)-1; i < j; i, j = i+1, j-1 {
		r.edges[i], r.edges[j] = r.edges[j], r.edges[i]
	}
	for i, j := 0, len(r.nodes)-1; i < j; i, j = i+1, j-1 {
		r.nodes[i], r.nodes[j] = r.nodes[j], r.nodes[i]
	}
	return r
}

// candidate is a reachable node with a lower bound of the cost of a route through it.
type candidate struct {
	node int32
	cost float64
}

// frontier is the queue of candidates, the cheapest first. Ties are broken by the number of the
// node, so that a search is deterministic.
type frontier []candidate

func (f frontier) Len() int { return len(f) }
func (f frontier) Less(i, j int) bool {
	return f[i].cost < f[j].cost || f[i].cost == f[j].cost && f[i].node < f[j].node
}
func (f frontier) Swap(i, j int) { f[i], f[j] = f[j], f[i] }

// Push implements heap.Interface.
func (f *frontier) Push(x any) { *f = append(*f, x.(candidate)) }

// Pop implements heap.Interface.
func (f *frontier) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}
