package check

import (
	"fmt"
	"slices"
	"strings"
)

// A dependency says that one transaction precedes another in every order that
// explains what clients saw (Adya's dependencies). The kinds are bits, so that a
// search names the kinds that it follows.
const (
	// writeWrite: the later transaction appended right after the earlier one.
	writeWrite dependencyKind = 1 << iota
	// writeRead: the later transaction read an element that the earlier one
	// appended.
	writeRead
	// readWrite: the earlier transaction read a state without the append of the
	// later one.
	readWrite
	// realTime: the earlier transaction had ended before the later one began.
	realTime
)

// dependencyKind is a set of kinds of dependencies.
type dependencyKind uint8

// dependency leads from a node of the graph to another one.
type dependency struct {
	to   int
	kind dependencyKind
	// why explains the dependency for people.
	why string
}

// dependencies is a graph: the dependencies that leave each node.
type dependencies [][]dependency

// anomaly is a pattern of dependencies that no allowed order has.
type anomaly struct {
	name string
	// follow holds the kinds of dependencies in the cycle; one is a kind that
	// occurs in it once.
	follow, one dependencyKind
}

// anomalies lists the patterns, worst first. The names are those of Adya and Elle.
// A cycle of a later pattern that is also one of an earlier pattern is reported as
// the earlier one. The patterns with realTime are errors only because the histories
// must be strictly serializable.
var anomalies = []anomaly{
	{"G0", writeWrite, 0},
	{"G1c", writeWrite | writeRead, 0},
	{"G-single", writeWrite | writeRead, readWrite},
	{"G2", writeWrite | writeRead | readWrite, 0},
	{"G0-realtime", writeWrite | realTime, 0},
	{"G1c-realtime", writeWrite | writeRead | realTime, 0},
	{"G-single-realtime", writeWrite | writeRead | realTime, readWrite},
	{"G2-realtime", writeWrite | writeRead | readWrite | realTime, 0},
}

// add adds a dependency between different nodes.
func (g dependencies) add(from, to int, kind dependencyKind, why string) {
	if from != to {
		g[from] = append(g[from], dependency{to, kind, why})
	}
}

// cycleTries bounds the cycles that are compared for the shortest one, which is the
// easiest to understand.
const cycleTries = 500

// cycle returns the name of the worst anomaly in the graph, and the dependencies of
// one short cycle of it with the node at which the cycle begins. The name is empty
// if there is none.
func (g dependencies) cycle() (name string, start int, path []dependency) {
	for _, a := range anomalies {
		if start, path = g.cycleOf(a); path != nil {
			return a.name, start, path
		}
	}
	return "", 0, nil
}

// cycleOf returns a short cycle of one pattern, and nil if there is none.
func (g dependencies) cycleOf(a anomaly) (start int, path []dependency) {
	// In a valid history every component has one node, and the loop does nothing.
	component := g.components(a.follow | a.one)
	tries := 0
	for from := range g {
		for _, d := range g[from] {
			// Every cycle lies within a component.
			if component[from] != component[d.to] || d.kind&(a.follow|a.one) == 0 || a.one != 0 && d.kind&a.one == 0 {
				continue
			}
			// The rest of the cycle leads back, and has no further dependency of
			// the kind that occurs once.
			rest, ok := g.path(d.to, from, a.follow, component)
			if ok && (path == nil || len(rest)+1 < len(path)) {
				start, path = from, append([]dependency{d}, rest...)
			}
			if tries++; path != nil && tries >= cycleTries {
				return start, path
			}
		}
	}
	return start, path
}

// path returns a shortest path within a component, by the given kinds of
// dependencies.
func (g dependencies) path(from, to int, follow dependencyKind, component []int) ([]dependency, bool) {
	// How the search came to a node: from which one, and by which dependency.
	type arrival struct {
		from int
		by   dependency
	}
	seen := map[int]arrival{from: {}}
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at == to {
			break
		}
		for _, d := range g[at] {
			if _, known := seen[d.to]; !known && d.kind&follow != 0 && component[d.to] == component[to] {
				seen[d.to] = arrival{at, d}
				queue = append(queue, d.to)
			}
		}
	}
	if _, ok := seen[to]; !ok {
		return nil, false
	}
	// Backwards from the end.
	var path []dependency
	for at := to; at != from; at = seen[at].from {
		path = append(path, seen[at].by)
	}
	slices.Reverse(path)
	return path, true
}

// components returns the number of the strongly connected component of each node
// (Tarjan, without recursion, because a path may be as long as the history).
func (g dependencies) components(follow dependencyKind) []int {
	const unseen = -1
	t := tarjan{graph: g, follow: follow, index: make([]int, len(g)), low: make([]int, len(g)), component: make([]int, len(g))}
	for n := range g {
		t.index[n], t.component[n] = unseen, unseen
	}
	for n := range g {
		if t.index[n] == unseen {
			t.search(n)
		}
	}
	return t.component
}

// tarjan is the state of a search for strongly connected components.
type tarjan struct {
	graph  dependencies
	follow dependencyKind
	// index numbers the nodes in the order in which they were found, and low is the
	// least index that each reaches.
	index, low, component []int
	open                  []int // nodes without a component yet
	found, components     int
}

// visit is a node whose dependencies are being followed.
type visit struct{ node, next int }

// search finds the components of all nodes that a node leads to.
func (t *tarjan) search(root int) {
	stack := []visit{t.enter(root)}
	for len(stack) > 0 {
		v := &stack[len(stack)-1]
		if v.next < len(t.graph[v.node]) {
			d := t.graph[v.node][v.next]
			v.next++
			// A node with a component has no way back to this one.
			switch {
			case d.kind&t.follow == 0 || t.component[d.to] >= 0:
			case t.index[d.to] < 0:
				stack = append(stack, t.enter(d.to))
			default:
				t.low[v.node] = min(t.low[v.node], t.index[d.to])
			}
			continue
		}
		// All dependencies of the node were followed.
		done := v.node
		stack = stack[:len(stack)-1]
		t.leave(done)
		if len(stack) > 0 {
			above := stack[len(stack)-1].node
			t.low[above] = min(t.low[above], t.low[done])
		}
	}
}

// enter numbers a node that was found.
func (t *tarjan) enter(n int) visit {
	t.index[n], t.low[n] = t.found, t.found
	t.found++
	t.open = append(t.open, n)
	return visit{node: n}
}

// leave closes the component of a node if it is the first one of it that was found.
func (t *tarjan) leave(n int) {
	if t.low[n] != t.index[n] {
		return
	}
	// The nodes that were found after it, and have no component yet, reach it.
	for {
		last := t.open[len(t.open)-1]
		t.open = t.open[:len(t.open)-1]
		t.component[last] = t.components
		if last == n {
			break
		}
	}
	t.components++
}

// explain describes a cycle in one line. Nodes from `transactions` on are moments
// of time, which are left out.
func explain(start int, path []dependency, transactions int, label func(int) string) string {
	// The cycle begins at a transaction: a cycle of moments alone does not exist.
	for start >= transactions {
		start = path[0].to
		path = append(path[1:], path[0])
	}
	var text strings.Builder
	text.WriteString(label(start))
	// Several moments in a row are one step of time.
	timed := false
	for _, d := range path {
		if d.to >= transactions {
			timed = true
			continue
		}
		why := d.why
		if timed {
			why = "had ended before"
		}
		timed = false
		fmt.Fprintf(&text, " %s %s", why, label(d.to))
		if d.to != start {
			text.WriteString(", which")
		}
	}
	return text.String()
}
