package merging

import "fmt"

// stepper lists the steps from one state.
type stepper struct {
	cfg  *Config
	from state
	// named makes the steps carry a description.
	named bool
	add   func(next state, act string)
}

// to adds the state that change makes of the present one.
func (g *stepper) to(change func(s *state), format string, args ...any) {
	next := g.from
	change(&next)
	act := ""
	// Only traces are read.
	if g.named {
		act = fmt.Sprintf(format, args...)
	}
	g.add(next, act)
}

// omits reports whether a rule is left out.
func (g *stepper) omits(m Mutation) bool { return g.cfg.Mutation == m }

// listSteps adds every state that one step of any node leads to.
func (g *stepper) listSteps() {
	for n := range g.cfg.Nodes {
		g.order(n)
		g.finish(n)
		for _, x := range []side{left, right} {
			g.membership(n, x)
			g.lead(n, x)
			g.replicate(n, x)
		}
	}
}

// lead lists elections and their consequences: promises, the beginning of epochs, and the end of
// leases. A node promises an epoch for each range apart, since the records of two ranges may
// arrive apart.
func (g *stepper) lead(n int, x side) {
	s, c := &g.from, &g.from.nodes[n].c[x]
	gone := x == right && s.nodes[n].united
	if s.elections > 0 && has(s.inSync[x], n) && int(s.primary[x]) != n && !(x == right && s.merged) {
		g.to(func(s *state) { s.elect(n, x) }, "elect n%d for the %s range", n+1, x)
	}
	// A node learns of each record apart.
	if c.promised < s.epoch[x] && !gone && has(s.inSync[x], n) && !(x == right && s.merged) {
		g.to(func(s *state) {
			c := &s.nodes[n].c[x]
			c.promised, c.active = s.epoch[x], 0
		}, "n%d promises epoch %d of the %s range", n+1, s.epoch[x], x)
	}
	if int(s.primary[x]) == n && c.promised == s.epoch[x] && c.log.startOf(s.epoch[x]) == 0 && !gone && has(s.inSync[x], n) && int(c.log.n) < logMax && !g.mayBeLeased(n, x) {
		g.to(func(s *state) { s.activate(n, x) }, "n%d begins epoch %d of the %s range", n+1, s.epoch[x], x)
	}
	// The elected node grants no lease after its promise. Before that a lease lasts.
	p := &s.nodes[s.primary[x]]
	if c.leased && int(s.primary[x]) != n && (p.c[x].promised > c.log.lastEpoch() || x == right && p.united) {
		g.to(func(s *state) { s.nodes[n].c[x].leased = false }, "the lease of n%d for the %s range ends", n+1, x)
	}
}

// elect names a node primary of a range, and of the other one too if it is a member there.
func (s *state) elect(n int, x side) {
	s.elections--
	for _, y := range []side{x, 1 - x} {
		if has(s.inSync[y], n) && int(s.primary[y]) != n && !(y == right && s.merged) {
			s.epoch[y]++
			s.primary[y] = uint8(n)
		}
	}
}

// lastEpoch returns the epoch of the last entry.
func (l *logState) lastEpoch() uint8 {
	if l.n == 0 {
		return 0
	}
	return l.e[l.n-1].epoch
}

// mayBeLeased reports whether a lease of another node forbids n to begin an epoch of a range.
func (g *stepper) mayBeLeased(n int, x side) bool {
	for m := range g.cfg.Nodes {
		if m != n && g.from.nodes[m].c[x].leased {
			return true
		}
	}
	return false
}

// reach returns how much of the left log of node n another node may have: a node without the end
// that a take names acknowledges nothing from the take on.
func (g *stepper) reach(n, m int, x side) uint8 {
	l, other := &g.from.nodes[n].c[x].log, &g.from.nodes[m]
	if at := l.find(take); x == left && at > 0 && !other.united && !other.hasEndOf(l.e[at-1]) && !g.omits(AckWithoutEnd) {
		return at - 1
	}
	return l.n
}

// replicate lists the copying of logs, and commits. A member takes the log of a primary unless it
// has promised a later epoch. A united member has no right log, so it acknowledges nothing for
// the right range. That does not stop a later primary of that range for long: it needs no commit
// there, because the left log has the entry that takes over.
func (g *stepper) replicate(n int, x side) {
	s, c := &g.from, &g.from.nodes[n].c[x]
	if c.active == 0 {
		return
	}
	for m := range g.cfg.Nodes {
		d, upTo := &s.nodes[m].c[x], g.reach(n, m, x)
		if m == n || d.promised > c.active || x == right && s.nodes[m].united || c.acked[m] == upTo && d.commit >= min(c.commit, upTo) {
			continue
		}
		g.to(func(s *state) {
			from, to := &s.nodes[n].c[x], &s.nodes[m].c[x]
			to.log, to.promised, to.active, to.commit = from.log.prefix(upTo), from.active, 0, max(to.commit, min(from.commit, upTo))
			from.acked[m] = upTo
		}, "n%d sends the %s log up to %d to n%d", n+1, x, upTo, m+1)
	}
	k := c.log.n
	for m := range g.cfg.Nodes {
		if m != n && has(s.nodes[n].counts[x], m) {
			k = min(k, c.acked[m])
		}
	}
	if k > c.commit && k >= c.log.startOf(c.active) {
		g.to(func(s *state) {
			c := &s.nodes[n].c[x]
			c.commit = k
			s.done |= c.log.writes(k)
		}, "n%d commits the %s log up to %d", n+1, x, k)
	}
}

// order lists the entries that a primary appends: writes to the slots of the right range, in the
// right log before the merge and in the left one after the union; the end of the right range; and
// the entry that takes over.
func (g *stepper) order(n int) {
	s, nd := &g.from, &g.from.nodes[n]
	l, r := &nd.c[left], &nd.c[right]
	appendTo := func(x side, e entry, what string) {
		if int(nd.c[x].log.n) == logMax {
			return
		}
		e.epoch = nd.c[x].active
		g.to(func(s *state) {
			s.nodes[n].c[x].log.add(e)
			if e.kind == write {
				s.written++
			}
		}, "n%d %s", n+1, what)
	}
	ended := r.log.find(end)
	if int(s.written) < g.cfg.Writes {
		if r.active > 0 && !nd.united && (ended == 0 || s.cancelled && g.omits(CancelAfterEnd) || g.omits(WriteAfterEnd)) {
			appendTo(right, entry{kind: write, id: s.written}, "orders a write in the right range")
		}
		if l.active > 0 && nd.united {
			appendTo(left, entry{kind: write, id: s.written}, "orders a write in the left range")
		}
	}
	if r.active > 0 && !nd.united && ended == 0 && !s.cancelled && !s.merged {
		appendTo(right, entry{kind: end}, "ends the right range")
	}
	if ended == 0 || nd.united || l.active == 0 || l.log.find(take) > 0 || s.cancelled && !g.omits(CancelAfterEnd) {
		return
	}
	committed := r.commit >= ended || g.omits(TakeBeforeCommit)
	// One node is primary of both.
	if committed && r.active > 0 {
		appendTo(left, entry{kind: take, of: r.log.e[ended-1].epoch, at: ended}, "takes over the slots")
	}
}

// finish lists the union of copies, the copying of a united range by a node that lacks the end,
// and the two commands that end a merge. The left primary completes it, the right primary cancels
// it.
func (g *stepper) finish(n int) {
	s, nd := &g.from, &g.from.nodes[n]
	l, r := &nd.c[left], &nd.c[right]
	at := l.log.find(take)
	if at > 0 && l.commit >= at && !nd.united {
		if nd.hasEnd(at) {
			g.to(func(s *state) { s.nodes[n].unite(l.log.e[at-1].at) }, "n%d unites its copies", n+1)
		} else {
			for m := range g.cfg.Nodes {
				if s.nodes[m].united && s.nodes[m].c[left].commit >= at {
					g.to(func(s *state) { s.nodes[n].copyOf(&s.nodes[m]) }, "n%d copies the united range from n%d", n+1, m+1)
				}
			}
		}
	}
	if int(s.primary[left]) == n && nd.united && l.active == s.epoch[left] && !s.merged {
		g.to(func(s *state) { s.merged = true }, "the merge is recorded")
	}
	// Everything of earlier epochs is committed and does not end the range, or the rule is left
	// out.
	if int(s.primary[right]) == n && !nd.united && r.active == s.epoch[right] && !s.cancelled && !s.merged && r.commit >= r.log.startOf(r.active) && (r.log.find(end) == 0 || g.omits(CancelAfterEnd)) {
		g.to(func(s *state) { s.cancelled = true }, "n%d has the merge cancelled", n+1)
	}
}

// unite makes one copy of two.
func (nd *node) unite(upTo uint8) {
	nd.united, nd.had = true, nd.c[right].log.writes(upTo)
	nd.c[right] = copyState{promised: nd.c[right].promised}
}

// copyOf replaces the copies of a node by the united one of another.
func (nd *node) copyOf(from *node) {
	nd.united, nd.had = true, from.had
	nd.c[right] = copyState{promised: nd.c[right].promised}
	nd.c[left].log, nd.c[left].commit = from.c[left].log, from.c[left].commit
}

// membership lists the changes of the in-sync set of one range. A node joins it when it has all
// entries of its log.
func (g *stepper) membership(n int, x side) {
	s := &g.from
	if x == right && (s.merged || s.nodes[n].united) {
		return
	}
	size := 0
	for m := range g.cfg.Nodes {
		if has(s.inSync[x], m) {
			size++
		}
	}
	if s.shrinks > 0 && has(s.inSync[x], n) && int(s.primary[x]) != n && size > g.cfg.MinInSync {
		g.to(func(s *state) {
			s.shrinks--
			s.inSync[x] &^= 1 << n
			// The primary of the present epoch counts on the smaller set when the metadata has
			// it; an earlier one never does.
			if p := &s.nodes[s.primary[x]]; p.c[x].active == s.epoch[x] {
				p.counts[x] &^= 1 << n
			}
		}, "n%d leaves the in-sync set of the %s range", n+1, x)
	}
	p := &s.nodes[s.primary[x]]
	if s.joins == 0 || has(s.inSync[x], n) || p.c[x].active != s.epoch[x] || p.c[x].acked[n] != p.c[x].log.n || p.c[x].promisedBy(&s.nodes[n], x) {
		return
	}
	g.to(func(s *state) {
		s.joins--
		s.inSync[x] |= 1 << n
		s.nodes[s.primary[x]].counts[x] |= 1 << n
	}, "n%d joins the in-sync set of the %s range", n+1, x)
}

// promisedBy reports whether a node has promised a later epoch than that of the primary's copy.
func (c *copyState) promisedBy(nd *node, x side) bool { return nd.c[x].promised > c.active }
