package voter

import "fmt"

// step is one thing that may happen in a state.
type step struct {
	next   state
	act    action
	broken Invariant
}

type stepper struct {
	cfg    *Config
	from   *state
	steps  []step
	broken Invariant
}

func (g *stepper) without(m Mutation) bool { return g.cfg.Without == m }

// action says what a step did. It becomes a sentence only in traces.
type action struct {
	format string
	args   [4]uint8
	n      uint8
}

// String returns the action as a sentence.
func (a action) String() string {
	args := make([]any, a.n)
	for k := range args {
		args[k] = a.args[k]
	}
	return fmt.Sprintf(a.format, args...)
}

// done ends a step that led to t, unless t is where the step starts.
func (g *stepper) done(t *state, format string, args ...uint8) {
	if *t != *g.from || g.broken != 0 {
		a := action{format: format, n: uint8(len(args))}
		copy(a.args[:], args)
		g.steps = append(g.steps, step{*t, a, g.broken})
	}
	g.broken = 0
}

func (g *stepper) successors(s *state) []step {
	g.from, g.steps, g.broken = s, g.steps[:0], 0
	for i := range g.cfg.Voters {
		g.restart(i)
		g.ask(i)
		g.admitted(i)
		g.campaign(i)
		g.votes(i)
		g.win(i)
		g.lead(i)
		for k := range s.inNet {
			g.receive(i, &s.net[k])
		}
	}
	return g.steps
}
