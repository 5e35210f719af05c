package model

// restartNode lists the ends of a life: restarts without loss, and restarts that lose synced data.
func (g *stepper) restartNode(i int) {
	if int(g.from.crashes) < g.cfg.Crashes {
		g.crashNode(i)
	}
	g.damageDisk(i)
}

// crashNode is rule S: the replica returns as a follower with its durable state. It waits for every
// grant that it may have given, and lists its durable promise again.
func (g *stepper) crashNode(i int) {
	t := *g.from
	t.crashes++
	r := &t.rep[i]
	// The mutation NewEpochAfterRestart needs the state before the restart.
	was := *r
	g.newLife(&t, i)
	// A forgotten promise lets an older primary commit entries that the elected node does not know.
	if g.without(DurablePromise) {
		r.promised = r.log.lastEpoch()
	}
	// A clock that falls back could write below an acknowledged closed timestamp.
	if g.without(DurableClock) {
		r.seen = r.log.lastInterval()
	}
	// The wait protects only epochs that the node itself begins. Other holders need the list.
	if g.without(ExclusionAfterRestart) {
		r.confirmed = [Replicas]uint8{1, 1, 1}
	}
	// The continued epoch would serve reads although another node may have been elected meanwhile.
	if g.without(NewEpochAfterRestart) && was.role == primary && t.meta.epoch == was.epoch {
		r.role, r.epoch, r.isr, r.version, r.start = primary, was.epoch, t.meta.isr, t.meta.version, was.start
		r.match[i] = r.log.n
	}
	g.endStep(&t, Action{kind: actCrash, a: uint8(i)})
}

// newLife clears the volatile state of node i. Others distinguish the new life from the old one by
// its number.
func (g *stepper) newLife(t *state, i int) {
	r := &t.rep[i]
	*r = replica{promised: r.promised, seen: r.seen, stored: r.stored, log: r.log, set: r.set, boot: r.boot}
	if g.cfg.Rounds == 0 && g.cfg.Damages == 0 {
		// Nothing depends on lives.
		return
	}
	// A life with the same number would inherit the acknowledgements of the old one.
	r.boot++
	// A proposal in flight that lets the old life join is refused from now on.
	for p := range t.proposals {
		if q := &t.proposals[p][0]; q.isr.has(i) && !t.meta.isr.has(i) {
			q.stale = 1
		}
	}
	if g.cfg.Rounds == 0 || g.without(RememberGrants) {
		return
	}
	// The restarted node has forgotten its grants, so it acts as if it had granted every present
	// round.
	for p := range Replicas {
		if p != i {
			r.owed[p], r.given[p] = t.round[p], t.round[p]
		}
	}
}
