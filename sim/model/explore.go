package model

import (
	"fmt"
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
)

// statesMax bounds the states that Explore keeps, because states are numbered in 32 bits. A visited
// state takes up to 20 bytes.
const statesMax = math.MaxUint32 - 1

// Limits end a search early. A zero field does not limit.
type Limits struct {
	// States bounds the states of Explore, Steps the steps of Walk.
	States, Steps int
	// Time bounds the search. Tests use counts instead, which are the same on every machine.
	Time time.Duration
}

// Result is the result of a search.
type Result struct {
	// States counts distinct states up to the names of replicas. It is 0 for Walk, which does not
	// remember states.
	States int
	// Transitions counts the examined steps.
	Transitions int
	// Depth is the length of the longest shortest path (Explore) or of the longest walk (Walk).
	Depth int
	// Exhausted reports that every state within the bounds was visited.
	Exhausted bool
	// taken counts the steps of each kind, so that tests can require that every kind occurs.
	taken [actionKinds]int
	// Violation is the first violation, or nil.
	Violation *Violation
	// Elapsed is the duration of the search.
	Elapsed time.Duration
}

// Violation is a broken invariant with the path that leads to it.
type Violation struct {
	Invariant Invariant
	Trace     []Action
}

// String returns the invariant and the numbered trace.
func (v *Violation) String() string {
	s := fmt.Sprintf("broken: %v, after %d steps\n", v.Invariant, len(v.Trace))
	for i, a := range v.Trace {
		s += fmt.Sprintf("%4d  %v\n", i+1, a)
	}
	return s
}

// explorer is a breadth-first search: the first violation that it finds has a shortest path.
type explorer struct {
	cfg     Config
	limits  Limits
	begun   time.Time
	visited *visited
	res     Result
}

// openState is a visited state whose steps have not been examined.
type openState struct {
	number uint32
	state  state
}

// Explore visits every state within the bounds of cfg in order of distance, until one breaks an
// invariant.
func Explore(cfg Config, limits Limits) (Result, error) {
	const op rhumb.Op = "model.Explore"
	if err := cfg.Validate(); err != nil {
		return Result{}, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	if limits.States == 0 || limits.States > statesMax {
		limits.States = statesMax
	}
	e := &explorer{cfg: cfg.withDefaults(), limits: limits, begun: time.Now(), visited: newVisited()}
	e.run()
	e.res.States = len(e.visited.prints)
	e.res.Elapsed = time.Since(e.begun)
	return e.res, nil
}

// run searches level by level: all states at one distance before those at the next.
func (e *explorer) run() {
	first := newState(&e.cfg)
	// Only normalised states are fingerprinted and expanded, here and in every successor.
	e.cfg.normaliseState(&first)
	e.visited.add(first.fingerprint(e.cfg.named), 0)
	level := []openState{{0, first}}
	var next []openState
	g := &stepper{cfg: &e.cfg}
	for len(level) > 0 {
		// Two slices alternate as levels, so that a level reuses the memory of the one before last.
		next = next[:0]
		for i := range level {
			var bad Invariant
			if next, bad = e.expandState(g, &level[i], next); bad != 0 {
				e.res.Violation = &Violation{bad, e.tracePath(level[i].number, bad)}
				e.res.Depth++
				return
			}
			if e.limitReached(i) {
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

// limitReached reports whether a limit is reached. It reads the clock only once in 1024 states.
func (e *explorer) limitReached(i int) bool {
	if len(e.visited.prints) >= e.limits.States {
		return true
	}
	return e.limits.Time > 0 && i%1024 == 1023 && time.Since(e.begun) > e.limits.Time
}

// expandState examines every step from w and appends the new states to next.
func (e *explorer) expandState(g *stepper, w *openState, next []openState) ([]openState, Invariant) {
	steps := g.successors(&w.state)
	for k := range steps {
		st := &steps[k]
		e.res.Transitions++
		e.res.taken[st.act.kind]++
		// The check sees the step before normalisation, which removes information that invariants
		// may need.
		if bad := e.cfg.checkStep(&w.state, st); bad != 0 {
			return next, bad
		}
		e.cfg.normaliseState(&st.next)
		// Renamed states have one fingerprint, so only the first of them is expanded.
		if n, fresh := e.visited.add(st.next.fingerprint(e.cfg.named), w.number); fresh {
			next = append(next, openState{n, st.next})
		}
	}
	return next, 0
}

// tracePath replays the path to state number n and then the step that breaks the invariant. The
// search keeps only fingerprints, which are equal for renamed states; the replay fixes one name for
// each replica.
func (e *explorer) tracePath(n uint32, bad Invariant) []Action {
	g := &stepper{cfg: &e.cfg}
	s := newState(&e.cfg)
	e.cfg.normaliseState(&s)
	var out []Action
	for _, print := range e.visited.pathTo(n) {
		out = append(out, e.replayStep(g, &s, func(st *step) bool {
			e.cfg.normaliseState(&st.next)
			return st.next.fingerprint(e.cfg.named) == print
		}))
	}
	return append(out, e.replayStep(g, &s, func(st *step) bool { return e.cfg.checkStep(&s, st) == bad }))
}

// replayStep takes the first step from s that satisfies wanted.
func (e *explorer) replayStep(g *stepper, s *state, wanted func(*step) bool) Action {
	steps := g.successors(s)
	for k := range steps {
		if wanted(&steps[k]) {
			act := steps[k].act
			*s = steps[k].next
			return act
		}
	}
	// Only a fingerprint that depends on more than the state could get here.
	panic("model: a path that was found cannot be played again")
}
