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
	// TakeUnelected takes over in an epoch in which the node does not act as primary of the right range.
	TakeUnelected
	// TakeWithoutWaiting lets a node begin an epoch of the left range, whose log has the take, while a lease of the right range may be valid.
	TakeWithoutWaiting
	// WriteAfterEnd orders writes in the right range after its end.
	WriteAfterEnd
	// CancelAfterEnd cancels a merge although the right range has the end.
	CancelAfterEnd
	// ReadAfterEnd answers reads of the right range in an epoch after that of its end.
	ReadAfterEnd
	// UniteWithoutEnd unites copies although the right one lacks the end.
	UniteWithoutEnd
	// JoinApart lets a node into the in-sync set that is caught up in one range only.
	JoinApart
)

// Mutations lists all mutations.
func Mutations() []Mutation {
	return []Mutation{TakeBeforeCommit, TakeUnelected, TakeWithoutWaiting, WriteAfterEnd, CancelAfterEnd, ReadAfterEnd, UniteWithoutEnd, JoinApart}
}

// String returns the name of the mutation.
func (m Mutation) String() string {
	return [...]string{"whole-rule", "take-before-commit", "take-unelected", "take-without-waiting", "write-after-end", "cancel-after-end", "read-after-end", "unite-without-end", "join-apart"}[m]
}

// Config bounds a search.
type Config struct {
	// Nodes is the number of replicas of both ranges, MinInSync the least size of the in-sync set.
	Nodes, MinInSync int
	// Writes, Elections, Shrinks and Joins bound how often each happens.
	Writes, Elections, Shrinks, Joins int
	Mutation                          Mutation
}

// Result is the outcome of a search.
type Result struct {
	// States is the number of distinct states, Merged the number of those in which the merge is complete and a write was acknowledged.
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
		if s.merged && s.nodes[s.primary].united && s.done != 0 {
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
