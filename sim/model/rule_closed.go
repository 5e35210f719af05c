package model

// close lists what primary p may do about closed timestamps (ruling 6): close one, have it acknowledged, publish it.
func (g *stepper) close(p int) {
	s := &g.from.rep[p]
	if low := max(s.seen, s.closed, s.log.lastInterval()); int(low) < g.cfg.Closed {
		// Whatever p appends from now on lies above.
		t := *g.from
		r := &t.rep[p]
		r.closed = low + 1
		r.seen = r.closed
		r.agreed[p] = r.closed
		g.done(&t, Action{kind: actClose, a: uint8(p), x: r.closed})
	}
	if s.closed == 0 || s.closed == s.opened {
		return
	}
	for i := range Replicas {
		if i != p && s.agreed[i] < s.closed {
			g.agree(p, i)
		}
	}
	g.publish(p)
}

// agree lets replica i acknowledge p's closed timestamp: its clock is past it for good. A replica that has promised a
// later epoch does not: the primary of that epoch may have written below.
func (g *stepper) agree(p, i int) {
	if g.from.rep[i].promised > g.from.rep[p].epoch && !g.without(ClosedFenced) {
		return
	}
	t := *g.from
	r := &t.rep[p]
	t.rep[i].seen = max(t.rep[i].seen, r.closed)
	if boot := t.rep[i].boot; boot > r.heard[i] {
		r.heard[i], r.match[i] = boot, 0
	}
	r.agreed[i] = r.closed
	g.done(&t, Action{kind: actAgree, a: uint8(i), b: uint8(p), x: r.closed})
}

// publish tells readers that nothing at or below the closed timestamp will be written any more, once everybody who may
// become primary has acknowledged that. The epoch-start entry must be committed first: until then a member may hold
// entries of an earlier epoch that p lacks, and bring them back, with their old timestamps, when it is elected.
func (g *stepper) publish(p int) {
	s := &g.from.rep[p]
	if s.commit < s.start && !g.without(PublishFromStart) {
		return
	}
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
	if missing > 1 || missing == 1 && !g.without(PublishNeedsAll) {
		return
	}
	t := *g.from
	r := &t.rep[p]
	r.opened = r.closed
	t.publish(r)
	g.done(&t, Action{kind: actPublish, a: uint8(p), x: r.closed})
}

// publish notes for the readers how much of the log the closed timestamp covers.
func (t *state) publish(r *replica) {
	covered := r.log.n
	for covered > 0 && r.log.e[covered-1].interval() >= r.closed {
		covered--
	}
	o := &t.seen
	if old := o.covers[r.closed]; old == 0 || covered < old {
		o.covers[r.closed] = covered
	}
	o.closed = max(o.closed, r.closed)
	o.closedBy = max(o.closedBy, r.epoch)
}
