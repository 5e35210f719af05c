package voter

import "fmt"

// step is a transition: the state after it, a description, and the invariant that it breaks.
type step struct {
	next   state
	act    action
	broken Invariant
}

// stepper lists the steps that are possible in a state. Its slice is reused by the next call.
type stepper struct {
	cfg    *Config
	from   *state
	steps  []step
	broken Invariant
}

// leavesOut reports whether the configuration leaves out a part of the rule.
func (g *stepper) leavesOut(m Mutation) bool { return g.cfg.Without == m }

// action describes a step. It is formatted only in traces, because most steps are never shown.
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

// addStep adds the step that leads to t, unless t is the state in which the step begins. A step
// that breaks an invariant is always added.
func (g *stepper) addStep(t *state, format string, args ...uint8) {
	// A step that changes nothing would lead back to a state that is visited already.
	if *t != *g.from || g.broken != 0 {
		a := action{format: format, n: uint8(len(args))}
		copy(a.args[:], args)
		g.steps = append(g.steps, step{*t, a, g.broken})
	}
	g.broken = 0
}

// listSteps returns every step from s. The result is valid until the next call.
func (g *stepper) listSteps(s *state) []step {
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
