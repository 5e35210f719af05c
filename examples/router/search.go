package main

import (
	"container/heap"
	"errors"

	"github.com/rhumbdb/rhumb/geo"
)

// speeds tells how fast one drives.
type speeds interface {
	// kmh fills out with the speeds on edges when one comes to them, so many seconds after the departure. A search calls it for
	// all edges that leave a node at once.
	kmh(edges []int32, after float64, out []float64) error
}

// route is the fastest way between two nodes.
type route struct {
	edges   []int32 // from the start on
	nodes   []int32 // one more
	seconds float64
	metres  float64
	// settled is the number of nodes whose edges were looked up, reads that of the edges.
	settled, reads int
}

// search is A* (Hart, Nilsson, Raphael, 1968): the estimate of what is left is the beeline at the greatest speed there is,
// which is never more than the truth.
func (g *graph) search(from, to int32, live speeds) (*route, error) {
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
		if n == to {
			return g.walkBack(r, best, via, from, to), nil
		}
		if done[n] {
			continue
		}
		done[n] = true
		out := g.out[n]
		kmh = append(kmh[:0], make([]float64, len(out))...)
		if err := live.kmh(out, best[n], kmh); err != nil {
			return nil, err
		}
		r.settled++
		r.reads += len(out)
		for i, e := range out {
			next := g.edges[e].other(n)
			cost := best[n] + g.edges[e].metres/(min(max(kmh[i], 1), fastest)/3.6)
			if best[next] == unseen || cost < best[next] {
				best[next], via[next] = cost, e
				heap.Push(open, candidate{node: next, cost: cost + geo.Distance(g.nodes[next], g.nodes[to])/(fastest/3.6)})
			}
		}
	}
	return nil, errors.New("there is no way from one place to the other")
}

func (e *edge) other(n int32) int32 { return e.ends[0] + e.ends[1] - n }

func (g *graph) walkBack(r *route, best []float64, via []int32, from, to int32) *route {
	r.seconds = best[to]
	r.nodes = append(r.nodes, to)
	for n := to; n != from; {
		e := via[n]
		r.edges = append(r.edges, e)
		r.metres += g.edges[e].metres
		n = g.edges[e].other(n)
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

// candidate is a node that can be reached, with the cost of the whole way through it at least.
type candidate struct {
	node int32
	cost float64
}

// frontier is the queue of candidates, the cheapest first, and among equally cheap ones that with the lowest number.
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
