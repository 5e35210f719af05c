package model

// step is one thing that may happen in a state.
type step struct {
	next state
	act  Action
	// broken is the invariant that taking the step breaks, of those that only a step can show.
	broken Invariant
}

// stepper lists the steps of a state. It is reused, so that a search allocates nothing per state.
type stepper struct {
	cfg    *Config
	from   *state
	steps  []step
	broken Invariant
}

// successors lists every step from s. The list is valid until the next call.
func (g *stepper) successors(s *state) []step {
	g.from, g.steps, g.broken = s, g.steps[:0], 0
	g.electorate()
	for i := range Replicas {
		g.time(i)
		g.restart(i)
		g.learn(i)
		g.fetch(i)
		g.activate(i)
		g.lead(i)
		g.metadata(i)
		for k := range s.inNet {
			if m := &s.net[k]; int(m.from) != i && (m.to == nobody || int(m.to) == i) {
				g.receive(i, m)
			}
		}
	}
	return g.steps
}

// lead lists what an active primary may do.
func (g *stepper) lead(p int) {
	if g.cfg.Rounds > 0 {
		g.heartbeat(p)
	}
	if g.from.rep[p].role != primary || g.cfg.PairsOnly {
		return
	}
	g.write(p)
	g.sendAppend(p)
	g.change(p)
	g.close(p)
	g.handOver(p)
	g.giveUp(p)
}

// receive lists what the arrival of m at replica i may do.
func (g *stepper) receive(i int, m *message) {
	switch m.kind {
	case msgAppend:
		g.receiveAppend(i, m)
	case msgAck:
		g.receiveAck(i, m)
	case msgHeartbeat:
		g.receiveHeartbeat(i, m)
	case msgGrant:
		g.receiveGrant(i, m)
	case msgPrepare:
		g.receivePrepare(i, m)
	case msgPromise:
		g.receivePromise(i, m)
	case msgHandover:
		g.receiveHandover(i, m)
	case msgRefusal:
		g.receiveRefusal(i, m)
	}
}

// without reports whether rule m is left out.
func (g *stepper) without(m Mutation) bool { return g.cfg.Without == m }

// emit adds a step to t, unless t is where the step starts.
func (g *stepper) emit(t *state, act Action) {
	if *t != *g.from || g.broken != 0 {
		g.steps = append(g.steps, step{next: *t, act: act, broken: g.broken})
	}
}

// done ends a step that led to t: it is added, and the next one has broken nothing yet.
func (g *stepper) done(t *state, act Action) {
	g.emit(t, act)
	g.broken = 0
}

// send ends a step that led to t and puts m under way. When the network is full one message is lost, any of them.
func (g *stepper) send(t *state, m message, act Action) {
	switch {
	case t.under(&m):
		g.emit(t, act)
	case int(t.inNet) < g.cfg.Messages:
		t.insert(m)
		g.emit(t, act)
	default:
		for k := range int(t.inNet) {
			u := *t
			u.drop(k)
			u.insert(m)
			g.emit(&u, act)
		}
	}
	g.broken = 0
}

// fail notes that the step being made breaks an invariant. The first counts.
func (g *stepper) fail(i Invariant) {
	if g.broken == 0 {
		g.broken = i
	}
}
