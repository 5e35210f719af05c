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

func (g *stepper) leavesOut(m Mutation) bool { return g.cfg.Without == m }

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
func (g *stepper) addStep(t *state, format string, args ...uint8) {
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
		g.listRestarts(i)
		g.hearAnswers(i)
		g.takeAdmission(i)
		g.startCampaign(i)
		g.castVotes(i)
		g.takeOffice(i)
		g.listLeaderSteps(i)
		for k := range s.inNet {
			g.receiveAppend(i, &s.net[k])
		}
	}
	return g.steps
}
