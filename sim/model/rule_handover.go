package model

// prepareHandover reserves an epoch for i, while the primary goes on.
func (g *stepper) prepareHandover(i int) {
	m := &g.from.meta
	if !g.cfg.Handover || int(m.given) >= g.cfg.Epochs || m.preparedEpoch != 0 || i == int(m.primary) || !m.isr.has(i) {
		return
	}
	t := *g.from
	t.meta.given++
	t.meta.preparedEpoch, t.meta.preparedFor = t.meta.given, uint8(i)
	g.done(&t, Action{kind: actPrepare, a: uint8(i), x: t.meta.preparedEpoch})
}

// handOver lets primary p give its range to the replica that metadata prepared: it promises the reserved epoch, stops,
// and sends its whole log.
func (g *stepper) handOver(p int) {
	s, meta := &g.from.rep[p], &g.from.meta
	if meta.preparedEpoch == 0 || s.epoch != meta.epoch || int(meta.primary) != p || !s.isr.has(int(meta.preparedFor)) {
		return
	}
	if s.pending != 0 && !g.without(HandoverNoPending) {
		return
	}
	t := *g.from
	m := message{
		kind: msgHandover, from: uint8(p), to: meta.preparedFor, epoch: meta.preparedEpoch,
		x: uint8(s.isr), y: s.version, z: s.heard[meta.preparedFor], c: s.seen, log: s.log,
	}
	if !g.without(HandoverStepsDown) {
		t.rep[p].promise(m.epoch)
	}
	g.send(&t, m, Action{kind: actHandOver, a: uint8(p), b: m.to, x: m.epoch})
}

// receiveHandover makes i the primary of the reserved epoch as soon as its grants to third nodes are over; its grants to
// the one who hands over need no wait, for that one has stopped.
func (g *stepper) receiveHandover(i int, m *message) {
	if g.from.rep[i].promised >= m.epoch {
		return
	}
	if m.z != g.from.rep[i].boot && !g.without(HandoverOfThisLife) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.promise(m.epoch)
	r.owed[m.from] = 0
	r.role, r.epoch, r.isr, r.version = activating, m.epoch, set(m.x), m.y
	r.log = m.log
	if !g.without(HandoverCarriesClock) {
		r.seen = max(r.seen, m.c)
	}
	// The log is that of a primary that has stopped, so it needs no answers.
	r.votes, r.best = set(m.x), m.log
	g.done(&t, Action{kind: actTakeOver, a: uint8(i), b: m.from, x: m.epoch})
}

// adoptHandover records in metadata that i is primary of the reserved epoch.
func (g *stepper) adoptHandover(i int) {
	r, meta := &g.from.rep[i], &g.from.meta
	if meta.preparedEpoch == 0 || r.role != primary || r.epoch != meta.preparedEpoch || int(meta.preparedFor) != i {
		return
	}
	t := *g.from
	m := &t.meta
	m.epoch, m.primary = m.preparedEpoch, m.preparedFor
	m.preparedEpoch, m.preparedFor = 0, nobody
	m.version++ // and i reads the record again before it changes the in-sync set: a secondary may have been fenced meanwhile
	g.done(&t, Action{kind: actAdopt, a: uint8(i), x: m.epoch})
}
