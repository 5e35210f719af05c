package model

// changeInSync lists the steps of rule R: primary p changes the in-sync set, one
// change at a time. A change may remove one member and add another: at the least size a dead member
// cannot leave before its replacement has joined.
func (g *stepper) changeInSync(p int) {
	r := &g.from.rep[p]
	switch {
	// Rule R allows one change at a time.
	case r.pending == 0 && int(r.version) < g.cfg.Versions:
		// The unchanged set is proposed too if it would record other lives (docs/replication.md#rule-one-answer).
		for next := set(1); next < 1<<Replicas; next++ {
			if (next != r.isr || g.wouldChangeLives(p)) && next.has(p) && next.size() >= g.cfg.MinInSync {
				g.beginChange(p, next)
			}
		}
	case r.pending != 0 && r.sent == 0:
		// A change that was not proposed may still be dropped; a proposed one may not.
		g.proposeChange(p)
		g.withdrawChange(p)
	case r.pending != 0:
		// A proposed change may be applied at any time later. Dropping P now would let commits
		// ignore members that the record then counts (SentStays).
		g.proposeUnchanged(p)
		if g.without(SentStays) {
			g.withdrawChange(p)
		}
	}
}

// beginChange starts a change by setting P. From now on commits and leases need both sets.
func (g *stepper) beginChange(p int, next set) {
	t := *g.from
	r := &t.rep[p]
	r.pending = next
	// Fewer members may count from now on only under a mutation, but then more may be committed at
	// once.
	g.advanceCommit(&t, p)
	g.endStep(&t, Action{kind: actBegin, a: uint8(p), x: uint8(r.isr), y: uint8(next)})
}

// proposeChange sends AlterISR for P once the joining members hold everything that may have been
// acknowledged.
func (g *stepper) proposeChange(p int) {
	s := &g.from.rep[p]
	// Joining members must have the log now. Leaving members count until the record has changed.
	if !g.mayJoin(s, s.pending&^s.isr) || !g.mayShrink(s, s.pending) {
		return
	}
	// The copy of P in the proposal stays in flight until metadata applies it or the version has
	// moved.
	t := *g.from
	t.rep[p].sent = 1
	t.proposals[p][0] = proposal{
		epoch: s.epoch, version: s.version, isr: s.pending,
		lives: g.livesFor(p, s.pending), stale: g.staleLife(p, s.pending&^s.isr),
	}
	g.endStep(&t, Action{kind: actPropose, a: uint8(p), x: uint8(s.isr), y: uint8(s.pending)})
}

// acknowledgedUpTo bounds the entries that clients may know. The commit position of a new primary
// is only a lower bound: entries below its epoch-start entry may have been acknowledged by the
// previous primary.
func (g *stepper) acknowledgedUpTo(r *replica) uint8 {
	// With commit alone, a joining member could lack entries that the previous primary had
	// acknowledged.
	if g.without(JoinFromStart) {
		return r.commit
	}
	return max(r.commit, r.start)
}

// mayJoin reports whether the joining members have the log and the closed timestamps.
func (g *stepper) mayJoin(r *replica, joining set) bool {
	for m := range Replicas {
		if !joining.has(m) {
			continue
		}
		// Once the record names the member, it may be elected, so it needs everything that clients
		// know.
		if r.match[m] < g.acknowledgedUpTo(r) && !g.without(JoinCaughtUp) {
			return false
		}
		// If elected, the member must write above everything published, so its clock must be past
		// that.
		if r.agreed[m] < r.published && !g.without(JoinAgreesClosed) {
			return false
		}
	}
	return true
}

// mayShrink reports whether the remaining members hold enough copies. Without slack every member
// holds every copy.
func (g *stepper) mayShrink(r *replica, next set) bool {
	return g.cfg.Slack == 0 || g.without(ShrinkKeepsCopies) || g.isAcked(r, next, g.acknowledgedUpTo(r))
}

// withdrawChange drops P. Only a P that was never proposed may be dropped (docs/replication.md#rule-r).
func (g *stepper) withdrawChange(p int) {
	t := *g.from
	r := &t.rep[p]
	// No proposal of this P can arrive any more, so commits may ignore it.
	r.pending, r.sent = 0, 0
	g.advanceCommit(&t, p)
	g.endStep(&t, Action{kind: actWithdraw, a: uint8(p)})
}

// proposeUnchanged sends AlterISR for the present I while the proposal of P may still arrive.
// Whichever arrives first increments the version, and the other is refused. This settles a change
// whose member has died (docs/replication.md#rule-r).
func (g *stepper) proposeUnchanged(p int) {
	s := &g.from.rep[p]
	// The bound on versions keeps the search finite.
	if int(s.version) >= g.cfg.Versions {
		return
	}
	t := *g.from
	t.proposals[p][1] = proposal{epoch: s.epoch, version: s.version, isr: s.isr, lives: g.livesFor(p, s.isr)}
	// Ending P here is wrong: the first proposal may still win.
	if g.without(BothUntilDecided) {
		t.rep[p].pending, t.rep[p].sent = 0, 0
		g.advanceCommit(&t, p)
	}
	g.endStep(&t, Action{kind: actUnchanged, a: uint8(p), x: uint8(s.isr)})
}

// alterISR lets a proposal of p arrive at metadata, at any time after it was sent.
func (g *stepper) alterISR(p, k int) {
	meta := &g.from.meta
	q := g.from.proposals[p][k]
	// Members that stay are not compared, since a dead member must not block its own replacement.
	current := q.epoch == meta.epoch && q.version == meta.version && (q.stale == 0 || g.without(JoinNamesLife))
	// Metadata compares epoch, version and the lives of joining members. A refused proposal changes
	// nothing, so it needs no step.
	if q.epoch == 0 || !current && !g.without(CompareAndSet) {
		return
	}
	// Nobody counts on a copy that is being dropped.
	if q.isr&^meta.isr&g.from.fenced != 0 || q.isr&^meta.replicas != 0 && !g.without(JoinListed) || !g.staysSpread(q.isr) && !g.without(ChangeSpans) {
		return
	}
	t := *g.from
	t.proposals[p][k] = proposal{}
	t.meta.isr = q.isr
	g.recordLives(&t, q.lives)
	// Without a new version a proposal of P that is still in flight would be applied afterwards
	// (UnchangedMovesVersion).
	if k == 0 || !g.without(UnchangedMovesVersion) {
		t.meta.version++
	} else if r := &t.rep[p]; r.role != follower && r.epoch == q.epoch && r.version == q.version {
		// Without a new version, p can only take the answer to the proposal as the end of the
		// change.
		r.pending, r.sent = 0, 0
		g.advanceCommit(&t, p)
	}
	g.endStep(&t, Action{kind: actAlter, a: uint8(p), x: uint8(q.isr)})
}

// readISR lets a replica read the record after its version has changed. This ends a change,
// whichever proposal won.
func (g *stepper) readISR(i int) {
	s, meta := &g.from.rep[i], &g.from.meta
	// Reading an unchanged record proves nothing: the proposal may still be in flight
	// (PendingUntilVersion).
	if s.role == follower || s.epoch != meta.epoch || s.version >= meta.version && !(g.without(PendingUntilVersion) && s.pending != 0) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.isr, r.version, r.pending, r.sent = meta.isr, meta.version, 0, 0
	// Leaving members no longer count, so more may be committed.
	if r.role == primary {
		g.advanceCommit(&t, i)
	}
	g.endStep(&t, Action{kind: actReadISR, a: uint8(i), x: uint8(meta.isr), y: meta.version})
}
