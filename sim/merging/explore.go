package merging

import (
	"fmt"
	"slices"
	"strings"
)

// Mutation is a rule that is left out.
type Mutation uint8

// The mutations. WholeRule leaves out nothing.
const (
	WholeRule Mutation = iota
	// TakeBeforeCommit takes over although the end is not known to be committed.
	TakeBeforeCommit
	// WriteAfterEnd orders writes in the right range after its end.
	WriteAfterEnd
	// CancelAfterEnd cancels a merge although the right range has the end.
	CancelAfterEnd
	// ReadAfterEnd answers reads of the right range after its end.
	ReadAfterEnd
	// AckWithoutEnd acknowledges a take without the end that it names.
	AckWithoutEnd
)

// Mutations lists all mutations.
func Mutations() []Mutation {
	return []Mutation{TakeBeforeCommit, WriteAfterEnd, CancelAfterEnd, ReadAfterEnd, AckWithoutEnd}
}

// String returns the name of the mutation.
func (m Mutation) String() string {
	return [...]string{"whole-rule", "take-before-commit", "write-after-end", "cancel-after-end", "read-after-end", "ack-without-end"}[m]
}

// Config bounds a search.
type Config struct {
	// Nodes is the number of replicas of both ranges, MinInSync the least size of the in-sync
	// set.
	Nodes, MinInSync int
	// Writes, Elections, Shrinks and Joins bound how often each happens.
	Writes, Elections, Shrinks, Joins int
	Mutation                          Mutation
}

// Result is the outcome of a search.
type Result struct {
	// States is the number of distinct states, Merged the number of those in which the merge is
	// complete and a write was acknowledged.
	States, Merged int
	// Broken names the broken invariant, "" if there is none, and Trace is a shortest way to it.
	Broken string
	Trace  []string
}

// String returns the broken invariant and the numbered trace.
func (r *Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d states, %d merged; broken: %s\n", r.States, r.Merged, r.Broken)
	for i, act := range r.Trace {
		fmt.Fprintf(&b, "%4d  %s\n", i+1, act)
	}
	return b.String()
}

// Explore visits every state within the bounds, nearest first, until an invariant breaks.
func Explore(cfg Config) (res Result) {
	first := newState(&cfg)
	visited, states, from := map[state]struct{}{first: {}}, []state{first}, []int32{-1}
	for i := 0; i < len(states); i++ {
		s := states[i]
		res.States++
		if s.merged && s.nodes[s.primary[left]].united && s.done != 0 {
			res.Merged++
		}
		if res.Broken = s.broken(&cfg); res.Broken != "" {
			res.Trace = traceTo(&cfg, states, from, int32(i))
			return res
		}
		g := stepper{cfg: &cfg, from: s, add: func(next state, _ string) {
			if _, ok := visited[next]; !ok {
				visited[next] = struct{}{}
				states, from = append(states, next), append(from, int32(i))
			}
		}}
		g.listSteps()
	}
	return res
}

// traceTo names the steps to a state. It takes them again.
func traceTo(cfg *Config, states []state, from []int32, i int32) (trace []string) {
	for ; from[i] >= 0; i = from[i] {
		name := ""
		g := stepper{cfg: cfg, from: states[from[i]], named: true, add: func(next state, act string) {
			if next == states[i] {
				name = act
			}
		}}
		g.listSteps()
		trace = append(trace, name)
	}
	slices.Reverse(trace)
	return trace
}
