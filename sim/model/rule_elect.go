package model

// listElections lists the elections that metadata may decide. Any node may be suspected at any
// time, so elections need no reason.
func (g *stepper) listElections() {
	meta := &g.from.meta
	if int(meta.allocated) >= g.cfg.Epochs {
		return
	}
	for n := range Replicas {
		base := meta.isr
		if g.without(ElectFromISR) {
			base = base.with(n)
		}
		// Other replicas may lack acknowledged entries. A fenced node serves nothing.
		if !base.has(n) || g.from.fenced.has(n) {
			continue
		}
		// With slack an election keeps the in-sync set: a smaller one needs enough copies first
		// (rule R).
		for isr := set(1); isr < 1<<Replicas; isr++ {
			if isr&^base != 0 || !isr.has(n) || isr.size() < g.cfg.MinInSync || g.cfg.Slack > 0 && isr != meta.isr {
				continue
			}
			if !g.staysSpread(isr) && !g.without(ElectSpans) {
				continue
			}
			t := *g.from
			t.applyElect(n, isr, g.without(ReservedNotReused))
			g.endStep(&t, Action{kind: actElect, a: uint8(n), x: t.meta.epoch, y: uint8(isr)})
		}
	}
}

// applyElect is the command Elect. Elections and prepared handovers allocate epochs from one
// counter, so no epoch is allocated twice.
func (t *state) applyElect(n int, isr set, reuseReserved bool) {
	m := &t.meta
	m.allocated++
	m.epoch = m.allocated
	// The mutation allocates an epoch to an election that a handover may begin as well.
	if reuseReserved && m.preparedEpoch != 0 {
		m.epoch = m.preparedEpoch
	}
	m.preparedEpoch, m.preparedFor = 0, nobody
	m.primary, m.isr = uint8(n), isr
	m.version++
	// The elected node may read this record late, when the present record has moved on.
	m.elections[m.epoch] = election{uint8(n), isr, m.version, m.lives}
}

// decideMetadata lists the other decisions of metadata about replica i.
func (g *stepper) decideMetadata(i int) {
	g.alterISR(i, 0)
	g.alterISR(i, 1)
	g.fenceSecondary(i)
	g.fenceNode(i)
	g.prepareHandover(i)
	g.proposeAdoption(i)
	g.adoptHandover(i)
	g.removeReplica(i)
	g.placeReplica(i)
}

// fenceSecondary removes a secondary from the in-sync set without asking the primary (part of
// FenceNode).
func (g *stepper) fenceSecondary(i int) {
	m := &g.from.meta
	// The primary stays, and so do min_insync members. The primary learns of the smaller set later
	// and until then waits for more members than it has to, which is safe.
	if !g.cfg.Fencing || g.cfg.Slack > 0 || i == int(m.primary) || !m.isr.has(i) || m.isr.size() <= g.cfg.MinInSync || int(m.version) >= g.cfg.Versions {
		return
	}
	if !g.staysSpread(m.isr.without(i)) && !g.without(FenceSpans) {
		return
	}
	t := *g.from
	t.meta.isr = m.isr.without(i)
	t.meta.version++
	g.endStep(&t, Action{kind: actFence, a: uint8(i), x: uint8(t.meta.isr)})
}

// learnRecord lets a replica read a decision of metadata. A record of an election may be old.
func (g *stepper) learnRecord(i int) {
	s, meta := &g.from.rep[i], &g.from.meta
	// Only the elected node acts on an old record; others need the newest epoch alone.
	for e := s.promised + 1; e <= meta.epoch; e++ {
		switch el := meta.elections[e]; {
		case int(el.primary) == i:
			g.learnElected(i, e, el)
		case e == meta.epoch:
			t := *g.from
			// A new epoch must not shorten a log (rule T).
			t.rep[i].promise(e)
			g.cutToCommit(&t.rep[i])
			g.endStep(&t, Action{kind: actLearn, a: uint8(i), x: e})
		}
	}
	g.readISR(i)
}
