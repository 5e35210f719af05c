package model

import (
	"math/rand/v2"
	"time"

	"github.com/rhumbdb/rhumb"
)

// walkLength bounds one random walk.
const walkLength = 120

// walker runs random walks.
type walker struct {
	cfg    Config
	limits Limits
	begun  time.Time
	rng    *rand.Rand
	g      *stepper
	res    Result
	// byKind holds the indices of the present steps of each kind; the slices are reused.
	byKind [actionKinds][]int
}

// Walk runs random walks from the initial state until a limit is reached or an invariant breaks.
// The same seed and step limit produce the same walks. A walk reaches states that are too far for
// Explore, but finding nothing proves nothing.
func Walk(cfg Config, seed uint64, limits Limits) (Result, error) {
	const op rhumb.Op = "model.Walk"
	if err := cfg.Validate(); err != nil {
		return Result{}, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	if limits.Steps <= 0 && limits.Time <= 0 {
		return Result{}, rhumb.E(op, rhumb.InvalidArgument, "neither Limits.Steps nor Limits.Time is set; a walk has no end of its own")
	}
	w := &walker{cfg: cfg.withDefaults(), limits: limits, begun: time.Now(), rng: rand.New(rand.NewPCG(seed, 0x7268756d62))}
	w.g = &stepper{cfg: &w.cfg}
	for !w.limitReached() && w.res.Violation == nil {
		w.walkOnce()
	}
	w.res.Elapsed = time.Since(w.begun)
	return w.res, nil
}

// limitReached reports whether a limit is reached.
func (w *walker) limitReached() bool {
	if w.limits.Steps > 0 && w.res.Transitions >= w.limits.Steps {
		return true
	}
	return w.limits.Time > 0 && time.Since(w.begun) > w.limits.Time
}

// walkOnce runs one walk.
func (w *walker) walkOnce() {
	s := newState(&w.cfg)
	w.cfg.normaliseState(&s)
	trace := make([]Action, 0, walkLength)
	for len(trace) < walkLength {
		steps := w.g.successors(&s)
		k := w.chooseStep(steps)
		// A state without steps ends the walk.
		if k < 0 {
			return
		}
		st := &steps[k]
		w.res.Transitions++
		w.res.taken[st.act.kind]++
		trace = append(trace, st.act)
		w.res.Depth = max(w.res.Depth, len(trace))
		if bad := w.cfg.checkStep(&s, st); bad != 0 {
			w.res.Violation = &Violation{bad, trace}
			return
		}
		s = st.next
		w.cfg.normaliseState(&s)
	}
}

// chooseStep picks a kind of step and then a step of that kind, so that kinds with many variants do
// not dominate. It returns -1 if there is no step. Kinds that end an epoch, a life or a round are
// picked less often. Otherwise few steps would happen in between.
func (w *walker) chooseStep(steps []step) int {
	if len(steps) == 0 {
		return -1
	}
	for k := range w.byKind {
		w.byKind[k] = w.byKind[k][:0]
	}
	var kinds [actionKinds]actionKind
	n := 0
	for i := range steps {
		kind := steps[i].act.kind
		if len(w.byKind[kind]) == 0 {
			kinds[n] = kind
			n++
		}
		w.byKind[kind] = append(w.byKind[kind], i)
	}
	for {
		kind := kinds[w.rng.IntN(n)]
		// If n is 1 the kind is the only choice. Otherwise the draw repeats until a kind is
		// accepted.
		if isRare(kind) && n > 1 && w.rng.IntN(6) != 0 {
			continue
		}
		list := w.byKind[kind]
		return list[w.rng.IntN(len(list))]
	}
}

// isRare reports whether a kind is picked less often.
func isRare(k actionKind) bool {
	switch k {
	case actElect, actCrash, actDamage, actRound, actFence, actWithdraw, actClose:
		return true
	}
	return false
}
