package model

import (
	"fmt"
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
)

// statesMax bounds what Explore keeps: 20 bytes each in the set of visited states.
const statesMax = math.MaxUint32 - 1

// Limits end a search early. Zero fields do not limit.
type Limits struct {
	// States bounds the states of Explore, Steps the steps of Walk.
	States, Steps int
	// Time bounds the search. A test uses counts instead, so that it is the same on every machine.
	Time time.Duration
}

// Result is what a search found.
type Result struct {
	// States counts different states, names of replicas aside; 0 for Walk, which does not remember them.
	States int
	// Transitions counts the steps that were looked at.
	Transitions int
	// Depth is the length of the longest shortest path (Explore), or of the longest walk.
	Depth int
	// Exhausted says that no state within the bounds is left.
	Exhausted bool
	// taken counts the steps of each kind.
	taken [actionKinds]int
	// Violation is the first that was found, or nil.
	Violation *Violation
	// Elapsed is the time the search took.
	Elapsed time.Duration
}

// Violation is a broken invariant and the way to it.
type Violation struct {
	Invariant Invariant
	Trace     []Action
}

// String gives the invariant and the numbered trace.
func (v *Violation) String() string {
	s := fmt.Sprintf("broken: %v, after %d steps\n", v.Invariant, len(v.Trace))
	for i, a := range v.Trace {
		s += fmt.Sprintf("%4d  %v\n", i+1, a)
	}
	return s
}

// explorer is a breadth-first search.
type explorer struct {
	cfg     Config
	limits  Limits
	begun   time.Time
	visited *visited
	res     Result
}

// waiting is a state whose steps have not been looked at.
type waiting struct {
	number uint32
	state  state
}

// Explore visits every state within the bounds of cfg, nearest first, until one breaks an invariant.
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

func (e *explorer) run() {
	first := newState(&e.cfg)
	e.cfg.normalise(&first)
	e.visited.add(first.fingerprint(e.cfg.named), 0)
	level := []waiting{{0, first}}
	var next []waiting
	g := &stepper{cfg: &e.cfg}
	for len(level) > 0 {
		next = next[:0]
		for i := range level {
			var bad Invariant
			if next, bad = e.expand(g, &level[i], next); bad != 0 {
				e.res.Violation = &Violation{bad, e.trace(level[i].number, bad)}
				e.res.Depth++
				return
			}
			if e.spent(i) {
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

// spent reports whether a limit is reached. The clock is looked at now and then only.
func (e *explorer) spent(i int) bool {
	if len(e.visited.prints) >= e.limits.States {
		return true
	}
	return e.limits.Time > 0 && i%1024 == 1023 && time.Since(e.begun) > e.limits.Time
}

// expand looks at every step from w and adds the new states to next.
func (e *explorer) expand(g *stepper, w *waiting, next []waiting) ([]waiting, Invariant) {
	steps := g.successors(&w.state)
	for k := range steps {
		st := &steps[k]
		e.res.Transitions++
		e.res.taken[st.act.kind]++
		if bad := e.cfg.check(&w.state, st); bad != 0 {
			return next, bad
		}
		e.cfg.normalise(&st.next)
		if n, fresh := e.visited.add(st.next.fingerprint(e.cfg.named), w.number); fresh {
			next = append(next, waiting{n, st.next})
		}
	}
	return next, 0
}

// trace plays the way to state number n again, and then the step that breaks bad. Playing it again gives every replica
// one name throughout.
func (e *explorer) trace(n uint32, bad Invariant) []Action {
	g := &stepper{cfg: &e.cfg}
	s := newState(&e.cfg)
	e.cfg.normalise(&s)
	var out []Action
	for _, print := range e.visited.path(n) {
		out = append(out, e.replay(g, &s, func(st *step) bool {
			e.cfg.normalise(&st.next)
			return st.next.fingerprint(e.cfg.named) == print
		}))
	}
	return append(out, e.replay(g, &s, func(st *step) bool { return e.cfg.check(&s, st) == bad }))
}

// replay takes the first step from s that is wanted.
func (e *explorer) replay(g *stepper, s *state, wanted func(*step) bool) Action {
	steps := g.successors(s)
	for k := range steps {
		if wanted(&steps[k]) {
			act := steps[k].act
			*s = steps[k].next
			return act
		}
	}
	panic("model: a path that was found cannot be played again")
}
