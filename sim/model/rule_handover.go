package model

// prepareHandover reserves an epoch for i while the primary continues.
func (g *stepper) prepareHandover(i int) {
	m := &g.from.meta
	if !g.cfg.Handover || int(m.allocated) >= g.cfg.Epochs || m.preparedEpoch != 0 || i == int(m.primary) || !m.isr.has(i) {
		return
	}
	// The reserved epoch is allocated now, so an election in between gets a greater one.
	t := *g.from
	t.meta.allocated++
	t.meta.preparedEpoch, t.meta.preparedFor = t.meta.allocated, uint8(i)
	g.endStep(&t, Action{kind: actPrepare, a: uint8(i), x: t.meta.preparedEpoch})
}

// handOver lets primary p hand over its range to the prepared replica: p promises the reserved
// epoch, stops, and sends its whole log.
func (g *stepper) handOver(p int) {
	s, meta := &g.from.rep[p], &g.from.meta
	// Only the primary of the recorded epoch hands over, and only to a member.
	if meta.preparedEpoch == 0 || s.epoch != meta.epoch || int(meta.primary) != p || !s.isr.has(int(meta.preparedFor)) {
		return
	}
	// With a change in progress, the receiver would know only one of the two sets
	// (HandoverNoPending).
	if s.pending != 0 && !g.without(HandoverNoPending) {
		return
	}
	t := *g.from
	m := message{
		kind: msgHandover, from: uint8(p), to: meta.preparedFor, epoch: meta.preparedEpoch,
		x: uint8(s.isr), y: s.version, z: s.heard[meta.preparedFor], c: s.seen, log: s.log,
	}
	// A primary that continued would commit entries that the receiver lacks.
	if !g.without(HandoverStepsDown) {
		t.rep[p].promise(m.epoch)
	}
	g.sendMessage(&t, m, Action{kind: actHandOver, a: uint8(p), b: m.to, x: m.epoch})
}

// receiveHandover makes i the primary of the reserved epoch as soon as its grants to third nodes
// have ended. Its grants to the old primary need no wait, because the old primary has stopped.
func (g *stepper) receiveHandover(i int, m *message) {
	if g.from.rep[i].promised >= m.epoch {
		return
	}
	// In another life i may have begun the reserved epoch already (ruling 16b).
	if m.z != g.from.rep[i].boot && !g.without(HandoverOfThisLife) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.promise(m.epoch)
	// The sender cannot read any more, so its grant does no harm.
	r.owed[m.from] = 0
	r.role, r.epoch, r.isr, r.version = activating, m.epoch, set(m.x), m.y
	r.log = m.log
	// The receiver writes above everything that the sender closed.
	if !g.without(HandoverCarriesClock) {
		r.seen = max(r.seen, m.c)
	}
	// The log is complete, since its primary has stopped, so no answers are needed.
	r.votes, r.best = set(m.x), m.log
	g.endStep(&t, Action{kind: actTakeOver, a: uint8(i), b: m.from, x: m.epoch})
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
	// A secondary may have been fenced in the meantime: i must read the record before it changes
	// the set.
	m.version++
	g.endStep(&t, Action{kind: actAdopt, a: uint8(i), x: m.epoch})
}
