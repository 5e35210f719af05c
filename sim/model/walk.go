package model

import (
	"math/rand/v2"
	"time"

	"github.com/rhumbdb/rhumb"
)

// walkLength bounds one random walk.
const walkLength = 120

// walker takes random walks.
type walker struct {
	cfg    Config
	limits Limits
	begun  time.Time
	rng    *rand.Rand
	g      *stepper
	res    Result
	byKind [actionKinds][]int
}

// Walk takes random walks from the start until a limit is reached or an invariant breaks. The same seed and limits of
// steps give the same walks. A walk reaches what is too far for Explore; it proves nothing when it finds nothing.
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
	for !w.spent() && w.res.Violation == nil {
		w.one()
	}
	w.res.Elapsed = time.Since(w.begun)
	return w.res, nil
}

func (w *walker) spent() bool {
	if w.limits.Steps > 0 && w.res.Transitions >= w.limits.Steps {
		return true
	}
	return w.limits.Time > 0 && time.Since(w.begun) > w.limits.Time
}

// one takes one walk.
func (w *walker) one() {
	s := newState(&w.cfg)
	w.cfg.normalise(&s)
	trace := make([]Action, 0, walkLength)
	for len(trace) < walkLength {
		steps := w.g.successors(&s)
		k := w.choose(steps)
		if k < 0 {
			return
		}
		st := &steps[k]
		w.res.Transitions++
		w.res.taken[st.act.kind]++
		trace = append(trace, st.act)
		w.res.Depth = max(w.res.Depth, len(trace))
		if bad := w.cfg.check(&s, st); bad != 0 {
			w.res.Violation = &Violation{bad, trace}
			return
		}
		s = st.next
		w.cfg.normalise(&s)
	}
}

// choose picks a kind of step first, so that kinds of many variants do not drown the others, and then one of that kind;
// it gives -1 when there is none. What ends an epoch, a life or a round is held back, or little would happen between.
func (w *walker) choose(steps []step) int {
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
		if seldom(kind) && n > 1 && w.rng.IntN(6) != 0 {
			continue
		}
		list := w.byKind[kind]
		return list[w.rng.IntN(len(list))]
	}
}

func seldom(k actionKind) bool {
	switch k {
	case actElect, actCrash, actDamage, actRound, actFence, actWithdraw, actClose:
		return true
	}
	return false
}
