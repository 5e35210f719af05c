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
	m.elections[m.epoch] = election{uint8(n), isr, m.version, m.lives}
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
