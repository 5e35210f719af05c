package model

// change is rule R with ruling 7: primary p changes the in-sync set, one change at a time. A change may take one member
// out and another in at once: with a dead member at the least size there is no other way.
func (g *stepper) change(p int) {
	r := &g.from.rep[p]
	switch {
	case r.pending == 0 && int(r.version) < g.cfg.Versions:
		for next := set(1); next < 1<<Replicas; next++ {
			if (next != r.isr || g.relive(p)) && next.has(p) && next.size() >= g.cfg.MinInSync {
				g.begin(p, next)
			}
		}
	case r.pending != 0 && r.sent == 0:
		g.propose(p)
		g.withdraw(p)
	case r.pending != 0:
		g.proposeUnchanged(p)
		if g.without(SentStays) {
			g.withdraw(p)
		}
	}
}

// begin puts a change into P. From now on commits and leases need both sets.
func (g *stepper) begin(p int, next set) {
	t := *g.from
	r := &t.rep[p]
	r.pending = next
	g.advance(&t, p)
	g.done(&t, Action{kind: actBegin, a: uint8(p), x: uint8(r.isr), y: uint8(next)})
}

// propose sends AlterISR for P, once those who join have what may have been acknowledged.
func (g *stepper) propose(p int) {
	s := &g.from.rep[p]
	if !g.mayJoin(s, s.pending&^s.isr) || !g.mayShrink(s, s.pending) {
		return
	}
	t := *g.from
	t.rep[p].sent = 1
	t.proposals[p][0] = proposal{
		epoch: s.epoch, version: s.version, isr: s.pending,
		lives: g.livesFor(p, s.pending), stale: g.stale(p, s.pending&^s.isr),
	}
	g.done(&t, Action{kind: actPropose, a: uint8(p), x: uint8(s.isr), y: uint8(s.pending)})
}

// acknowledgedUpTo bounds what clients may have been told. A new primary's commit is only a lower bound: entries below
// its epoch-start entry may have been acknowledged by the primary before.
func (g *stepper) acknowledgedUpTo(r *replica) uint8 {
	if g.without(JoinFromStart) {
		return r.commit
	}
	return max(r.commit, r.start)
}

// mayJoin reports whether the members who join have the log and the closed timestamps.
func (g *stepper) mayJoin(r *replica, joining set) bool {
	for m := range Replicas {
		if !joining.has(m) {
			continue
		}
		if r.match[m] < g.acknowledgedUpTo(r) && !g.without(JoinCaughtUp) {
			return false
		}
		if r.agreed[m] < r.opened && !g.without(JoinAgreesClosed) {
			return false
		}
	}
	return true
}

// mayShrink reports whether those who remain have enough copies. Without slack they all have every one.
func (g *stepper) mayShrink(r *replica, next set) bool {
	return g.cfg.Slack == 0 || g.without(ShrinkKeepsCopies) || g.acked(r, next, g.acknowledgedUpTo(r))
}

// withdraw drops P. Only a P that was never sent may be dropped (ruling 7).
func (g *stepper) withdraw(p int) {
	t := *g.from
	r := &t.rep[p]
	r.pending, r.sent = 0, 0
	g.advance(&t, p)
	g.done(&t, Action{kind: actWithdraw, a: uint8(p)})
}

// proposeUnchanged sends AlterISR for I as it is, while the proposal of P may still arrive: whichever comes first moves
// the version, and the other is refused. It is the way out when a member of P has died (ruling 7).
func (g *stepper) proposeUnchanged(p int) {
	s := &g.from.rep[p]
	if int(s.version) >= g.cfg.Versions {
		return
	}
	t := *g.from
	t.proposals[p][1] = proposal{epoch: s.epoch, version: s.version, isr: s.isr, lives: g.livesFor(p, s.isr)}
	if g.without(BothUntilDecided) {
		t.rep[p].pending, t.rep[p].sent = 0, 0
		g.advance(&t, p)
	}
	g.done(&t, Action{kind: actUnchanged, a: uint8(p), x: uint8(s.isr)})
}

// alterISR lets a proposal of p arrive at metadata, any time after it was sent.
func (g *stepper) alterISR(p, k int) {
	meta := &g.from.meta
	q := g.from.proposals[p][k]
	current := q.epoch == meta.epoch && q.version == meta.version && (q.stale == 0 || g.without(JoinNamesLife))
	if q.epoch == 0 || !current && !g.without(CompareAndSet) {
		return
	}
	t := *g.from
	t.proposals[p][k] = proposal{}
	t.meta.isr = q.isr
	g.record(&t, q.lives)
	if k == 0 || !g.without(UnchangedMovesVersion) {
		t.meta.version++
	} else if r := &t.rep[p]; r.role != follower && r.epoch == q.epoch && r.version == q.version {
		// With the version in place, p can only take the answer itself for the end of the change.
		r.pending, r.sent = 0, 0
		g.advance(&t, p)
	}
	g.done(&t, Action{kind: actAlter, a: uint8(p), x: uint8(q.isr)})
}

// readISR lets a primary read the range's record, when its version moved. This ends a change, whoever won.
func (g *stepper) readISR(i int) {
	s, meta := &g.from.rep[i], &g.from.meta
	if s.role == follower || s.epoch != meta.epoch || s.version >= meta.version && !(g.without(PendingUntilVersion) && s.pending != 0) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.isr, r.version, r.pending, r.sent = meta.isr, meta.version, 0, 0
	if r.role == primary {
		g.advance(&t, i)
	}
	g.done(&t, Action{kind: actReadISR, a: uint8(i), x: uint8(meta.isr), y: meta.version})
}
