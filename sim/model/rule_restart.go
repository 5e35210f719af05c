package model

// restart lists the ends of a node's life: those that keep what was synced, and those that lose some of it.
func (g *stepper) restart(i int) {
	if int(g.from.crashes) < g.cfg.Crashes {
		g.crash(i)
	}
	g.damage(i)
}

// crash is rule S: the replica comes back as a follower with what was durable. It waits out every grant that it may have
// given, and lists its durable promise again.
func (g *stepper) crash(i int) {
	t := *g.from
	t.crashes++
	r := &t.rep[i]
	was := *r
	g.newLife(&t, i)
	if g.without(DurablePromise) {
		r.promised = r.log.lastEpoch()
	}
	if g.without(DurableClock) {
		r.seen = r.log.lastInterval()
	}
	if g.without(ExclusionAfterRestart) {
		r.confirmed = [Replicas]uint8{1, 1, 1}
	}
	if g.without(NewEpochAfterRestart) && was.role == primary && t.meta.epoch == was.epoch {
		r.role, r.epoch, r.isr, r.version, r.start = primary, was.epoch, t.meta.isr, t.meta.version, was.start
		r.match[i] = r.log.n
	}
	g.done(&t, Action{kind: actCrash, a: uint8(i)})
}

// newLife takes from node i what is not durable. What others know of its old life is told apart by the life's number.
func (g *stepper) newLife(t *state, i int) {
	r := &t.rep[i]
	*r = replica{promised: r.promised, seen: r.seen, stored: r.stored, log: r.log, boot: r.boot}
	if g.cfg.Rounds == 0 && g.cfg.Damages == 0 {
		return // nothing depends on lives
	}
	r.boot++
	for p := range t.proposals {
		if q := &t.proposals[p][0]; q.isr.has(i) && !t.meta.isr.has(i) {
			q.stale = 1
		}
	}
	if g.cfg.Rounds == 0 || g.without(RememberGrants) {
		return
	}
	for p := range Replicas {
		if p != i {
			r.owed[p], r.given[p] = t.round[p], t.round[p]
		}
	}
}
