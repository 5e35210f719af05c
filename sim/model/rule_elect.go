package model

// electorate lists the elections and the preparations that metadata may decide. Anybody may be suspected at any time.
func (g *stepper) electorate() {
	meta := &g.from.meta
	if int(meta.given) >= g.cfg.Epochs {
		return
	}
	for n := range Replicas {
		base := meta.isr
		if g.without(ElectFromISR) {
			base = base.with(n)
		}
		if !base.has(n) {
			continue
		}
		for isr := set(1); isr < 1<<Replicas; isr++ {
			if isr&^base != 0 || !isr.has(n) || isr.size() < g.cfg.MinInSync || g.cfg.Slack > 0 && isr != meta.isr {
				continue
			}
			t := *g.from
			t.elect(n, isr, g.without(ReservedNotReused))
			g.done(&t, Action{kind: actElect, a: uint8(n), x: t.meta.epoch, y: uint8(isr)})
		}
	}
}

// elect is the command Elect. Elections and prepared handovers take their epochs from one counter.
func (t *state) elect(n int, isr set, reuseReserved bool) {
	m := &t.meta
	m.given++
	m.epoch = m.given
	if reuseReserved && m.preparedEpoch != 0 {
		m.epoch = m.preparedEpoch
	}
	m.preparedEpoch, m.preparedFor = 0, nobody
	m.primary, m.isr = uint8(n), isr
	m.version++
	m.elections[m.epoch] = election{uint8(n), isr, m.version}
}

// metadata lists the other decisions that concern replica i.
func (g *stepper) metadata(i int) {
	g.alterISR(i, 0)
	g.alterISR(i, 1)
	g.fence(i)
	g.prepareHandover(i)
	g.adoptHandover(i)
}

// fence takes a secondary out of the in-sync set without asking the primary (part of FenceNode).
func (g *stepper) fence(i int) {
	m := &g.from.meta
	if !g.cfg.Fencing || g.cfg.Slack > 0 || i == int(m.primary) || !m.isr.has(i) || m.isr.size() <= g.cfg.MinInSync || int(m.version) >= g.cfg.Versions {
		return
	}
	t := *g.from
	t.meta.isr = m.isr.without(i)
	t.meta.version++
	g.done(&t, Action{kind: actFence, a: uint8(i), x: uint8(t.meta.isr)})
}

// learn lets a replica read what metadata decided; a record of an election may be old.
func (g *stepper) learn(i int) {
	s, meta := &g.from.rep[i], &g.from.meta
	for e := s.promised + 1; e <= meta.epoch; e++ {
		switch el := meta.elections[e]; {
		case int(el.primary) == i:
			g.learnElected(i, e, el)
		case e == meta.epoch:
			t := *g.from
			t.rep[i].promise(e)
			g.forget(&t.rep[i])
			g.done(&t, Action{kind: actLearn, a: uint8(i), x: e})
		}
	}
	g.readISR(i)
}

// learnElected begins rule E: the elected node promises its own epoch. With slack it also asks the others to.
func (g *stepper) learnElected(i int, epoch uint8, el election) {
	t := *g.from
	r := &t.rep[i]
	r.promise(epoch)
	r.role, r.epoch, r.isr, r.version = activating, epoch, el.isr, el.version
	act := Action{kind: actElected, a: uint8(i), x: epoch}
	if g.cfg.Slack == 0 {
		g.done(&t, act)
		return
	}
	r.votes = set(0).with(i)
	r.best = r.log
	g.send(&t, message{kind: msgPrepare, from: uint8(i), to: nobody, epoch: epoch}, act)
}

// receivePrepare promises the candidate's epoch and, once no other node holds a grant that does not exclude the epochs
// before, tells the candidate its log.
func (g *stepper) receivePrepare(i int, m *message) {
	s := &g.from.rep[i]
	if m.epoch < s.promised || m.epoch == s.promised && s.role != follower {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.promise(m.epoch)
	act := Action{kind: actPromise, a: uint8(i), b: m.from, x: m.epoch}
	if g.owes(&t, i, int(m.from)) {
		g.done(&t, act)
		return
	}
	g.send(&t, message{kind: msgPromise, from: uint8(i), to: m.from, epoch: m.epoch, log: r.log}, act)
}

// receivePromise keeps the greatest log: by the epoch of its last entry, then by length.
func (g *stepper) receivePromise(i int, m *message) {
	s := &g.from.rep[i]
	if s.role != activating || s.epoch != m.epoch || s.votes.has(int(m.from)) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.votes = r.votes.with(int(m.from))
	if a, b := m.log.lastEpoch(), r.best.lastEpoch(); a > b || a == b && m.log.n > r.best.n {
		r.best = m.log
	}
	g.done(&t, Action{kind: actVote, a: uint8(i), b: m.from})
}

// activate ends rule E: the wait for its own grants, for promises with slack, and the epoch-start entry.
func (g *stepper) activate(i int) {
	s := &g.from.rep[i]
	if s.role != activating || g.cfg.PairsOnly || s.log.full() || s.best.full() || g.owes(g.from, i, nobody) {
		return
	}
	if g.cfg.Slack > 0 && (s.votes&s.isr).size() < g.cfg.electQuorum(s.isr) && !g.without(PrepareQuorum) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	if g.cfg.Slack > 0 {
		r.log = r.best
	}
	r.votes, r.best = 0, history{}
	r.role = primary
	r.start = r.log.n + 1
	g.appendOwn(&t, i, 0)
	g.done(&t, Action{kind: actActivate, a: uint8(i), x: r.epoch, y: r.start})
}
