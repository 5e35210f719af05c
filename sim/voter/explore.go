package voter

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Limits end a search early. A zero field does not limit.
type Limits struct {
	States int
	Time   time.Duration
}

// Result is the outcome of a search.
type Result struct {
	// States is the number of distinct states, Transitions the number of steps examined.
	States, Transitions int
	// Depth is the greatest distance of a state from the start.
	Depth int
	// Exhausted reports whether every state within the bounds was visited.
	Exhausted bool
	// Broken is the first invariant that broke, and Trace the shortest way to break it; 0 and nil
	// if none broke.
	Broken Invariant
	Trace  []string
	// Elapsed is the duration of the search.
	Elapsed time.Duration
}

// String returns the broken invariant and the numbered trace.
func (r *Result) String() string {
	if r.Broken == 0 {
		return "nothing is broken\n"
	}
	s := fmt.Sprintf("broken: %v, after %d steps\n", r.Broken, len(r.Trace))
	for i, act := range r.Trace {
		s += fmt.Sprintf("%4d  %s\n", i+1, act)
	}
	return s
}

// explorer is a breadth-first search. It keeps the states of two levels only; older states remain
// as fingerprints, from which a trace is reconstructed by taking the steps again.
type explorer struct {
	cfg    Config
	limits Limits
	begun  time.Time
	names  []renaming
	// visited maps the fingerprint of each visited state to that of the state from which it was
	// reached first, or 0 for the start.
	visited map[uint64]uint64
	res     Result
}

// Explore visits every state within the bounds of cfg, nearest first, until one breaks an invariant
// or a limit is reached.
func Explore(cfg Config, limits Limits) (Result, error) {
	const op rhumb.Op = "voter.Explore"
	if err := cfg.Validate(); err != nil {
		return Result{}, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	e := &explorer{cfg: cfg.withDefaults(), limits: limits, begun: time.Now(), visited: map[uint64]uint64{}}
	// All permutations are computed once, since every fingerprint needs them.
	e.names = allRenamings(cfg.Voters)
	e.run()
	e.res.States, e.res.Elapsed = len(e.visited), time.Since(e.begun)
	return e.res, nil
}

// run visits the states level by level.
func (e *explorer) run() {
	first := newState(&e.cfg)
	e.visited[first.fingerprint(e.names)] = 0
	level, next := []state{first}, []state(nil)
	g := &stepper{cfg: &e.cfg}
	for len(level) > 0 {
		// The two slices swap roles at each level, so their memory is reused.
		next = next[:0]
		for i := range level {
			if next = e.expandState(g, &level[i], next); e.res.Broken != 0 || e.limitReached(i) {
				return
			}
		}
		level, next = next, level
		// The last level finds nothing new and does not count as a step.
		if len(level) > 0 {
			e.res.Depth++
		}
	}
	e.res.Exhausted = true
}

// limitReached reports whether a limit is reached. i counts the states of the level; the clock is
// read only once in 1024 of them.
func (e *explorer) limitReached(i int) bool {
	if e.limits.States > 0 && len(e.visited) >= e.limits.States {
		return true
	}
	return e.limits.Time > 0 && i%1024 == 1023 && time.Since(e.begun) > e.limits.Time
}

// expandState takes every step from s and appends the new states to next.
func (e *explorer) expandState(g *stepper, s *state, next []state) []state {
	print := s.fingerprint(e.names)
	steps := g.listSteps(s)
	for k := range steps {
		st := &steps[k]
		e.res.Transitions++
		// A broken invariant ends the search before the state is stored: states after a violation
		// mean nothing.
		if st.broken != 0 {
			e.res.Broken, e.res.Trace = st.broken, e.traceTo(print, st.broken)
			return next
		}
		// Messages that nobody would take are removed before the state is compared, so that states
		// which differ only in them are one.
		st.next.dropDeadMessages(&e.cfg)
		p := st.next.fingerprint(e.names)
		if _, ok := e.visited[p]; !ok {
			// Breadth first, the first way to a state is a shortest one, so it is never replaced.
			e.visited[p] = print
			next = append(next, st.next)
		}
	}
	return next
}

// traceTo returns the actions on the way to a state, and the one that breaks bad. It takes the
// steps again from the start: fingerprints ignore names, and this way every voter has one name
// throughout the trace.
func (e *explorer) traceTo(print uint64, bad Invariant) []string {
	var way []uint64
	// The way is followed backwards from the state to the start, whose predecessor is 0.
	for p := print; e.visited[p] != 0; p = e.visited[p] {
		way = append(way, p)
	}
	slices.Reverse(way)
	g := &stepper{cfg: &e.cfg}
	s := newState(&e.cfg)
	var out []string
	for _, p := range way {
		out = append(out, e.replayStep(g, &s, func(st *step) bool {
			st.next.dropDeadMessages(&e.cfg)
			return st.next.fingerprint(e.names) == p
		}))
	}
	return append(out, e.replayStep(g, &s, func(st *step) bool { return st.broken == bad }))
}

// replayStep takes the first step from s that is wanted, and returns its action.
func (e *explorer) replayStep(g *stepper, s *state, wanted func(*step) bool) string {
	steps := g.listSteps(s)
	for k := range steps {
		if wanted(&steps[k]) {
			act := steps[k].act.String()
			*s = steps[k].next
			return act
		}
	}
	// The search took this step before. If it is not found, fingerprints collide or depend on
	// names.
	panic("voter: the path to a visited state cannot be replayed")
}
