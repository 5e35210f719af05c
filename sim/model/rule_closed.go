package model

// closeTimestamp lists the steps of primary p for closed timestamps (docs/replication.md#closed): close one, have it
// acknowledged, publish it.
func (g *stepper) closeTimestamp(p int) {
	s := &g.from.rep[p]
	// Timestamps are counted in intervals, so the next one that can be closed is the one above
	// everything that p has written, closed or acknowledged.
	if low := max(s.seen, s.closed, s.log.lastInterval()); int(low) < g.cfg.Closed {
		// Everything that p appends from now on is above the closed timestamp.
		t := *g.from
		r := &t.rep[p]
		r.closed = low + 1
		r.seen = r.closed
		// The clock of p is past the timestamp, so p agrees itself.
		r.agreed[p] = r.closed
		g.endStep(&t, Action{kind: actClose, a: uint8(p), x: r.closed})
	}
	if s.closed == 0 || s.closed == s.published {
		return
	}
	for i := range Replicas {
		if i != p && s.agreed[i] < s.closed {
			g.agreeToClosed(p, i)
		}
	}
	g.publishClosed(p)
}

// agreeToClosed lets replica i acknowledge the closed timestamp of p: the clock of i stays above it
// for good. A replica that has promised a later epoch refuses, because the primary of that epoch
// may have written below the timestamp.
func (g *stepper) agreeToClosed(p, i int) {
	// A deposed primary would otherwise publish a timestamp below which its successor has already
	// written.
	if g.from.rep[i].promised > g.from.rep[p].epoch && !g.without(ClosedFenced) {
		return
	}
	t := *g.from
	r := &t.rep[p]
	// The clock moves, durably: if i is elected, even after a restart, it writes above the
	// timestamp (DurableClock).
	t.rep[i].seen = max(t.rep[i].seen, r.closed)
	// The agreement is of a new life, to which no earlier acknowledgement applies.
	if boot := t.rep[i].boot; boot > r.heard[i] {
		r.heard[i], r.match[i] = boot, 0
	}
	r.agreed[i] = r.closed
	g.endStep(&t, Action{kind: actAgree, a: uint8(i), b: uint8(p), x: r.closed})
}

// publishClosed informs readers that nothing at or below the closed timestamp will be written any
// more, once every node that may become primary has acknowledged it. The epoch-start entry must be
// committed first: until then a member may hold entries of an earlier epoch that p lacks, and if
// elected it restores them with their old timestamps.
func (g *stepper) publishClosed(p int) {
	s := &g.from.rep[p]
	if s.commit < s.start && !g.without(PublishFromStart) {
		return
	}
	// A member of P may be elected as soon as its change is applied, so it must have agreed too.
	need := s.isr | s.pending
	if g.without(PublishNeedsPending) {
		need = s.isr
	}
	missing := 0
	for i := range Replicas {
		if need.has(i) && s.agreed[i] < s.closed {
			missing++
		}
	}
	// The mutation tolerates one missing member, the smallest violation.
	if missing > 1 || missing == 1 && !g.without(PublishNeedsAll) {
		return
	}
	t := *g.from
	r := &t.rep[p]
	r.published = r.closed
	t.recordPublished(r)
	// Readers take the log as complete up to the last entry below the timestamp.
	g.endStep(&t, Action{kind: actPublish, a: uint8(p), x: r.closed})
}

// recordPublished records how much of the log the closed timestamp covers for readers.
func (t *state) recordPublished(r *replica) {
	covered := r.log.n
	for covered > 0 && r.log.e[covered-1].interval() >= r.closed {
		covered--
	}
	o := &t.seen
	// The least coverage counts: a reader may have seen that publication.
	if old := o.covers[r.closed]; old == 0 || covered < old {
		o.covers[r.closed] = covered
	}
	o.closed = max(o.closed, r.closed)
	o.closedBy = max(o.closedBy, r.epoch)
}
