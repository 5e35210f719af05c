package model

// step is one possible transition of a state.
type step struct {
	next state
	act  Action
	// broken is an invariant that taking the step breaks, if only a step can show it.
	broken Invariant
}

// stepper lists the steps of a state. It is reused, so that a search allocates nothing per state. A
// rule copies the state, changes the copy, and ends the step with endStep or sendMessage.
type stepper struct {
	cfg    *Config
	from   *state
	steps  []step
	broken Invariant
}

// successors returns every step from s. The list is valid until the next call.
func (g *stepper) successors(s *state) []step {
	g.from, g.steps, g.broken = s, g.steps[:0], 0
	g.listElections()
	g.cancelHandover()
	g.loseRegion()
	g.removeRegion()
	g.giveUpRegion()
	for i := range Replicas {
		g.decideMetadata(i)
		// Messages and proposals of a node that stopped for good may still arrive.
		if s.gone.has(i) {
			continue
		}
		g.endRound(i)
		g.restartNode(i)
		g.learnRecord(i)
		g.fetchBest(i)
		g.activateElected(i)
		g.leadSteps(i)
		for j := range Replicas {
			g.takeSet(i, j)
		}
		g.installSet(i)
		g.dropCopy(i)
		g.upgradeNode(i)
		g.returnNode(i)
		// A delivery does not remove its message, so every message may arrive again.
		for k := range s.inNet {
			if m := &s.net[k]; int(m.from) != i && (m.to == nobody || int(m.to) == i) {
				g.receiveMessage(i, m)
			}
		}
	}
	return g.steps
}

// leadSteps lists the steps of an active primary.
func (g *stepper) leadSteps(p int) {
	// Heartbeats come first because nodes send them in every role.
	if g.cfg.Rounds > 0 {
		g.sendHeartbeats(p)
	}
	if g.from.rep[p].role != primary || g.cfg.PairsOnly {
		return
	}
	g.appendWrite(p)
	g.sendAppend(p)
	g.changeInSync(p)
	g.closeTimestamp(p)
	g.handOver(p)
	g.giveUp(p)
}

// receiveMessage lists the steps caused by the arrival of m at replica i.
func (g *stepper) receiveMessage(i int, sent *message) {
	read, ok := g.readByOlder(i, *sent)
	if !ok {
		return
	}
	m := &read
	switch m.kind {
	case msgAppend:
		g.receiveAppend(i, m, sent.log.n)
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

// emitStep adds a step to t, unless t equals the state before. A step that changes nothing would
// only lengthen the search.
func (g *stepper) emitStep(t *state, act Action) {
	if *t != *g.from || g.broken != 0 {
		g.steps = append(g.steps, step{next: *t, act: act, broken: g.broken})
	}
}

// endStep ends a step that led to t: it adds the step and clears the broken invariant for the next
// one.
func (g *stepper) endStep(t *state, act Action) {
	g.noteAlone(t)
	g.emitStep(t, act)
	g.broken = 0
}

// sendMessage ends a step that led to t and adds m to the network. If the network is full, one
// message is lost, possibly any of them, so each loss is a step.
func (g *stepper) sendMessage(t *state, m message, act Action) {
	switch {
	// The message is in flight already, and repetition adds nothing.
	case t.isInFlight(&m):
		g.emitStep(t, act)
	case int(t.inNet) < g.cfg.Messages:
		t.insertMessage(m)
		g.emitStep(t, act)
	default:
		for k := range int(t.inNet) {
			u := *t
			u.dropMessage(k)
			u.insertMessage(m)
			g.emitStep(&u, act)
		}
	}
	g.broken = 0
}

// failInvariant records that the present step breaks an invariant. The first one counts.
func (g *stepper) failInvariant(i Invariant) {
	if g.broken == 0 {
		g.broken = i
	}
}
