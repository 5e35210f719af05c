package voter

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Limits end a search early. Zero fields do not limit.
type Limits struct {
	States int
	Time   time.Duration
}

// Result is what a search found.
type Result struct {
	// States counts different states, Transitions the steps that were looked at.
	States, Transitions int
	// Depth is the length of the longest shortest path.
	Depth int
	// Exhausted reports whether no state within the bounds is left.
	Exhausted bool
	// Broken is the first invariant that broke, and Trace the shortest way to it; 0 and nil if none did.
	Broken Invariant
	Trace  []string
	// Elapsed is the time the search took.
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

// explorer is a breadth-first search.
type explorer struct {
	cfg     Config
	limits  Limits
	begun   time.Time
	names   []renaming
	visited map[uint64]uint64 // fingerprint of a state, and of the one from which it was found; 0 for the start
	res     Result
}

// Explore visits every state within the bounds of cfg, nearest first, until one breaks an invariant.
func Explore(cfg Config, limits Limits) (Result, error) {
	const op rhumb.Op = "voter.Explore"
	if err := cfg.Validate(); err != nil {
		return Result{}, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	e := &explorer{cfg: cfg.withDefaults(), limits: limits, begun: time.Now(), visited: map[uint64]uint64{}}
	e.names = allRenamings(cfg.Voters)
	e.run()
	e.res.States, e.res.Elapsed = len(e.visited), time.Since(e.begun)
	return e.res, nil
}

func (e *explorer) run() {
	first := newState(&e.cfg)
	e.visited[first.fingerprint(e.names)] = 0
	level, next := []state{first}, []state(nil)
	g := &stepper{cfg: &e.cfg}
	for len(level) > 0 {
		next = next[:0]
		for i := range level {
			if next = e.expandState(g, &level[i], next); e.res.Broken != 0 || e.limitReached(i) {
				return
			}
		}
		level, next = next, level
		if len(level) > 0 {
			e.res.Depth++
		}
	}
	e.res.Exhausted = true
}

// spent reports whether a limit is reached. The clock is read now and then only.
func (e *explorer) limitReached(i int) bool {
	if e.limits.States > 0 && len(e.visited) >= e.limits.States {
		return true
	}
	return e.limits.Time > 0 && i%1024 == 1023 && time.Since(e.begun) > e.limits.Time
}

// expand looks at every step from s and adds the new states to next.
func (e *explorer) expandState(g *stepper, s *state, next []state) []state {
	print := s.fingerprint(e.names)
	steps := g.successors(s)
	for k := range steps {
		st := &steps[k]
		e.res.Transitions++
		if st.broken != 0 {
			e.res.Broken, e.res.Trace = st.broken, e.traceTo(print, st.broken)
			return next
		}
		st.next.dropDeadMessages(&e.cfg)
		p := st.next.fingerprint(e.names)
		if _, ok := e.visited[p]; !ok {
			e.visited[p] = print
			next = append(next, st.next)
		}
	}
	return next
}

// trace plays the way to a state again, and then the step that breaks bad. Playing it again gives every voter one name
// throughout.
func (e *explorer) traceTo(print uint64, bad Invariant) []string {
	var way []uint64
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

// replay takes the first step from s that is wanted.
func (e *explorer) replayStep(g *stepper, s *state, wanted func(*step) bool) string {
	steps := g.successors(s)
	for k := range steps {
		if wanted(&steps[k]) {
			act := steps[k].act.String()
			*s = steps[k].next
			return act
		}
	}
	panic("voter: a path that was found cannot be played again")
}
